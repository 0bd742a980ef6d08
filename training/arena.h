// Arena: master, momenta, gradients and working copy of one model as flat memory.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/lease.h"
#include "training/replica.h"
#include "training/working_copy.h"

#include <torch/torch.h>

#include <cstdint>
#include <span>
#include <vector>

namespace starling::training {

// All values of the replica that is being trained, in canonical order, padding zero throughout.
//
// Owned by the trainer. The train thread uses everything; other threads reach the master through
// lease() alone. The network computes with the working copy; gradients are views too, so that the
// optimizer pass is two ranges and no loop over tensors.
// Cost: master, momenta, gradients and working copy: 16 bytes a parameter in fp32, 12 in bf16.
//
// Traps, kept away from here: zero_grad() of torch drops the gradient views (we zero the memory
// instead); backward with create_graph replaces them; autograd does not notice writes between
// forward and backward (the optimizer pass comes after).
class Arena {
 public:
  // `momenta` is empty (zero) or has the size of the parameters.
  Arena(const Model& model, const ResolvedDevice& device, const Replica& replica,
        std::span<const float> momenta);

  [[nodiscard]] MasterLease& lease() { return lease_; }
  // What forward computes with. Every parameter wants gradients and has its view attached.
  [[nodiscard]] const Weights& weights() const { return working_.weights(); }
  [[nodiscard]] at::Device device() const { return working_.device(); }

  void zero_gradients();
  // Brings the gradients to the host, and says whether all are finite numbers.
  [[nodiscard]] bool collect_gradients();
  // Whether every parameter's gradient is still the view it was given.
  [[nodiscard]] bool gradients_in_place() const;

  struct Rates {
    SgdStep big;    // tensors of rank >= 2
    SgdStep small;  // the rest: no weight decay
  };
  struct PassTimes {
    double wait_s = 0;  // for the lease
    double hold_s = 0;
  };
  // The optimizer pass over the master, under the lease; then the working copy is that of the new
  // master, and the statistics of the forward pass are in the master's.
  //
  // Rule:    statistics: with r before and r' after the forward pass and M the master's now (a
  // codec
  //          job may have pooled it meanwhile), M := r' + (1 - momentum) (M - r): what one update
  //          with this batch makes of M. Never below zero for a variance.
  [[nodiscard]] PassTimes optimizer_pass(const Rates& rates);
  // Undoes what a forward pass did to the statistics: a step that is skipped leaves no trace.
  void discard_statistics();

  // Replaces all values between two steps; momenta become zero.
  void adopt(const Replica& replica);

  // Copies of the master (under the lease, from any thread) and of the momenta (train thread).
  [[nodiscard]] Replica snapshot();
  [[nodiscard]] std::vector<float> momenta() const;

 private:
  void attach_gradients(const Model& model);
  void pass_part(WorkingPart& part, const at::Tensor& gradients, const SgdStep& step);
  void merge_statistics();

  at::Tensor master_;  // host, fp32, Layout::size() values
  at::Tensor momenta_;
  std::vector<float> bn_mean_;  // the master's
  std::vector<float> bn_variance_;
  std::vector<float> mean_before_;  // what the working copy had before the forward pass
  std::vector<float> variance_before_;
  std::int64_t batches_tracked_ = 0;  // guarded by the lease, like the statistics

  WorkingCopy working_;
  at::Tensor big_gradients_;  // on the device
  at::Tensor small_gradients_;
  at::Tensor big_host_gradients_;  // the same tensors on a CPU
  at::Tensor small_host_gradients_;
  std::vector<at::Tensor> gradient_views_;
  MasterLease lease_;
};

}  // namespace starling::training
