// Outset: what a node would train on its own, and what it begins with.
#pragma once

#include "node/base/result.h"
#include "node/config/config.h"
#include "node/kept_settings.h"
#include "node/log_backend.h"
#include "node/state_dir.h"
#include "training/checkpoint.h"
#include "training/data/dataset.h"

#include <optional>

namespace starling::node {

// What this node would train on its own, and where it begins: with a checkpoint, with the certified
// model of the run that this one extends, or with neither.
struct Outset {
  OwnSettings settings;
  std::optional<training::Checkpoint> checkpoint;
  std::optional<training::Replica> base;
};

// Says in the log which checkpoints of other runs, or damaged ones, are passed over.
//
// Errors:  permission, io_failed, unsupported for a checkpoint or a certified model that is there
//          and cannot be read now: a node that began without it would replace it; bad_config where
//          run.extend was set and there is no certified model.
// Cost:    reads a checkpoint, or a model.
[[nodiscard]] Result<Outset> choose_outset(const Config& config, const StateDir& dir,
                                           const training::Dataset& train, LogBackend& log);

}  // namespace starling::node
