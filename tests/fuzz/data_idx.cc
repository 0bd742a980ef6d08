// Any bytes as an IDX file, plain or gzip.
#include "node/base/check.h"
#include "training/data/idx.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  constexpr std::uint64_t kLimit = 1 << 20;
  const auto array = training::parse_idx("fuzz", std::as_bytes(std::span(data, size)), kLimit);
  if (!array) return 0;
  std::uint64_t product = 1;
  for (const std::uint32_t extent : array->shape) product *= extent;
  STARLING_CHECK(product == array->bytes.size());
  STARLING_CHECK(product <= kLimit);
  return 0;
}
