#include "training/data/pixels.h"

namespace starling::training {

namespace {

void* take_ordinary(std::size_t bytes, int /*device*/) {
  return ::operator new(bytes, kBatchAlignment, std::nothrow);
}
void give_ordinary(void* bytes, int /*device*/) { ::operator delete(bytes, kBatchAlignment); }

}  // namespace

HostMemory ordinary_memory() { return {.take = take_ordinary, .give = give_ordinary}; }

PixelBatch::PixelBatch(std::size_t images, std::size_t part_bytes, const HostMemory& memory)
    : data_(nullptr, Give{memory.give, memory.device}), images_(images) {
  capacity_ = first_part() + images * pixel_aligned(part_bytes);
  data_.reset(static_cast<std::byte*>(memory.take(capacity_, memory.device)));
  if (data_ == nullptr) throw std::bad_alloc();
}

std::size_t PixelBatch::first_part() const {
  return pixel_aligned(labels_offset() + images_ * sizeof(std::int64_t));
}

}  // namespace starling::training
