// The threads of a GPU, for ThreadCrew. Included by .cu files only.
#pragma once

#include "training/cuda/crew.h"

#include <cstdint>

namespace starling::training::cuda {

// Warps are whole, in one dimension, and all lanes take part in every exchange.
struct GpuThreads {
  __device__ static unsigned index() { return threadIdx.x; }
  __device__ static unsigned count() { return blockDim.x; }
  __device__ static void barrier() { __syncthreads(); }
  template <class T>
  __device__ static T value_from_above(T value, unsigned far) {
    return __shfl_down_sync(kAll, value, far);
  }
  template <class T>
  __device__ static T value_from_below(T value, unsigned far) {
    return __shfl_up_sync(kAll, value, far);
  }
  template <class T>
  __device__ static T value_of(T value, unsigned lane) {
    return __shfl_sync(kAll, value, lane);
  }
  __device__ static std::uint32_t votes(bool vote) { return __ballot_sync(kAll, vote); }
  __device__ static void add(std::uint32_t& where, std::uint32_t n) { atomicAdd(&where, n); }
  __device__ static void set_bits(std::uint32_t& where, std::uint32_t bits) {
    atomicOr(&where, bits);
  }

 private:
  static constexpr unsigned kAll = 0xffff'ffffU;
};

using GpuCrew = ThreadCrew<GpuThreads>;

// body(crew) with this thread block's crew: once in a kernel.
template <class Body>
__device__ __forceinline__ void with_crew(Body body) {
  __shared__ CrewMemory memory;
  GpuThreads threads;
  GpuCrew crew(threads, memory);
  body(crew);
}

// One warp of a thread block, as a crew of its own.
struct WarpThreads : GpuThreads {
  __device__ static unsigned index() { return threadIdx.x % kWarp; }
  __device__ static constexpr unsigned count() { return kWarp; }
  __device__ static void barrier() { __syncwarp(); }
};
using WarpCrew = ThreadCrew<WarpThreads>;

// body(crew, number) with this warp's crew and its number in the thread block; one memory a warp.
template <class Body>
__device__ __forceinline__ void with_warp(CrewMemory* memories, Body body) {
  const unsigned number = threadIdx.x / kWarp;
  WarpThreads threads;
  WarpCrew crew(threads, memories[number]);
  body(crew, number);
}

// visit(i) for i in [0, n), shared by all threads of all thread blocks.
template <class Visit>
__device__ __forceinline__ void walk(std::size_t n, Visit visit) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step)
    visit(i);
}

// What the last launch said: null, or the runtime's words.
inline const char* launch_result() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// A kernel that launch_early() launches may begin before the one before it in the stream has ended:
// it reads nothing of what that one writes, and writes nothing that it reads, until it has waited.
// Both do nothing in code for GPUs before Hopper, where every kernel waits for the one before.
__device__ __forceinline__ void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
// From all thread blocks: the next kernel may begin as soon as there is room.
__device__ __forceinline__ void let_next_kernel_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
template <class... Args>
const char* launch_early(void (*kernel)(Args...), unsigned blocks, unsigned threads,
                         cudaStream_t stream, Args... args) {
  // What the kernel was compiled for decides whether it waits, whatever it runs on.
  cudaFuncAttributes compiled{};
  if (const cudaError_t error = cudaFuncGetAttributes(&compiled, kernel); error != cudaSuccess) {
    (void)cudaGetLastError();  // told once
    return cudaGetErrorString(error);
  }
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = compiled.ptxVersion >= 90 ? 1 : 0;
  (void)cudaLaunchKernelEx(&config, kernel, args...);
  return launch_result();
}

// Thread blocks of 256 that walk over n items: enough to fill any GPU, few enough to start fast.
inline constexpr unsigned kWalkThreads = 256;
inline unsigned walk_blocks(std::size_t n) {
  constexpr std::size_t kMostBlocks = 132 * 16;
  const std::size_t blocks = (n + kWalkThreads - 1) / kWalkThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMostBlocks ? blocks : kMostBlocks);
}

}  // namespace starling::training::cuda
