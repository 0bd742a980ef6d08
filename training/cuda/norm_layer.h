// DeviceNorm: one layer's normalisation on a GPU, as LayeredStep uses it.
//
// Includes torch: for this folder's .cc files only.
#pragma once

#include "training/cuda/launch_pool.h"
#include "training/models/plan.h"
#include "training/row_walk.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

// Throws what a launch said, as LibTorch throws: torch_guard.h makes an Error of it.
inline void launched(const char* wrong) { TORCH_CHECK(wrong == nullptr, wrong); }

// The memory of one layer, all on the device.
struct NormPlaces {
  std::size_t channels = 0;
  NormLearned learned;
  NormLines lines;
  float* partials = nullptr;  // shared by all layers
};

// Launches on the current stream, what an end_...() would be along with what comes before or behind
// it: rows come all at once. Lives as long as its layer; one thread.
template <class T>
class DeviceNorm {
 public:
  explicit DeviceNorm(const NormPlaces& places) : places_(places) {}

  struct Apply {
    const T* x = nullptr;
    const T* residual = nullptr;
    const DeviceNorm* residual_norm = nullptr;
    T* y = nullptr;
  };
  struct Backward {
    const T* x = nullptr;
    T* g = nullptr;
    const T* more = nullptr;
    const T* y = nullptr;
    T* dx = nullptr;
    bool relu = true;
  };
  // Of the max pool behind this layer.
  struct Pool {
    T* x = nullptr;       // becomes its own gradient
    T* pooled = nullptr;  // or its gradient
    std::uint8_t* places = nullptr;
  };

  void measure(const T* x, Rows rows) { launched(launch_norm_measure(layer(x, rows), stream())); }
  void end_measure(std::size_t /*rows*/) const {}
  void apply(const Apply& args, Rows rows) {
    const NormLines& own = places_.lines;
    const DeviceNorm* beside = args.residual_norm;
    const NormApply<T> what{args.x,
                            args.residual,
                            args.y,
                            own.scale,
                            own.shift,
                            beside == nullptr ? nullptr : beside->places_.lines.scale,
                            beside == nullptr ? nullptr : beside->places_.lines.shift};
    std::uint8_t* open = nullptr;
    if (args.residual != nullptr) {
      const auto packs = static_cast<std::int64_t>(rows.end * places_.channels / kNormPack);
      open_ = at::empty({packs}, at::TensorOptions(at::kByte).device(at::kCUDA));
      open = open_.data_ptr<std::uint8_t>();
    }
    launched(launch_norm_apply(layer(args.x, rows), what, open, stream()));
  }
  void sum_gradient(const Backward& /*args*/, Rows /*rows*/) const {}
  void end_gradient_sums(std::size_t /*rows*/) const {}
  // Sums, too, and so gates g.
  void gradient(const Backward& args, Rows rows) {
    const std::uint8_t* const open = args.y == nullptr ? nullptr : open_.data_ptr<std::uint8_t>();
    const NormBackward<T> what{args.g, args.more, open, args.dx, args.relu};
    launched(launch_norm_backward(layer(args.x, rows), what, stream()));
    open_.reset();
  }
  // What a pass that ended before gradient() has left.
  void release() { open_.reset(); }
  // Instead of apply(), and of what the backward pass has for it.
  void pool(const Pool& args, const ImageSizes& sizes) const {
    launched(launch_pool_apply(pool_layer(sizes), args.x, args.pooled, args.places, stream()));
  }
  void pool_gradient(const Pool& args, const ImageSizes& sizes) const {
    const PoolBackward<T> what{{args.x, args.pooled, args.places}, args.x};
    launched(launch_pool_backward(pool_layer(sizes), what, stream()));
  }

 private:
  [[nodiscard]] NormLayer<T> layer(const T* x, Rows rows) const {
    TORCH_CHECK(rows.begin == 0, "some rows of a device's normalisation, not all");
    return {{rows.end, places_.channels},
            {x, places_.learned, places_.lines, kNormEpsilon},
            places_.partials};
  }
  [[nodiscard]] PoolLayer pool_layer(const ImageSizes& sizes) const {
    const auto number = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
    return {
        {number(sizes.images), number(sizes.height), number(sizes.width), number(places_.channels)},
        places_.learned,
        places_.lines,
        places_.partials};
  }
  [[nodiscard]] static Stream stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

  NormPlaces places_;
  at::Tensor open_;  // between apply() with a residual and gradient(): the relu's gate, bits
};

}  // namespace starling::training::cuda
