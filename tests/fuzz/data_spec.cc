// Any text as a data SPEC.
#include "node/base/check.h"
#include "training/data/spec.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::training;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto spec = parse_data_spec(text);
  if (!spec) {
    STARLING_CHECK(spec.error().code == Errc::bad_config);
    STARLING_CHECK(spec.error().detail.size() < 1'000);
    return 0;
  }
  STARLING_CHECK(spec->paths.size() <= kMaxShards);
  STARLING_CHECK(spec->paths.empty() == (spec->kind == DataKind::synthetic));
  return 0;
}
