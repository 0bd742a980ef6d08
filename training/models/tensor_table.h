// The tensors of a model: names and shapes as torchvision has them, and where they lie in the
// canonical vector.
#pragma once

#include "gossip/delta/layout.h"
#include "node/base/result.h"
#include "training/models/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace starling::training {

// A batch normalisation and where its statistics lie in the arrays of all layers.
struct NormSpec {
  std::string name;  // "layer1.0.bn2"
  std::int64_t channels = 0;
  std::int64_t offset = 0;
};

// A model without values: what every file, message and arena of a run agrees on.
//
// A value, made once from the settings; copied freely (some hundred names).
struct Model {
  ModelPlan plan;
  gossip::Layout layout;         // parameters in canonical order
  std::vector<NormSpec> norms;   // bytewise by name
  std::int64_t bn_channels = 0;  // sum over norms
};

// Names and shapes (O,I,H,W) of all parameters in the order of torchvision's state_dict.
[[nodiscard]] std::vector<gossip::TensorSpec> parameter_specs(const ModelPlan& plan);

// Errors:  those of make_plan().
[[nodiscard]] Result<Model> make_model(const ModelSpec& spec);

}  // namespace starling::training
