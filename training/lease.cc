#include "training/lease.h"

namespace starling::training {

void MasterLease::with_master(const std::function<void(gossip::MasterView)>& job) {
  // The mutex guards the two counters only; the holder works outside it. Seeing the own number in
  // served_ under the mutex orders this holder after the last one.
  {
    const MutexLock lock(mutex_);
    const std::uint64_t ticket = next_ticket_++;
    while (served_ != ticket) turn_.wait(mutex_);
  }
  // Also where the job throws, as LibTorch does when memory is short: whoever asks next would wait
  // for ever, and so would the end of the process.
  struct Holder {
    MasterLease& lease;
    ~Holder() { lease.give_back(); }
  };
  const Holder holder{*this};
  job(view_);
}

void MasterLease::give_back() {
  {
    const MutexLock lock(mutex_);
    ++served_;
  }
  turn_.notify_all();
}

}  // namespace starling::training
