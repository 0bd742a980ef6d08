#include "training/cuda/hardware.h"
#include "training/cuda/launch_pool.h"

namespace starling::training::cuda {
namespace {

// Thread blocks that a multiprocessor is to hold: as many as find registers for all loads of a
// thread at once. Memory is what bounds these kernels, and loads under way are what keeps it busy.
template <class T>
constexpr unsigned kApplyBlocks = sizeof(T) == 2 ? 4 : 2;
template <class T>
constexpr unsigned kGradientBlocks = sizeof(T) == 2 ? 3 : 2;

template <class T>
__global__ void __launch_bounds__(kWalkThreads, kApplyBlocks<T>)
    apply_kernel(PoolApply<T> args, PoolShape shape) {
  const std::size_t packs = shape.pooled_packs();
  walk(packs, [&](std::size_t i) { pool_pack(args, shape, static_cast<std::uint32_t>(i)); });
}

template <class T>
__global__ void __launch_bounds__(kNormThreads, kGradientBlocks<T>)
    gradient_sums_kernel(NormPlan plan, float* partials, PoolShape shape,
                         PoolGradientSums<T> args) {
  __shared__ NormMemory memory;
  with_crew([&](GpuCrew& crew) {
    pool_gradient_chunk(crew, memory, NormChunk{plan, blockIdx.x, partials}, shape, args);
  });
}

template <class T>
__global__ void __launch_bounds__(kWalkThreads, kGradientBlocks<T>)
    gradient_kernel(PoolGradient<T> args, PoolShape shape) {
  const std::size_t packs = shape.pooled_packs();
  walk(packs,
       [&](std::size_t i) { pool_gradient_pack(args, shape, static_cast<std::uint32_t>(i)); });
}

}  // namespace

template <class T>
const char* launch_pool_apply(const PoolLayer& layer, const T* x, T* y, std::uint8_t* places,
                              Stream stream) {
  const PoolApply<T> args{x, layer.lines.scale, layer.lines.shift, y, places};
  apply_kernel<<<walk_blocks(layer.shape.pooled_packs()), kWalkThreads, 0, stream>>>(args,
                                                                                     layer.shape);
  return launch_result();
}

template <class T>
const char* launch_pool_backward(const PoolLayer& layer, const PoolBackward<T>& args,
                                 Stream stream) {
  const auto& [shape, learned, lines, partials] = layer;
  NormPlan plan = NormPlan::make({shape.pooled_rows(), shape.channels});
  const PoolGradientSums<T> sums{args.of, lines.mean};
  gradient_sums_kernel<<<plan.chunks, kNormThreads, 0, stream>>>(plan, partials, shape, sums);
  if (const char* wrong = launch_result()) return wrong;
  plan.rows = shape.rows();  // that the sums were summed over
  if (const char* wrong = launch_norm_settle_gradient(plan, partials, learned, lines, stream))
    return wrong;
  const PoolGradient<T> gradient{args.of, args.dx, lines.a, lines.b, lines.c};
  gradient_kernel<<<walk_blocks(shape.pooled_packs()), kWalkThreads, 0, stream>>>(gradient, shape);
  return launch_result();
}

template const char* launch_pool_apply(const PoolLayer&, const float*, float*, std::uint8_t*,
                                       Stream);
template const char* launch_pool_apply(const PoolLayer&, const Bf16*, Bf16*, std::uint8_t*, Stream);
template const char* launch_pool_backward(const PoolLayer&, const PoolBackward<float>&, Stream);
template const char* launch_pool_backward(const PoolLayer&, const PoolBackward<Bf16>&, Stream);

}  // namespace starling::training::cuda
