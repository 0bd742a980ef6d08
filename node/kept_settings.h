// DIR/settings: what this node's swarm trains, kept so that a restart goes on with it, whoever
// chose it. A node that adopted its settings would otherwise begin another run after a crash, and
// not know its own checkpoint and certificate.
#pragma once

#include "bootstrap/settings.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "node/config/config.h"
#include "node/training_settings.h"
#include "training/data/dataset.h"
#include "training/models/tensor_table.h"

#include <filesystem>

namespace starling::node {

// Settings as values, as text, and the model that they name.
struct OwnSettings {
  TrainingSettings training;
  bootstrap::Settings text;
  training::Model model;
};

// The settings with which a node begins.
//
// Rule:    those of `file`, unless there is none, it makes no sense here (the log says why), or a
//          key that a person set says something else; then those of configuration and data.
// Errors:  those of settings_of() and training::make_model().
// Cost:    draws the genesis of each candidate: 0.15 s for ResNet-50.
[[nodiscard]] Result<OwnSettings> choose_settings(const Config& config,
                                                  const training::Dataset& train,
                                                  const std::filesystem::path& file, Log& log);

}  // namespace starling::node
