// A responder in each mode, and an initiator, against any bytes in any pieces: the first byte
// chooses.
#include "tests/fuzz/transport_keys.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::transport;
  if (size == 0) return 0;
  static FuzzSide sides[] = {FuzzSide(1, true), FuzzSide(1, false)};
  FuzzSide& side = sides[data[0] & 1U];
  side.replays = {};  // what one run saw is new to the next
  auto handshake = (data[0] & 2U) == 0 ? Handshake::respond(side.context())
                                       : Handshake::initiate(side.context(), {});
  (void)handshake.take_output();
  const std::size_t piece = 1U + (data[0] >> 2U);
  auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  while (!rest.empty()) {
    const auto part = rest.first(std::min(piece, rest.size()));
    if (!handshake.feed(kFuzzTime, part)) return 0;
    if (handshake.redeeming() && !handshake.on_redeemed(true)) return 0;
    // Ephemeral keys are fresh in every run, so nobody can have signed our transcript.
    if (handshake.done()) std::abort();
    rest = rest.subspan(part.size());
  }
  (void)handshake.on_end_of_stream();
  return 0;
}
