// Checkpoints: a node's own state on disk, always whole (design section 10).
//
//   DIR/step-000008412/model.safetensors   parameters and statistics, torchvision names
//                      optim.safetensors   momenta, the same names
//                      state.json          counters, data position, progress map, hashes of both
//   DIR/latest -> step-000008412
//
// Written to a temporary folder, flushed, renamed: a name that exists is complete. On load all
// three are checked against their hashes; a damaged checkpoint is passed over for the one before.
//
// A folder holds the checkpoints of one run. Those of another (by its settings fingerprint) are set
// aside by the first save of this one, and come back by the first save of that one:
//
//   DIR/checkpoints-0123456789abcdef   the first digits of the other run's fingerprint
#pragma once

#include "node/base/ids.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "training/data/loader.h"
#include "training/models/tensor_table.h"
#include "training/replica.h"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::training {

// What state.json holds. Whose truth: this node's at one step.
struct TrainingState {
  std::int64_t step = 0;                              // optimizer steps of this replica
  std::uint64_t samples = 0;                          // images that this node trained on
  std::int64_t steps_since_adoption = kStepsSettled;  // position in the 200 steps of warm-up
  DataCursor cursor;                                  // where the data stream goes on
  double progress_share = 0;                          // last known share of the budget
  std::string progress_map;          // the bridge's own text: samples of every node (rulings 29)
  std::string settings_fingerprint;  // of the run that this belongs to

  // A node that never adopted a replica, or did so long ago.
  static constexpr std::int64_t kStepsSettled = 1'000'000'000;

  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

// Everything that a checkpoint holds. Costs two vectors of the model's size.
struct Checkpoint {
  TrainingState state;
  Replica replica;
  std::vector<float> momenta;  // as Replica::parameters
};

struct CheckpointOptions {
  std::filesystem::path folder;  // "DIR/checkpoints"; made when missing
  // Checkpoints to keep. Each costs twice the parameters (204 MB for ResNet-50); with fewer than
  // two there is nothing to fall back to.
  std::size_t keep = 3;
};

// Writes a checkpoint, and removes the oldest beyond `keep`, all of later steps (they are from
// before a rollback) and what earlier crashes left. Checkpoints of another run are set aside first.
//
// Returns: the folder it is in.
// Errors:  those of a file operation (node/base/posix_file.h); the checkpoints that were there are
//          untouched.
// Cost:    two writes of the model's size and their hashes, and a flush: seconds. Not for the train
//          thread.
// Thread:  any, one at a time for one folder.
[[nodiscard]] Result<std::filesystem::path> save_checkpoint(const CheckpointOptions& options,
                                                            const Model& model,
                                                            const Checkpoint& checkpoint);

// Whether an error of reading a checkpoint is no damage: it may be whole, for another user, another
// day or a newer program.
[[nodiscard]] bool is_unread(Errc code);

// Where the checkpoints of another run than the folder's are: a folder beside it.
[[nodiscard]] std::filesystem::path set_aside_folder(const std::filesystem::path& folder,
                                                     std::string_view fingerprint);

// The settings fingerprint of the run that a folder's checkpoints are of; empty where there are
// none, or only damaged ones. Cost: reads the newest one.
//
// Errors:  permission, io_failed, version_mismatch where there are some and none tells, because it
//          cannot be read or is a newer program's.
[[nodiscard]] Result<std::string> run_of_checkpoints(const std::filesystem::path& folder);

// The folder with the checkpoints of this run, `folder` itself or the one set aside; nothing where
// neither is known to hold any.
[[nodiscard]] std::optional<std::filesystem::path> find_checkpoints(
    const std::filesystem::path& folder, std::string_view fingerprint);

// The newest checkpoint that is undamaged; each damaged one is named in the log.
//
// Errors:  not_found if there is none; corrupt if all are damaged (the newest one's reason);
//          permission, io_failed, version_mismatch where the folder, or the newest one that is not
//          damaged, cannot be read or is a newer program's; settings_mismatch is the caller's to
//          find, from state.settings_fingerprint.
[[nodiscard]] Result<Checkpoint> load_checkpoint(const CheckpointOptions& options,
                                                 const Model& model, Log& log);

// Loads exactly this folder.
[[nodiscard]] Result<Checkpoint> load_checkpoint_folder(const std::filesystem::path& folder,
                                                        const Model& model);

// state.json as text and back. Errors: corrupt if anything was changed.
struct StateFile {
  TrainingState state;
  Hash model_hash;
  Hash optimizer_hash;
};
[[nodiscard]] std::string format_state(const StateFile& file);
[[nodiscard]] Result<StateFile> parse_state(std::string_view text);

}  // namespace starling::training
