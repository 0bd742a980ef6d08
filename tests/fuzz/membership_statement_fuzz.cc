// Records, accusations and reports: whatever parses encodes to the same bytes.
#include "gossip/membership/member_record.h"
#include "node/base/check.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto same = [&](const Bytes& back) {
    STARLING_CHECK(back.size() == size && std::equal(back.begin(), back.end(), bytes.begin()));
  };
  if (const auto record = gossip::parse_record(bytes)) {
    STARLING_CHECK(gossip::check_record(*record).has_value());
    same(gossip::encode_record(*record));
  }
  if (const auto accusation = gossip::parse_accusation(bytes))
    same(gossip::encode_accusation(*accusation));
  if (const auto report = gossip::parse_report(bytes)) same(gossip::encode_report(*report));
  return 0;
}
