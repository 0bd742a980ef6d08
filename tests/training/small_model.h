// The smallest model there is, for tests that need one and no training.
#pragma once

#include "training/models/tensor_table.h"

#include <doctest/doctest.h>

#include <utility>

namespace starling::training::testing {

[[nodiscard]] inline Model small_model() {
  auto model = make_model({"small", 10, 1, 28});
  REQUIRE(model.has_value());
  return *std::move(model);
}

}  // namespace starling::training::testing
