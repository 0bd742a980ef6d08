// Engine: where a replica lives and learns, the CPU's memory and cores or a GPU's.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "gossip/delta/master.h"
#include "gossip/delta/vectors.h"
#include "training/data/loader.h"
#include "training/optimizer.h"
#include "training/replica.h"

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace starling::training {

// What the optimizer pass needs.
struct Rates {
  SgdStep big;    // tensors of rank >= 2
  SgdStep small;  // the rest: no weight decay
};
struct PassTimes {
  double wait_s = 0;  // for the lease
  double hold_s = 0;
};

// Master, momenta, gradients and working copy of one replica, and what computes with them.
//
// Owned by the stepper; lives on the train thread, except for master() and snapshot(), which any
// thread may use. Throws what LibTorch throws.
class Engine {
 public:
  virtual ~Engine() = default;

  struct Outcome {
    double loss = 0;      // mean over the batch
    bool finite = false;  // the loss, all gradients and the statistics
  };
  // Forward and backward; the gradients stay here for the optimizer pass. Nothing where they were
  // dropped: a CPU looks at `drop` between layers, a GPU's step is too short for it. Then no trace
  // is left.
  //
  // Errors:  those of check_batch().
  [[nodiscard]] virtual Result<std::optional<Outcome>> compute(const Batch& batch,
                                                               double label_smoothing,
                                                               const std::atomic<bool>& drop) = 0;
  // Begins to bring a batch to the device while the one before it is computed, where there is
  // something to bring. The batch stays where it is until its compute(), or until the engine is
  // gone.
  virtual void stage(const Batch&) {}
  // Waits for what stage() began and forgets it: those batches are not computed any more.
  virtual void forget_staged() {}
  // The optimizer pass under the lease, and the batch's statistics into the master's.
  [[nodiscard]] virtual PassTimes optimizer_pass(const Rates& rates) = 0;
  // Instead of it, where the outcome was not finite: the last compute() leaves no trace.
  virtual void discard() = 0;

  // Replaces all values between two steps; momenta become zero.
  virtual void adopt(const Replica& replica) = 0;
  // Copies of the master, under the lease, and of the momenta (train thread).
  [[nodiscard]] virtual Replica snapshot() = 0;
  [[nodiscard]] virtual std::vector<float> momenta() = 0;
  [[nodiscard]] virtual gossip::MasterPort& master() = 0;
  // What codec jobs work on, where the master lies; any thread. The engine must outlive it.
  [[nodiscard]] virtual Result<std::unique_ptr<gossip::ReplicaVectors>> make_vectors() = 0;
};

}  // namespace starling::training
