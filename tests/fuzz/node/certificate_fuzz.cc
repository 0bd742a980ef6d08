// certificate.json: any text is a certificate or an error that names the field. What was read fits
// the bounds of the wire, and is written as a text that reads back as the same.
#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/final_result.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  const auto read = node::parse_certificate(as_text(std::as_bytes(std::span(data, size))));
  if (!read) {
    // Of a newer program, or damaged.
    const Errc code = read.error().code;
    STARLING_CHECK(code == Errc::corrupt || code == Errc::unsupported);
    STARLING_CHECK(read.error().detail.starts_with("certificate.json: "));
    return 0;
  }
  namespace consensus = gossip::consensus;
  STARLING_CHECK(read->certificate.participants.size() <= consensus::kMaxParticipants);
  STARLING_CHECK(read->certificate.signatures.size() <= consensus::kMaxParticipants);
  STARLING_CHECK(read->chunks.size() <= consensus::kMaxChunks);
  const auto again = node::parse_certificate(node::format_certificate(*read));
  STARLING_CHECK(again.has_value());
  STARLING_CHECK(again->certificate == read->certificate);
  STARLING_CHECK(again->manifest == read->manifest && again->chunks == read->chunks);
  return 0;
}
