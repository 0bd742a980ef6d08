// What members say about the admin's word: a state machine that hears anything keeps its list and
// its secret, and what it reads, written again, is the same.
#include "node/access/spread.h"
#include "node/base/bytes.h"
#include "node/base/check.h"
#include "transport/identity.h"
#include "transport/message.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

namespace starling::node {
namespace {

transport::Identity identity(unsigned char number) {
  return transport::Identity::from_seed(std::array<std::byte, 32>{std::byte{number}});
}

void check_codecs(ByteView bytes) {
  if (const auto facts = decode_facts(bytes))
    STARLING_CHECK(std::ranges::equal(encode_facts(*facts), bytes));
  if (const auto held = decode_held(bytes))
    STARLING_CHECK(std::ranges::equal(encode_held(*held), bytes));
}

// Messages of two peers: type and size, then so many bytes; a tick now and then.
void check_events(ByteReader reader) {
  const transport::Ed25519Verifier verifier;
  const auto self = identity(1);
  const auto secret = transport::SwarmSecret::parse(std::string(43, 'A')).value();
  Spread spread({identity(200).id(), secret.swarm(), self, verifier, std::chrono::hours(24)});
  TimePoint now{};
  (void)spread.on_files(now, {}, {secret, false, false});
  const std::array peers{identity(2).id(), identity(3).id()};
  for (const auto& peer : peers) (void)spread.on_session_up(now, peer);
  while (const auto head = reader.read<std::uint8_t>()) {
    const auto size = reader.read<std::uint8_t>();
    const auto body = size ? reader.take(*size) : std::nullopt;
    if (!body) break;
    const auto type = static_cast<std::uint16_t>(transport::kAccessFactsMessage + (*head >> 1) % 4);
    check_codecs(*body);
    (void)spread.on_message(now, peers[*head % 2], type, *body);
    now += std::chrono::milliseconds(*head) * 10;
    (void)spread.on_tick(now, {.alive = {peers[0]}, .known = {peers[0], peers[1]}});
  }
  // Nothing of it was signed by this admin.
  STARLING_CHECK(spread.revocations().number == 0);
  STARLING_CHECK(spread.epoch() == 0);
}

}  // namespace
}  // namespace starling::node

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  const auto bytes = std::as_bytes(std::span(data, size));
  node::check_codecs(bytes);
  node::check_events(ByteReader(bytes));
  return 0;
}
