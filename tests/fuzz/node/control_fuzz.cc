// Lines of the control socket, both ways: what is accepted comes back the same from its own line.
#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/control/request.h"
#include "node/printable.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::node;
  const auto line = as_text(std::as_bytes(std::span(data, size)));
  if (const auto request = parse_request(line)) {
    const auto encoded = encode_request(*request);
    STARLING_CHECK(encoded.find('\n') == encoded.size() - 1);
    const auto again = parse_request(std::string_view(encoded).substr(0, encoded.size() - 1));
    STARLING_CHECK(again.has_value() && encode_request(*again) == encoded);
  }
  if (const auto answer = parse_answer(line)) {
    const auto encoded = encode_answer(*answer);
    const auto again = parse_answer(std::string_view(encoded).substr(0, encoded.size() - 1));
    STARLING_CHECK(again.has_value() && again->kind == answer->kind);
  }
  const auto shown = printable(line);
  STARLING_CHECK(printable(shown) == shown);
  return 0;
}
