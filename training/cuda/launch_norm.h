// Launches batch normalisation with relu and residual, NHWC.
//
// Shared rules of launches: launch_optimizer.h. Shapes: rows x channels values, channels innermost,
// a multiple of 16 and at most kMostChannels; everything 32-byte aligned. `partials` has room for
// NormPlan::partials() floats and may be shared by all layers on one stream.
// Tested:  tests/training/cuda/norm_test.cc (on a CPU, against training/cpu/norm.h), gpu_test.cc.
// Source:  Ioffe & Szegedy 2015, "Batch normalization".
#pragma once

#include "training/cuda/launch_optimizer.h"
#include "training/cuda/norm_passes.h"

namespace starling::training::cuda {

template <class T>
struct NormLayer {
  NormShape shape;
  NormChannels<T> channels;
  float* partials;
};

// The statistics of channels.x, into channels.lines. Cost: reads x once.
template <class T>
[[nodiscard]] const char* launch_norm_measure(const NormLayer<T>& layer, Stream stream);

// y = normalised x, plus what is beside it, then relu; `open`, if not null, gets a bit for each
// value of y: whether it is above zero. Cost: reads x (and what is beside it) once, writes y once.
template <class T>
[[nodiscard]] const char* launch_norm_apply(const NormLayer<T>& layer, const NormApply<T>& args,
                                            std::uint8_t* open, Stream stream);

// What Norm::Backward is on a CPU.
template <class T>
struct NormBackward {
  T* g;                      // the gradient behind; with `open` it becomes the residual's gradient
  const T* more;             // added to g; only with `open`
  const std::uint8_t* open;  // what forward wrote, if it added a residual: the relu's gate
  T* dx;                     // may be x
  bool relu;
};
// Turns the gradient behind the normalisation into the one before it, and fills the gradients of
// the learned values. Cost: reads x and g twice (and more once), writes the gradient once.
template <class T>
[[nodiscard]] const char* launch_norm_backward(const NormLayer<T>& layer,
                                               const NormBackward<T>& args, Stream stream);

// The lines and the gradients of what is learned, from the chunks' partial sums. Of `plan` it takes
// the chunks, the channels, and as `rows` what the sums were summed over.
[[nodiscard]] const char* launch_norm_settle_gradient(const NormPlan& plan, float* partials,
                                                      const NormLearned& learned,
                                                      const NormLines& lines, Stream stream);

extern template const char* launch_norm_measure(const NormLayer<float>&, Stream);
extern template const char* launch_norm_measure(const NormLayer<Bf16>&, Stream);
extern template const char* launch_norm_apply(const NormLayer<float>&, const NormApply<float>&,
                                              std::uint8_t*, Stream);
extern template const char* launch_norm_apply(const NormLayer<Bf16>&, const NormApply<Bf16>&,
                                              std::uint8_t*, Stream);
extern template const char* launch_norm_backward(const NormLayer<float>&,
                                                 const NormBackward<float>&, Stream);
extern template const char* launch_norm_backward(const NormLayer<Bf16>&, const NormBackward<Bf16>&,
                                                 Stream);

}  // namespace starling::training::cuda
