#include "training/cuda/hardware.h"
#include "training/cuda/launch_norm.h"

namespace starling::training::cuda {
namespace {

// Crews on a unit: what NormPlan counts on.
constexpr unsigned kCrews = 3;

template <class T>
__global__ void __launch_bounds__(kNormThreads, kCrews)
    measure_kernel(NormPlan plan, const T* x, float* partials) {
  __shared__ NormMemory memory;
  with_crew([&](GpuCrew& crew) {
    measure_chunk(crew, memory, NormChunk{plan, blockIdx.x, partials}, x);
  });
}

template <class T>
__global__ void __launch_bounds__(kFoldThreads)
    settle_kernel(NormPlan plan, float* partials, NormChannels<T> norm) {
  __shared__ FoldMemory memory;
  with_crew([&](GpuCrew& crew) {
    settle_channels(crew, memory, NormFold{plan, partials, blockIdx.x * kFoldChannels}, norm);
  });
}

template <class T>
__global__ void __launch_bounds__(kWalkThreads)
    apply_kernel(NormApply<T> args, std::uint8_t* open, std::uint32_t channels, std::size_t packs) {
  walk(packs, [&](std::size_t i) { apply_pack(args, open, channels, i); });
}

template <bool kOpen, class T>
__global__ void __launch_bounds__(kNormThreads, kCrews)
    gradient_sums_kernel(NormPlan plan, float* partials, GradientSums<T> args) {
  __shared__ NormMemory memory;
  with_crew([&](GpuCrew& crew) {
    gradient_chunk<kOpen>(crew, memory, NormChunk{plan, blockIdx.x, partials}, args);
  });
}

__global__ void __launch_bounds__(kFoldThreads)
    settle_gradient_kernel(NormPlan plan, float* partials, NormLearned learned, NormLines lines) {
  __shared__ FoldMemory memory;
  with_crew([&](GpuCrew& crew) {
    settle_gradients(crew, memory, NormFold{plan, partials, blockIdx.x * kFoldChannels}, learned,
                     lines);
  });
}

template <class T>
__global__ void __launch_bounds__(kWalkThreads)
    gradient_kernel(NormGradient<T> args, std::uint32_t channels, std::size_t packs) {
  walk(packs, [&](std::size_t i) { gradient_pack(args, channels, i); });
}

template <class T>
std::size_t packs_of(const NormLayer<T>& layer) {
  return layer.shape.rows * layer.shape.channels / kNormPack;
}

unsigned folds_of(const NormPlan& plan) {
  return (plan.channels + kFoldChannels - 1) / kFoldChannels;
}

}  // namespace

template <class T>
const char* launch_norm_measure(const NormLayer<T>& layer, Stream stream) {
  const NormPlan plan = NormPlan::make(layer.shape);
  measure_kernel<<<plan.chunks, kNormThreads, 0, stream>>>(plan, layer.channels.x, layer.partials);
  if (const char* wrong = launch_result()) return wrong;
  settle_kernel<<<folds_of(plan), kFoldThreads, 0, stream>>>(plan, layer.partials, layer.channels);
  return launch_result();
}

template <class T>
const char* launch_norm_apply(const NormLayer<T>& layer, const NormApply<T>& args,
                              std::uint8_t* open, Stream stream) {
  const std::size_t packs = packs_of(layer);
  apply_kernel<<<walk_blocks(packs), kWalkThreads, 0, stream>>>(
      args, open, static_cast<std::uint32_t>(layer.shape.channels), packs);
  return launch_result();
}

const char* launch_norm_settle_gradient(const NormPlan& plan, float* partials,
                                        const NormLearned& learned, const NormLines& lines,
                                        Stream stream) {
  settle_gradient_kernel<<<folds_of(plan), kFoldThreads, 0, stream>>>(plan, partials, learned,
                                                                      lines);
  return launch_result();
}

template <class T>
const char* launch_norm_backward(const NormLayer<T>& layer, const NormBackward<T>& args,
                                 Stream stream) {
  const NormPlan plan = NormPlan::make(layer.shape);
  const auto& [x, learned, lines, epsilon] = layer.channels;
  // With `open` g is gated by the sums' pass.
  const bool by_line = args.open == nullptr && args.relu;
  const NormGate<T> line{nullptr, by_line ? lines.scale : nullptr, by_line ? lines.shift : nullptr};
  const GradientSums<T> sums{x, args.g, args.more, lines.mean, args.open, line};
  const auto kernel =
      args.open == nullptr ? &gradient_sums_kernel<false, T> : &gradient_sums_kernel<true, T>;
  kernel<<<plan.chunks, kNormThreads, 0, stream>>>(plan, layer.partials, sums);
  if (const char* wrong = launch_result()) return wrong;
  if (const char* wrong = launch_norm_settle_gradient(plan, layer.partials, learned, lines, stream))
    return wrong;
  const NormGradient<T> gradient{x, args.g, args.dx, lines.a, lines.b, lines.c, line};
  const std::size_t packs = packs_of(layer);
  gradient_kernel<<<walk_blocks(packs), kWalkThreads, 0, stream>>>(gradient, plan.channels, packs);
  return launch_result();
}

template const char* launch_norm_measure(const NormLayer<float>&, Stream);
template const char* launch_norm_measure(const NormLayer<Bf16>&, Stream);
template const char* launch_norm_apply(const NormLayer<float>&, const NormApply<float>&,
                                       std::uint8_t*, Stream);
template const char* launch_norm_apply(const NormLayer<Bf16>&, const NormApply<Bf16>&,
                                       std::uint8_t*, Stream);
template const char* launch_norm_backward(const NormLayer<float>&, const NormBackward<float>&,
                                          Stream);
template const char* launch_norm_backward(const NormLayer<Bf16>&, const NormBackward<Bf16>&,
                                          Stream);

}  // namespace starling::training::cuda
