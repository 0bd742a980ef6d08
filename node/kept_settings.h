// DIR/settings: what this node's swarm trains, kept so that a restart goes on with it, whoever
// chose it. A node that adopted its settings would otherwise begin another run after a crash, and
// not know its own checkpoint and certificate. Beside it DIR/settings.chosen: what a person set by
// hand at the last start, which tells a key that was changed from one that comes out otherwise.
#pragma once

#include "bootstrap/settings.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "node/config/config.h"
#include "node/state_dir.h"
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
  // Others are there that cannot be used: keep_choice() sets them aside.
  bool kept_unusable = false;
};

// What a folder holds of the runs before. None of it need be there.
struct KeptFiles {
  std::filesystem::path settings;
  std::filesystem::path chosen;
  std::filesystem::path checkpoints;
  std::filesystem::path final_dir;
};
[[nodiscard]] KeptFiles kept_files(const StateDir& dir);

// The settings with which a node begins.
//
// Rule:    those kept, unless there are none, they make no sense here (the log says why), or a key
//          that a person set says something else; then those of configuration and data. These also
//          where a key is no longer set by hand and the run without it has checkpoints here and
//          neither run is finished: somebody took a slip back. A budget is resolved once: while the
//          text of train.until is the same epochs or steps, the kept one counts, whatever data and
//          batch are now.
// Errors:  those of settings_of() and training::make_model().
// Cost:    draws the genesis of each candidate: 0.15 s for ResNet-50.
[[nodiscard]] Result<OwnSettings> choose_settings(const Config& config,
                                                  const training::Dataset& train,
                                                  const KeptFiles& files, Log& log);

// Remembers for the next start what was set by hand at this one, which begins with `own`.
//
// Rule:    settings that are there are brought to `own` first: after a crash between the two the
//          next start must not take the budget before for that of the new text. Settings that
//          choose_settings() could not use become DIR/settings.unusable instead, as if there had
//          been none, and the choice before likewise; where they cannot be renamed, the log says
//          so.
// Errors:  those of write_whole().
[[nodiscard]] Result<void> keep_choice(const Config& config, const OwnSettings& own,
                                       const KeptFiles& files, Log& log);

}  // namespace starling::node
