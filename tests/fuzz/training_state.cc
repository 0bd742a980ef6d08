// Any bytes as state.json: refused, or the same state when it is written and read again.
#include "node/base/check.h"
#include "training/checkpoint.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::training;
  const auto parsed = parse_state(as_text(std::as_bytes(std::span(data, size))));
  if (!parsed) return 0;
  const auto again = parse_state(format_state(*parsed));
  STARLING_CHECK(again.has_value());
  STARLING_CHECK(again->state == parsed->state);
  return 0;
}
