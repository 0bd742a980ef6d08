// Arena: master, momenta, gradients and working copy of one model as flat memory of the host.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "node/base/team.h"
#include "training/engine.h"
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
// Cost: master, momenta, gradients and working copy: 16 bytes a parameter in fp32, 12 in bf16; 4
// or 2 more for every further set of gradients.
class Arena {
 public:
  // `momenta` is empty (zero) or has the size of the parameters.
  Arena(const Model& model, const ResolvedDevice& device, const Replica& replica,
        std::span<const float> momenta);

  [[nodiscard]] MasterLease& lease() { return lease_; }
  // What forward computes with.
  [[nodiscard]] const Weights& weights() const { return working_.weights(); }

  // One set of gradients for each slice of a batch: views in the order of Layout::tensors(). A set
  // is made when it is first asked for, and stays.
  [[nodiscard]] const std::vector<at::Tensor>& gradients(std::size_t set);
  // Whether all values of a set are finite numbers. Any thread, for sets that exist.
  [[nodiscard]] bool gradients_finite(std::size_t set) const;

  // The optimizer pass over the master with the sum of the first `sets` gradients, under the lease;
  // then the working copy is that of the new master, and the statistics of the forward pass are in
  // the master's. The threads of `team`, if there is one, share the work.
  //
  // Rule:    statistics: with r before and r' after the forward pass and M the master's now (a
  // codec
  //          job may have pooled it meanwhile), M := r' + (1 - momentum) (M - r): what one update
  //          with this batch makes of M. Never below zero for a variance.
  [[nodiscard]] PassTimes optimizer_pass(const Rates& rates, std::size_t sets = 1,
                                         Team* team = nullptr);
  // Undoes what a forward pass did to the statistics: a step that is skipped leaves no trace.
  void discard_statistics();

  // Replaces all values between two steps; momenta become zero.
  void adopt(const Replica& replica);

  // Copies of the master (under the lease, from any thread) and of the momenta (train thread).
  [[nodiscard]] Replica snapshot();
  [[nodiscard]] std::vector<float> momenta() const;

 private:
  struct GradientSet {
    at::Tensor big;
    at::Tensor small;
    std::vector<at::Tensor> views;
  };

  [[nodiscard]] GradientSet make_set();
  // The stretch of one part that one thread of the optimizer pass walks over.
  struct Stretch {
    const WorkingPart& part;
    at::Tensor GradientSet::* gradients;
    std::size_t begin;  // in the part
    std::size_t size;
  };
  [[nodiscard]] static Stretch stretch_of(const WorkingPart& part,
                                          at::Tensor GradientSet::* gradients, std::size_t number,
                                          std::size_t shares);
  void pass_stretch(const Stretch& stretch, std::size_t sets, const SgdStep& step);
  template <class T>
  void pass_stretch_of(const Stretch& stretch, std::size_t sets, const SgdStep& step);
  void merge_statistics();

  at::Tensor master_;  // host, fp32, Layout::size() values
  at::Tensor momenta_;
  std::vector<float> bn_mean_;  // the master's
  std::vector<float> bn_variance_;
  std::vector<float> mean_before_;  // what the working copy had before the forward pass
  std::vector<float> variance_before_;
  std::int64_t batches_tracked_ = 0;  // guarded by the lease, like the statistics

  WorkingCopy working_;
  std::vector<gossip::TensorPlace> places_;  // of the views
  std::vector<GradientSet> gradients_;
  MasterLease lease_;
};

}  // namespace starling::training
