// SpaceToDepth: the first convolution of a model on images whose blocks of 2 x 2 pixels are
// channels.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/models/network.h"

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace starling::training::cuda {

// A convolution of 7 x 7 with stride 2 on three channels fits no matrix unit: a GPU pads the
// channels at every step and multiplies zeros. On blocks it is one of 4 x 4 with stride 1 on 16
// channels, 12 of them used, with the same products: a GPU's fast case.
//
// Symbols: o output, k of 7 rows, j = k + 1 of 8 whose first is zero, j = 2a + p. Output row o sees
// image rows 2o + k - 3 = 2(o + a - 2) + p, so row p of block row o + a - 2, which lies at o + a:
// see ImageLayout::blocks. Columns are the same.
//
// Holds a weight and a gradient of its own, which stand for those of the model's stem. Owned by who
// computes; works on any device and in a CUDA graph, on the current stream.
// Cost:    a copy of the stem's weight and gradient, one launch for each of them in a step; images
//          take 16 values for the 12 of a block.
class SpaceToDepth {
 public:
  // Whether the stem of such a model can have images of this side so.
  [[nodiscard]] static bool fits(const ModelPlan& plan, std::int64_t side);

  // The model's own: O,C,7,7 with channels_last strides. Takes their place where they are used:
  // `stem` becomes the wiring of the convolution on blocks.
  SpaceToDepth(UnitWiring& stem, std::vector<at::Tensor>& weights,
               std::vector<at::Tensor>& gradients);

  // Before a forward pass: from the model's weight to that of the blocks.
  void write_weight();
  // After a backward pass: from the gradient of the blocks' weight to that of the model's.
  void read_gradient();

  // Room for so many images, with the zeros that nobody writes: n x 16 x positions x positions,
  // channels_last.
  [[nodiscard]] static at::Tensor make_images(std::int64_t count, std::int64_t side,
                                              const at::TensorOptions& options);
  // From n x C x side x side, on any device and of any type.
  static void write_images(const at::Tensor& images, const at::Tensor& blocks);

 private:
  // As matrices, a row for each output channel: the model's and the blocks'.
  at::Tensor weight_;
  at::Tensor gradient_;
  at::Tensor block_weight_;
  at::Tensor block_gradient_;
  at::Tensor places_;  // where in a row of the blocks' each value of a row of the model's lies
};

}  // namespace starling::training::cuda
