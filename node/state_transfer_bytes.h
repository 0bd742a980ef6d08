// The bytes of a replica as a state transfer carries them, and the counters of state.json. Pure
// functions.
//
// A snapshot is: parameters (canonical order, padded, fp32), BatchNorm means, BatchNorm variances
// (fp32), and the number of batches in them (int64), little-endian, without gaps.
#pragma once

#include "bootstrap/snapshot.h"
#include "gossip/membership/progress.h"
#include "node/base/clock.h"
#include "node/base/result.h"
#include "training/models/tensor_table.h"
#include "training/replica.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

[[nodiscard]] std::uint64_t state_bytes(const training::Model& model);

// Cost: one copy and one hash of the model. A job for the codec lane.
[[nodiscard]] Result<bootstrap::SharedSnapshot> cut_replica(const training::Replica& replica,
                                                            const bootstrap::Manifest& about);

// Errors:  bad_message for another size, a value that is not finite, a negative variance or count,
//          or a count above training::kMaxBatchesTracked.
[[nodiscard]] Result<training::Replica> replica_of(const bootstrap::Snapshot& snapshot,
                                                   const training::Model& model);

// What a checkpoint keeps of the swarm.
struct SavedProgress {
  std::vector<gossip::SavedCounter> counters;
  double age = 0;           // of the replica, in steps (rulings 7): not the steps of this node
  Duration run_age{};       // since genesis, as this node knows by itself
  Duration sponsors_age{};  // the same, as its sponsor said
};

// "age <steps>\n", "run_age_ms <ms>\n", "sponsors_age_ms <ms>\n" and "<hex id> <samples>\n" for
// each counter, and back; lines that are none are left out, because a counter that is lost costs a
// little progress and a run that cannot start costs everything.
[[nodiscard]] std::string format_progress(const SavedProgress& progress);
[[nodiscard]] SavedProgress parse_progress(std::string_view text);

}  // namespace starling::node
