// MasterLease: the fp32 master parameters have one user at a time (rulings 1).
#pragma once

#include "gossip/delta/master.h"
#include "node/base/mutex.h"

#include <cstdint>
#include <functional>

namespace starling::training {

// Hands the master to one holder at a time, in the order in which they asked, so that a row of
// codec jobs cannot starve the optimizer pass nor the other way round: whoever asks waits for the
// holders that asked before, one pass over the model each.
//
// Owned by the arena, whose memory the view shows. Thread: any.
class MasterLease final : public gossip::MasterPort {
 public:
  explicit MasterLease(gossip::MasterView view) : view_(view) {}
  MasterLease(const MasterLease&) = delete;
  MasterLease& operator=(const MasterLease&) = delete;

  // Exceptions: those of the job, once the master is given back.
  void with_master(const std::function<void(gossip::MasterView)>& job) override;

 private:
  void give_back();

  const gossip::MasterView view_;
  Mutex mutex_;
  CondVar turn_;
  std::uint64_t next_ticket_ STARLING_GUARDED_BY(mutex_) = 0;
  std::uint64_t served_ STARLING_GUARDED_BY(mutex_) = 0;
};

}  // namespace starling::training
