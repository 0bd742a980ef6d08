// MasterPort: how codec jobs reach the fp32 master parameters, which training owns.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace starling::gossip {

// What one holder of the lease sees. Valid until the callback returns.
struct MasterView {
  // The replica x in canonical order, padded (Layout::size() values); padding is zero.
  std::span<float> parameters;
  // Running statistics of all BatchNorm layers, one entry a channel, in canonical order of their
  // names.
  std::span<float> bn_mean;
  std::span<float> bn_variance;
};

// The master parameters and their lease: one user at a time, the optimizer pass or one codec job
// (rulings 1). What the callback adds to the parameters is in the next working copy that the
// optimizer pass writes.
//
// Thread:  any; blocks while another holder has the lease (one pass over the model at most).
class MasterPort {
 public:
  virtual ~MasterPort() = default;
  virtual void with_master(const std::function<void(MasterView)>& job) = 0;
};

}  // namespace starling::gossip
