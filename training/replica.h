// Replica: the values of a model, apart from any device: what is drawn, sent, saved and adopted.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace starling::training {

// The parameters and BatchNorm statistics of one model.
//
// A value. Whose truth: one node's at one step. Costs one vector of the model's size.
struct Replica {
  std::vector<float> parameters;     // canonical order, padded: Layout::size() values
  std::vector<float> bn_mean;        // one entry a channel, layers in bytewise order of their names
  std::vector<float> bn_variance;    // unbiased, as torch keeps it
  std::int64_t batches_tracked = 0;  // training steps that went into the statistics

  friend bool operator==(const Replica&, const Replica&) = default;
};

// A replica that nobody changes any more, so that whoever needs it needs no copy.
//
// Owners: whoever made it, and each job that still reads it.
using SharedReplica = std::shared_ptr<const Replica>;

}  // namespace starling::training
