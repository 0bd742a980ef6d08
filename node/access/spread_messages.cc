#include "node/access/spread_messages.h"

#include "node/base/check.h"
#include "transport/limits.h"

#include <algorithm>

namespace starling::node {

namespace {

namespace limits = transport::limits;

std::unexpected<Error> bad_spread(std::string_view what) {
  return fail(Errc::bad_message, Doing::reading_message, std::string(what));
}

void write_mark(ByteWriter& writer, const SecretMark& mark) {
  writer.write(mark.epoch);
  writer.append(mark.key);
}

// The caller knows that so many bytes are there.
SecretMark read_mark(ByteReader& reader) {
  SecretMark mark;
  mark.epoch = *reader.read<std::uint64_t>();
  std::ranges::copy(*reader.take(mark.key.size()), mark.key.begin());
  return mark;
}

}  // namespace

Bytes encode_facts(const AccessFacts& facts) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.append(facts.admin.view());
  writer.write(facts.revocations);
  write_mark(writer, facts.newest);
  writer.write(std::uint8_t{facts.rotating});
  STARLING_CHECK_OP(bytes.size(), ==, limits::kAccessFacts);
  return bytes;
}

Result<AccessFacts> decode_facts(ByteView bytes) {
  if (bytes.size() != limits::kAccessFacts) return bad_spread("access facts of another length");
  ByteReader reader(bytes);
  AccessFacts facts;
  facts.admin = *NodeId::from(*reader.take(32));
  facts.revocations = *reader.read<std::uint64_t>();
  facts.newest = read_mark(reader);
  const auto rotating = *reader.read<std::uint8_t>();
  if (rotating > 1) return bad_spread("access facts that neither rotate nor do not");
  facts.rotating = rotating == 1;
  return facts;
}

Bytes encode_held(const SecretHeld& held) {
  STARLING_CHECK_OP(held.holders.size(), <=, limits::kSecretHeldMany);
  Bytes bytes;
  ByteWriter writer(bytes);
  write_mark(writer, held.secret);
  for (const auto& [id, signature] : held.holders) {
    writer.append(id.view());
    writer.append(signature.view());
  }
  return bytes;
}

Result<SecretHeld> decode_held(ByteView bytes) {
  constexpr std::size_t kHead = 16;
  if (bytes.size() <= kHead || bytes.size() > limits::kMaxSecretHeld ||
      (bytes.size() - kHead) % limits::kSecretHeldEach != 0)
    return bad_spread("holders of a secret in another length");
  ByteReader reader(bytes);
  SecretHeld held;
  held.secret = read_mark(reader);
  while (reader.left() > 0) {
    const auto id = *NodeId::from(*reader.take(32));
    held.holders.emplace_back(id, *Signature::from(*reader.take(64)));
  }
  return held;
}

Bytes held_part(const SwarmId& swarm, const SecretMark& secret) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.append(swarm.view());
  write_mark(writer, secret);
  return bytes;
}

}  // namespace starling::node
