// Network: the forward pass of a plan, without values of its own.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "training/models/tensor_table.h"
#include "training/models/wiring.h"

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace starling::training {

// The tensors that a network computes with: views of somebody's flat arena.
struct Weights {
  std::vector<at::Tensor> parameters;  // in the order of Layout::tensors()
  std::vector<at::Tensor> means;       // in the order of Model::norms
  std::vector<at::Tensor> variances;
};

enum class Mode : std::uint8_t {
  training,    // normalises with the batch's own statistics and moves the running ones
  evaluation,  // normalises with the running statistics; changes nothing
};

// Knows which tensor each layer uses. Owned by whoever computes; immutable, any number of weights
// and threads may use one.
class Network {
 public:
  explicit Network(const Model& model);

  // The logits.
  //
  // Shapes:  images is N x channels x H x W in any layout, fp32; the result is N x classes, fp32.
  // Rule:    convolutions compute in the type of their weights (fp32 or bf16); normalisations keep
  //          fp32 statistics; the mean over the image and the last layer are fp32.
  // Cost:    keeps the activations for the backward pass where gradients are wanted, which can be
  //          in training only.
  [[nodiscard]] at::Tensor forward(const Weights& weights, const at::Tensor& images,
                                   Mode mode) const;

 private:
  [[nodiscard]] static at::Tensor normalised(const Weights& weights, const UnitWiring& unit,
                                             const at::Tensor& x, Mode mode);
  [[nodiscard]] static at::Tensor residual(const Weights& weights, const BlockWiring& block,
                                           const at::Tensor& x, Mode mode);

  Wiring wiring_;
};

}  // namespace starling::training
