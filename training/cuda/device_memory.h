// Memory, streams and errors of the CUDA runtime, owned. Free of torch.
#pragma once

#include "node/base/mutex.h"
#include "node/base/result.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

namespace starling::training::cuda {

// Errors:  no_memory where the device has none left, else device_failed with the runtime's words.
[[nodiscard]] inline Result<void> checked(cudaError_t error, Doing doing) {
  if (error == cudaSuccess) return {};
  // The runtime keeps it, and the next launch of this thread would be told of it as its own.
  (void)cudaGetLastError();
  const Errc code = error == cudaErrorMemoryAllocation ? Errc::no_memory : Errc::device_failed;
  return fail(code, doing, std::string("CUDA: ") + cudaGetErrorString(error));
}
// What a launch_ function returned.
[[nodiscard]] inline Result<void> checked(const char* wrong, Doing doing) {
  if (wrong == nullptr) return {};
  return fail(Errc::device_failed, doing, std::string("CUDA: ") + wrong);
}

// Held by whoever takes or gives back memory of a device, or pinned memory, and by whoever launches
// kernels on several devices that wait for each other. For memory the runtime may wait for all that
// runs on a device and on its peers, and hold up launches there meanwhile: of a collective that is
// launched on one device alone it would wait for ever (NVIDIA/nccl issue 744).
//
// Thread:  any. Taken last: whoever holds it takes no other lock of this tree, and waits for no
//          other thread. Where there is one GPU no step takes it.
[[nodiscard]] inline Mutex& memory_mutex() {
  static Mutex mutex;
  return mutex;
}

// A number of values in device memory, not initialised. Move-only.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  [[nodiscard]] static Result<DeviceArray> make(std::size_t count, Doing doing) {
    void* memory = nullptr;
    const MutexLock lock(memory_mutex());
    TRY_VOID(checked(cudaMalloc(&memory, count * sizeof(T)), doing));
    DeviceArray array;
    array.values_.reset(static_cast<T*>(memory));
    return array;
  }
  [[nodiscard]] T* get() const { return values_.get(); }

 private:
  struct Free {
    void operator()(T* values) const {
      const MutexLock lock(memory_mutex());
      (void)cudaFree(values);
    }
  };
  std::unique_ptr<T, Free> values_;
};

// Host memory that copies to and from the device at full speed, without a stop in between.
template <class T>
class PinnedArray {
 public:
  PinnedArray() = default;
  [[nodiscard]] static Result<PinnedArray> make(std::size_t count, Doing doing) {
    void* memory = nullptr;
    const MutexLock lock(memory_mutex());
    TRY_VOID(checked(cudaMallocHost(&memory, count * sizeof(T)), doing));
    PinnedArray array;
    array.values_.reset(static_cast<T*>(memory));
    return array;
  }
  [[nodiscard]] T* get() const { return values_.get(); }

 private:
  struct Free {
    void operator()(T* values) const {
      const MutexLock lock(memory_mutex());
      (void)cudaFreeHost(values);
    }
  };
  std::unique_ptr<T, Free> values_;
};

// A stream of its own, of the lowest priority: what trains goes first.
class SideStream {
 public:
  SideStream() = default;
  [[nodiscard]] static Result<SideStream> make(Doing doing) {
    int least = 0;
    int greatest = 0;
    TRY_VOID(checked(cudaDeviceGetStreamPriorityRange(&least, &greatest), doing));
    cudaStream_t stream = nullptr;
    TRY_VOID(checked(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, least), doing));
    SideStream side;
    side.stream_.reset(stream);
    return side;
  }
  [[nodiscard]] cudaStream_t get() const { return stream_.get(); }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const { (void)cudaStreamDestroy(stream); }
  };
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

}  // namespace starling::training::cuda
