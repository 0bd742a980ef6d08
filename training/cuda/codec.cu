#include "training/cuda/hardware.h"
#include "training/cuda/launch_codec.h"

namespace starling::training::cuda {
namespace {

// Threads of a block of 4,096 values, and of a pass over all blocks.
constexpr unsigned kBlockThreads = 256;
constexpr unsigned kBlockWarps = kBlockThreads / kWarp;
constexpr unsigned kFoldThreads = 1'024;
// Threads of a block of which a hundred values or so are touched.
constexpr unsigned kListThreads = 64;
// Few blocks are looked at, and many wait for it: as many threads as leave room for others.
constexpr unsigned kLookThreads = 512;

// How many wholes of `size` hold n.
constexpr std::uint32_t wholes(std::uint32_t n, std::uint32_t size) {
  return (n + size - 1) / size;
}

// Whether all other thread blocks have been here before: what they wrote can be read then.
__device__ bool is_last(std::uint32_t* count) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(count, 1) + 1 == gridDim.x;
    if (last) *count = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

__global__ void __launch_bounds__(kLookThreads) look_kernel(EncodeArgs args) {
  __shared__ CoderMemory memory;
  let_next_kernel_begin();
  with_crew([&](GpuCrew& crew) {
    look_at_drift(crew, memory, args, blockIdx.x);
    if (is_last(args.looked)) find_drift(crew, args);
  });
}

// What is left of a kernel's thread blocks beside trials: first one for each small block, then
// those of kBlockWarps blocks that have thresholds.
STARLING_BOTH inline std::uint32_t sparse_tasks(const BlockShapes& shapes) {
  return shapes.blocks - shapes.first_small + wholes(shapes.first_small, kBlockWarps);
}

// A warp a block, by its threshold; then all together those that are left: also a small one, or a
// trial.
__global__ void __launch_bounds__(kBlockThreads, 4) encode_sparse_kernel(EncodeArgs args) {
  __shared__ union {
    CoderMemory coder;
    ThresholdMemory of_warps[kBlockWarps];
  } memory;
  __shared__ CrewMemory warp_memory[kBlockWarps];
  __shared__ std::uint32_t left;  // a bit for each block
  const CrewTask task = task_of(blockIdx.x, trials(args.sampled), sparse_tasks(args.shapes));
  const std::uint32_t small = args.shapes.blocks - args.shapes.first_small;
  const bool by_warps = !task.is_trial && task.number >= small;
  const std::uint32_t first =
      by_warps ? (task.number - small) * kBlockWarps : args.shapes.first_small + task.number;
  let_next_kernel_begin();
  with_crew([&](GpuCrew& crew) {
    crew.once([&] { left = by_warps ? 0 : 1; });
    if (by_warps)
      with_warp(warp_memory, [&](WarpCrew& own, unsigned warp) {
        if (first + warp >= args.shapes.first_small) return;
        wait_for_kernel_before();  // for the drift
        const bool done = encode_by_threshold(own, memory.of_warps[warp], args, first + warp);
        own.once([&] {
          if (!done) atomicOr(&left, 1U << warp);
        });
      });
    __syncthreads();
    for (std::uint32_t rest = left; rest != 0; rest &= rest - 1)
      do_job(crew, memory.coder, args,
             task.is_trial ? job_of_trial(args, task.number)
                           : job_of_block(args, first + __ffs(rest) - 1));
  });
}

__global__ void __launch_bounds__(kBlockThreads, 4) encode_dense_kernel(EncodeArgs args) {
  __shared__ CoderMemory memory;
  const CrewTask task = task_of(blockIdx.x, trials(args.sampled), args.shapes.blocks);
  let_next_kernel_begin();
  with_crew([&](GpuCrew& crew) {
    do_job(crew, memory, args,
           task.is_trial ? job_of_trial(args, task.number) : job_of_block(args, task.number));
  });
}

// The figures, and the bytes: a crew finds the places of a stretch of blocks, its warps copy.
__global__ void __launch_bounds__(kFoldThreads)
    gather_kernel(EncodeArgs args, std::uint8_t* delta, DeltaFigures* figures) {
  static_assert(kStretch == kFoldThreads / kWarp);
  __shared__ StretchPlaces places;
  __shared__ CrewMemory warp_memory[kStretch];
  wait_for_kernel_before();
  with_crew([&](GpuCrew& crew) {
    if (blockIdx.x < kFigureParts) return add_figures(crew, args, blockIdx.x, figures);
    const std::uint32_t stretch = blockIdx.x - kFigureParts;
    place_stretch(crew, places, args, stretch);
    with_warp(warp_memory, [&](WarpCrew& own, unsigned warp) {
      const std::uint32_t block = stretch * kStretch + warp;
      if (block < args.shapes.blocks) gather_block(own, places, args, block, delta);
    });
  });
}

__global__ void __launch_bounds__(kBlockThreads)
    exchange_kernel(ExchangeArgs args, std::uint32_t first) {
  __shared__ ExchangeMemory memory;
  with_crew([&](GpuCrew& crew) { exchange_block(crew, memory, args, first + blockIdx.x); });
}

__global__ void __launch_bounds__(kListThreads) exchange_sparse_kernel(ExchangeArgs args) {
  __shared__ SparseMemory memory;
  with_crew([&](GpuCrew& crew) { exchange_sparse_block(crew, memory, args, blockIdx.x); });
}

__global__ void __launch_bounds__(kFoldThreads)
    distances_kernel(const double* distances, std::uint32_t blocks, double* out) {
  with_crew([&](GpuCrew& crew) { sum_distances(crew, distances, blocks, out); });
}

__global__ void __launch_bounds__(kBlockThreads) install_kernel(InstallArgs args) {
  __shared__ ExchangeMemory memory;
  with_crew([&](GpuCrew& crew) { install_block(crew, memory, args, blockIdx.x); });
}

}  // namespace

const char* launch_encode(const EncodeArgs& args, std::uint8_t* delta, DeltaFigures* figures,
                          Stream stream) {
  const std::uint32_t tried = trials(args.sampled);
  const char* wrong = nullptr;
  if (gossip::is_sparse(args.level)) {
    look_kernel<<<args.sampled.count(), kLookThreads, 0, stream>>>(args);
    wrong = launch_result();
    if (wrong == nullptr)
      wrong = launch_early(encode_sparse_kernel, tried + sparse_tasks(args.shapes), kBlockThreads,
                           stream, args);
  } else {
    encode_dense_kernel<<<tried + args.shapes.blocks, kBlockThreads, 0, stream>>>(args);
    wrong = launch_result();
  }
  if (wrong != nullptr) return wrong;
  return launch_early(gather_kernel, kFigureParts + wholes(args.shapes.blocks, kStretch),
                      kFoldThreads, stream, args, delta, figures);
}

const char* launch_exchange(const ExchangeArgs& args, double* distance, Stream stream) {
  const bool sparse = gossip::is_sparse(args.lower.level) && gossip::is_sparse(args.higher.level);
  const std::uint32_t first_dense = sparse ? args.shapes.first_small : 0;
  if (first_dense != 0) exchange_sparse_kernel<<<first_dense, kListThreads, 0, stream>>>(args);
  if (const char* wrong = launch_result()) return wrong;
  if (first_dense != args.shapes.blocks)
    exchange_kernel<<<args.shapes.blocks - first_dense, kBlockThreads, 0, stream>>>(args,
                                                                                    first_dense);
  if (const char* wrong = launch_result()) return wrong;
  distances_kernel<<<1, kFoldThreads, 0, stream>>>(args.distances, args.shapes.blocks, distance);
  return launch_result();
}

const char* launch_install(const InstallArgs& args, Stream stream) {
  install_kernel<<<args.shapes.blocks, kBlockThreads, 0, stream>>>(args);
  return launch_result();
}

}  // namespace starling::training::cuda
