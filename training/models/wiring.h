// Wiring: which tensor each layer of a model uses, as indices. Network and Slice both follow it.
#pragma once

#include "training/models/tensor_table.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace starling::training {

// A convolution and the normalisation behind it.
struct UnitWiring {
  std::size_t conv = 0;  // in Layout::tensors(), like the next two
  std::size_t norm_weight = 0;
  std::size_t norm_bias = 0;
  std::size_t norm = 0;  // in Model::norms
  std::int64_t stride = 1;
  std::int64_t padding = 0;
};

struct BlockWiring {
  std::vector<UnitWiring> units;
  Shortcut shortcut = Shortcut::identity;
  UnitWiring projection;  // only where shortcut is Shortcut::projection
};

struct Wiring {
  Stem stem_kind = Stem::imagenet;
  UnitWiring stem;
  std::vector<BlockWiring> blocks;
  std::size_t fc_weight = 0;
  std::size_t fc_bias = 0;
};

[[nodiscard]] Wiring wiring_of(const Model& model);

}  // namespace starling::training
