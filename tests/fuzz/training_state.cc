// Any bytes as state.json, as they are and with the check that they should have: refused, or the
// same state when it is written and read again.
#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/json_depth.h"
#include "training/checkpoint.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace {

using namespace starling;
using namespace starling::training;
using Json = nlohmann::json;

std::string printed(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The check would stop every change: it is made right, as an author of bad files would. Empty for
// what cannot have one.
std::string checked(std::string_view text) {
  constexpr int kDeep = 16;  // printing is recursive, and parse_state() takes less
  if (!nests_at_most(text, kDeep)) return {};
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return {};
  json.erase("check");
  json["check"] = to_hex(hash_of(as_bytes(printed(json))).view());
  return printed(json);
}

void try_text(std::string_view text) {
  const auto parsed = parse_state(text);
  if (!parsed) return;
  const auto again = parse_state(format_state(*parsed));
  STARLING_CHECK(again.has_value());
  STARLING_CHECK(again->state == parsed->state);
  STARLING_CHECK(again->model_hash == parsed->model_hash);
  STARLING_CHECK(again->optimizer_hash == parsed->optimizer_hash);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text = as_text(std::as_bytes(std::span(data, size)));
  try_text(text);
  try_text(checked(text));
  return 0;
}
