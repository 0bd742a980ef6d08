#include "training/cpu/tensor_memory.h"

#include "training/cpu/block_cache.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstddef>

namespace starling::training {
namespace {

constinit BlockCache cache;

class TensorMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* block = bytes == 0 ? nullptr : cache.allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, bytes == 0 || block != nullptr,
                     "not enough memory for a tensor of ", bytes, " bytes");
    return {block, block, &release, c10::Device(c10::kCPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* block) { cache.release(block); }
};

}  // namespace

void use_cached_tensor_memory() {
  // Never destroyed: LibTorch's own static tensors are freed after every destructor of ours.
  static TensorMemory& memory = *new TensorMemory;
  c10::SetCPUAllocator(&memory);
}

void trim_tensor_memory() { (void)cache.trim(); }

std::size_t tensor_memory_bytes() { return cache.mapped_bytes(); }

}  // namespace starling::training
