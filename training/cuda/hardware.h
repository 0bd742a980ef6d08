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

// Thread blocks of 256 that walk over n items: enough to fill any GPU, few enough to start fast.
inline constexpr unsigned kWalkThreads = 256;
inline unsigned walk_blocks(std::size_t n) {
  constexpr std::size_t kMostBlocks = 132 * 16;
  const std::size_t blocks = (n + kWalkThreads - 1) / kWalkThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < kMostBlocks ? blocks : kMostBlocks);
}

}  // namespace starling::training::cuda
