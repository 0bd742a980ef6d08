// FlatVector: model-sized memory, aligned to a cache line, on huge pages where there are any.
#pragma once

#include "node/base/result.h"

#include <cstddef>
#include <memory>
#include <span>

namespace starling::gossip {

// A fixed number of floats, zero at first. Move-only; owned by whoever made it; one thread at a
// time.
class FlatVector {
 public:
  // Errors:  no_memory.
  [[nodiscard]] static Result<FlatVector> make(std::size_t size);

  [[nodiscard]] std::span<float> values() { return {data_.get(), size_}; }
  [[nodiscard]] std::span<const float> values() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(float* data) const;
  };
  FlatVector(float* data, std::size_t size) : data_(data), size_(size) {}

  std::unique_ptr<float, Free> data_;
  std::size_t size_;
};

}  // namespace starling::gossip
