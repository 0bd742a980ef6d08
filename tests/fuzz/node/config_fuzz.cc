// Configuration files: any bytes are a configuration or an error, and what was read shows as a text
// that reads back.
#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/config/keys.h"
#include "node/config/load.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::node;
  const auto text = as_text(std::as_bytes(std::span(data, size)));
  Config config;
  const auto read = apply_toml(config, text, "fuzz.toml");
  if (!read) {
    STARLING_CHECK(!read.error().detail.empty());
    return 0;
  }
  for (const auto& [name, origin] : config.origins) {
    const auto* key = find_key(name);
    STARLING_CHECK(key != nullptr);
    const auto texts = key->show(config);
    Config again;
    STARLING_CHECK(key->read(again, texts).has_value());
    STARLING_CHECK(key->show(again) == texts);
  }
  return 0;
}
