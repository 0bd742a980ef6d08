#include "training/cuda/pinned_memory.h"

#include <cuda_runtime_api.h>

namespace starling::training::cuda {

namespace {

void* take_pinned(std::size_t bytes, int device) {
  void* memory = nullptr;
  // Without the first call the memory would belong to device 0, which may be somebody else's.
  if (cudaSetDevice(device) != cudaSuccess) return nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) != cudaSuccess) return nullptr;
  return memory;
}
void give_pinned(void* bytes) { (void)cudaFreeHost(bytes); }

}  // namespace

HostMemory pinned_memory(int device) {
  return {.take = take_pinned, .give = give_pinned, .device = device};
}

}  // namespace starling::training::cuda
