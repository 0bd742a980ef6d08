// A batch as tensors, checked against the model.
//
// Includes torch: for this folder's .cc files only.
#pragma once

#include "node/base/result.h"
#include "training/data/loader.h"
#include "training/models/plan.h"

#include <torch/torch.h>

namespace starling::training {

struct BatchTensors {
  at::Tensor images;  // N x C x H x W, channels_last strides, fp32
  at::Tensor labels;  // N, int64
};

// What a batch of images should look like.
//
// Errors:  data_failed if the batch is empty, too short for its size, or a label is not below the
//          number of classes.
[[nodiscard]] Result<void> check_batch(const Batch& batch, const ModelSpec& spec, Doing doing);
// Pixels a side of its images.
[[nodiscard]] std::int64_t side_of(const Batch& batch, const ModelSpec& spec);

// Views of the batch's memory (copies of it on CUDA, and where it holds pixels): the batch must
// outlive their use.
//
// Errors:  those of check_batch().
[[nodiscard]] Result<BatchTensors> tensors_of(const Batch& batch, const ModelSpec& spec,
                                              const at::Device& device, Doing doing);

}  // namespace starling::training
