// PixelBatch: a batch as bytes, for a device that crops, mirrors, resizes and normalises by itself.
//
// One piece of memory, so that one copy moves all of it:
//   PixelPlace of every image | labels (int64) | parts, in any order
// A part is what of one image its view looks at, and the filters that Resampler would use on it;
// the views are drawn as for a batch of floats. So whoever carries the filters out in Resampler's
// order has Resampler's bits (training/cuda/input_passes.h: a GPU, and its twin on a CPU).
//
// C++20 without Result: .cu files include it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace starling::training {

// Where one image's part lies and what it is. Offsets are in bytes from the batch's first.
struct PixelPlace {
  // height x width x stored bytes. The filters lie behind them, so that where a span is shorter
  // than there are taps a thread may read as if it were not.
  std::uint64_t pixels = 0;
  std::uint64_t across = 0;  // for each column that the model sees a PixelSpan; then its weights
  std::uint64_t down = 0;    // for each row the same
  std::uint32_t width = 0;   // of the part
  // Bytes a pixel, 1 or 3. 0: the view is too large to be sent; at `pixels` lie the finished floats
  // (side x side x channels).
  std::uint32_t stored = 0;
  std::uint32_t across_taps = 0;  // weights a column
  std::uint32_t down_taps = 0;    // weights a row
};
// Which columns (or rows) of the part a target one is made of. Mirrored columns are in this order.
struct PixelSpan {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// What all images of a batch become: value = byte * gain - shift.
struct PixelForm {
  std::uint32_t side = 0;
  std::uint32_t channels = 0;  // 1 or 3
  std::array<float, 3> gain{};
  std::array<float, 3> shift{};
};

// Where the memory of batches comes from: the ordinary one, or one that a device copies from at
// full speed.
struct HostMemory {
  void* (*take)(std::size_t bytes, int device) = nullptr;  // null where there is none
  void (*give)(void* bytes, int device) = nullptr;
  int device = 0;
};
[[nodiscard]] HostMemory ordinary_memory();

// The bytes of a batch. Move-only; empty by default.
class PixelBatch {
 public:
  PixelBatch() = default;
  // Room for `images` places and labels, and `part_bytes` for each image's part.
  // Throws std::bad_alloc.
  PixelBatch(std::size_t images, std::size_t part_bytes, const HostMemory& memory);

  [[nodiscard]] bool empty() const { return data_ == nullptr; }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }
  [[nodiscard]] PixelPlace* places() const { return reinterpret_cast<PixelPlace*>(data_.get()); }
  [[nodiscard]] std::size_t labels_offset() const { return images_ * sizeof(PixelPlace); }
  [[nodiscard]] std::int64_t* labels() const {
    return reinterpret_cast<std::int64_t*>(data_.get() + labels_offset());
  }
  // Where the first part may begin; parts begin at multiples of kPixelAlignment.
  [[nodiscard]] std::size_t first_part() const;
  // How many images there is room for.
  [[nodiscard]] std::size_t images() const { return images_; }

  std::size_t used = 0;  // bytes from the first on that hold something
  PixelForm form;

 private:
  struct Give {
    void (*give)(void*, int);
    int device;
    void operator()(std::byte* bytes) const { give(bytes, device); }
  };
  std::unique_ptr<std::byte[], Give> data_;
  std::size_t capacity_ = 0;
  std::size_t images_ = 0;
};

// Where a batch begins, of floats as of bytes: a cache line.
inline constexpr std::align_val_t kBatchAlignment{64};
inline constexpr std::size_t kPixelAlignment = 16;
[[nodiscard]] constexpr std::size_t pixel_aligned(std::size_t bytes) {
  return (bytes + kPixelAlignment - 1) / kPixelAlignment * kPixelAlignment;
}

}  // namespace starling::training
