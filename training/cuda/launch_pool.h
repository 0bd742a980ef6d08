// Launches the max pool behind the stem's normalisation, along with that normalisation's relu.
//
// Shared rules of launches: launch_optimizer.h; of normalisations: launch_norm.h. A layer has fewer
// than 2^32 packs of pooled values.
// Tested:  tests/training/cuda/pool_test.cc (on a CPU, against training/cpu/norm.h), gpu_test.cc.
#pragma once

#include "training/cuda/launch_norm.h"
#include "training/cuda/pool_passes.h"

#include <cstdint>

namespace starling::training::cuda {

// A normalisation whose statistics launch_norm_measure() found. `partials` has room for kMostChunks
// chunks.
struct PoolLayer {
  PoolShape shape;
  NormLearned learned;
  NormLines lines;
  float* partials;
};

// y = the largest values of the windows, and where they came from.
//
// Cost:    reads x once, writes y and a byte for each of its values once.
template <class T>
[[nodiscard]] const char* launch_pool_apply(const PoolLayer& layer, const T* x, T* y,
                                            std::uint8_t* places, Stream stream);

template <class T>
struct PoolBackward {
  PoolGradientOf<T> of;
  T* dx;  // may be x
};
// Turns the gradient of the pooled values into the one before the normalisation, and fills the
// gradients of the learned values. Differs from what a max pool and then launch_norm_backward()
// give by the rounding of the gradient between them, which is left out.
//
// Cost:    reads x, g and the places twice, writes dx once.
template <class T>
[[nodiscard]] const char* launch_pool_backward(const PoolLayer& layer, const PoolBackward<T>& args,
                                               Stream stream);

extern template const char* launch_pool_apply(const PoolLayer&, const float*, float*, std::uint8_t*,
                                              Stream);
extern template const char* launch_pool_apply(const PoolLayer&, const Bf16*, Bf16*, std::uint8_t*,
                                              Stream);
extern template const char* launch_pool_backward(const PoolLayer&, const PoolBackward<float>&,
                                                 Stream);
extern template const char* launch_pool_backward(const PoolLayer&, const PoolBackward<Bf16>&,
                                                 Stream);

}  // namespace starling::training::cuda
