#include "gossip/delta/flat_vector.h"

#include "node/base/bytes.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace starling::gossip {

namespace {
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}  // namespace

Result<FlatVector> FlatVector::make(std::size_t size) {
  const std::size_t wanted = size * sizeof(float);
  const std::size_t alignment = wanted >= 2 * kHugePage ? kHugePage : kCacheLine;
  const std::size_t bytes = (wanted + alignment - 1) / alignment * alignment;
  auto* data = static_cast<float*>(std::aligned_alloc(alignment, bytes == 0 ? alignment : bytes));
  if (data == nullptr)
    return fail(Errc::no_memory, Doing::exchanging,
                "no memory for a reference of " + std::to_string(wanted) + " bytes");
  if (alignment == kHugePage) prefer_huge_pages(data, bytes);
  std::memset(data, 0, wanted);
  return FlatVector(data, size);
}

void FlatVector::Free::operator()(float* data) const { std::free(data); }

}  // namespace starling::gossip
