// Arbitrary bytes as a delta of any level: refused, or decoded alike on every path.
#include "tests/fuzz/delta_fuzz.h"

using namespace starling;
using namespace starling::gossip;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Layout layout = fuzzing::make_layout();
  fuzzing::Input input(data, size);
  const Level level = input.level();
  const Bytes bytes = input.rest();

  const auto view = parse_delta(layout, level, bytes);
  if (!view) {
    STARLING_CHECK(view.error().code == Errc::bad_message);
    return 0;
  }
  STARLING_CHECK(bytes.size() <= max_bytes(layout, level));
  (void)fuzzing::decode_everywhere(*view);
  return 0;
}
