// The bytes of a replica as a state transfer carries them, and the counters of state.json: pure
// functions, and ReplicaReader, which calls one of them off the io thread.
//
// A snapshot is: parameters (canonical order, padded, fp32), BatchNorm means, BatchNorm variances
// (fp32), and the number of batches in them (int64), little-endian, without gaps.
#pragma once

#include "bootstrap/snapshot.h"
#include "gossip/membership/progress.h"
#include "node/base/clock.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "training/models/tensor_table.h"
#include "training/replica.h"
#include "transport/task_group.h"

#include <asio/thread_pool.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

[[nodiscard]] std::uint64_t state_bytes(const training::Model& model);

// Cost: one copy and one hash of the model. A job for the codec lane.
[[nodiscard]] Result<bootstrap::SharedSnapshot> cut_replica(const training::Replica& replica,
                                                            const bootstrap::Manifest& about);

// Errors:  bad_message for another size, a value that is not finite or lies in the padding, a
//          negative variance or count, or a count above training::kMaxBatchesTracked. An allocation
//          may throw.
// Cost:    one pass over the model, and the page faults of the new one. A job for the pool.
// Thread:  any; pure.
[[nodiscard]] Result<training::Replica> replica_of(const bootstrap::Snapshot& snapshot,
                                                   const training::Model& model);

// Has the pool read the replica out of a snapshot: at most one is wanted at a time, the last that
// was asked for.
//
// A member of the node, which outlives `tasks`' coroutines; the pool outlives it. Thread: io.
// Cost:    what replica_of() costs, on the pool; nothing of the model's size is touched or freed on
//          the io thread.
class ReplicaReader {
 public:
  using Read = std::function<Result<training::Replica>(const bootstrap::Snapshot& snapshot,
                                                       const training::Model& model)>;
  using Done = std::function<void(Result<training::Replica> replica)>;

  // `read`: what is done on the pool; another one in tests.
  ReplicaReader(asio::thread_pool& pool, transport::TaskGroup& tasks, Read read = replica_of);

  // `done` hears of it on the io thread, in another turn, unless read() or cancel() is called
  // before. The caller asks again there whether what it wanted the replica for still stands.
  //
  // Errors:  those of replica_of(); no_memory; internal for anything else that is thrown.
  void read(bootstrap::SharedSnapshot snapshot, training::Model model, Done done) ON_IO_THREAD;
  // Nobody wants the last one any more: its replica is freed, on the pool, once it is there.
  void cancel() ON_IO_THREAD { ++asked_; }

 private:
  struct Wanted {
    std::uint64_t number = 0;
    bootstrap::SharedSnapshot snapshot;
    training::Model model;
    Done done;
  };
  transport::Task<> run(Wanted wanted);

  asio::thread_pool& pool_;
  transport::TaskGroup& tasks_;
  const Read read_;
  std::uint64_t asked_ = 0;  // number of the one that is wanted
};

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
