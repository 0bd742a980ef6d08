// Which images of a batch a slice has: one of the parts in which threads or GPUs compute it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace starling::training {

// Where a slice lies in its batch.
struct SlicePlace {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

// Slice `number` of `images` in `count` slices that differ by one image at most.
[[nodiscard]] inline SlicePlace slice_place(std::size_t images, std::size_t number,
                                            std::size_t count) {
  const auto begin = static_cast<std::int64_t>(images * number / count);
  const auto end = static_cast<std::int64_t>(images * (number + 1) / count);
  return {begin, end - begin};
}

}  // namespace starling::training
