#include "training/cuda/pinned_memory.h"

#include "training/cuda/device_memory.h"

#include <cuda_runtime_api.h>

namespace starling::training::cuda {

namespace {

void* take_pinned(std::size_t bytes, int device) {
  void* memory = nullptr;
  const MutexLock lock(memory_mutex());
  // Without the first call the memory would belong to device 0, which may be somebody else's.
  if (cudaSetDevice(device) == cudaSuccess &&
      cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) == cudaSuccess)
    return memory;
  // The runtime keeps the error, and the next launch of this thread would be told of it.
  (void)cudaGetLastError();
  return nullptr;
}
void give_pinned(void* bytes, int device) {
  const MutexLock lock(memory_mutex());
  // On a thread that has named no device the runtime would make device 0 ready for this.
  (void)cudaSetDevice(device);
  if (cudaFreeHost(bytes) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace

HostMemory pinned_memory(int device) {
  return {.take = take_pinned, .give = give_pinned, .device = device};
}

}  // namespace starling::training::cuda
