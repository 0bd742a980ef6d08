#include "gossip/consensus/messages.h"

#include <string_view>

namespace starling::gossip::consensus {
namespace {

// The bytes under a signature: fixed-width fields in the order of the struct, after the fingerprint
// of the settings. Only the variable-length last field of a statement may lack a count.
class Signed {
 public:
  explicit Signed(const Hash& fingerprint) : writer_(bytes_) { add(fingerprint); }

  template <class Tag>
  Signed& add(const Id32<Tag>& id) {
    writer_.append(id.view());
    return *this;
  }
  Signed& add(std::uint64_t number) {
    writer_.write(number);
    return *this;
  }
  Signed& add(const RoundId& round) {
    return add(static_cast<std::uint64_t>(round.run.kind))
        .add(round.run.number)
        .add(round.epoch.value);
  }
  Signed& add(std::string_view text) { return add(as_bytes(text)); }
  Signed& add(ByteView bytes) {
    writer_.append(bytes);
    return *this;
  }
  Statement under(std::string_view domain) { return {domain, std::move(bytes_)}; }

 private:
  Bytes bytes_;
  ByteWriter writer_;
};

}  // namespace

RunId run_of(const ConsensusMessage& message) {
  return std::visit(
      [](const auto& m) -> RunId {
        if constexpr (requires { m.round; }) {
          return m.round.run;
        } else if constexpr (requires { m.number; }) {
          return {RunKind::merge, m.number};
        } else {
          return {};
        }
      },
      message);
}

bool says_the_same(const Participants& a, const Participants& b) {
  return a.count == b.count && a.set == b.set && a.graph == b.graph;
}

bool says_the_same(const HashSignature& a, const HashSignature& b) {
  return a.claim == b.claim && a.hash == b.hash;
}

Verdict check(const Equivocation& message, const Verifier& verifier, const Hash& fingerprint) {
  return std::visit(
      [&](const auto& pair) {
        const auto& [first, second] = pair;
        const bool contradiction = first.signer == second.signer && first.round == message.round &&
                                   second.round == message.round && !says_the_same(first, second);
        if (!contradiction) return Verdict::invalid;
        if (check(first, first.signer, verifier, fingerprint) != Verdict::valid)
          return Verdict::invalid;
        return check(second, second.signer, verifier, fingerprint);
      },
      message.proof);
}

Statement statement_of(const Finish& message, const Hash& fingerprint) {
  Signed bytes(fingerprint);
  bytes.add(message.round)
      .add(message.revision)
      .add(message.signer)
      .add(message.fingerprint)
      .add(static_cast<std::uint64_t>(message.reason))
      .add(static_cast<std::uint64_t>(message.role))
      .add(static_cast<std::uint64_t>(message.rule))
      .add(message.weight)
      .add(message.samples)
      .add(message.sessions.size());
  for (const auto& id : message.sessions) bytes.add(id);
  if (message.order) bytes.add(message.order->view());
  return bytes.under("starling/consensus/finish/1");
}

Statement statement_of(const Participants& message, const Hash& fingerprint) {
  return Signed(fingerprint)
      .add(message.round)
      .add(message.signer)
      .add(message.count)
      .add(message.set)
      .add(message.graph)
      .under("starling/consensus/participants/1");
}

Statement statement_of(const HashSignature& message, const Hash& fingerprint) {
  return Signed(fingerprint)
      .add(message.round)
      .add(message.signer)
      .add(message.claim)
      .add(message.hash)
      .under("starling/consensus/hash/1");
}

Statement statement_of(const Refusal& message, const Hash& fingerprint) {
  return Signed(fingerprint)
      .add(message.round)
      .add(message.signer)
      .add(static_cast<std::uint64_t>(message.reason))
      .add(static_cast<std::uint64_t>(message.rule))
      .add(message.chunk)
      .add(message.accused)
      .under("starling/consensus/refusal/1");
}

Statement statement_of(const Acknowledge& message, const Hash& fingerprint) {
  return Signed(fingerprint)
      .add(message.round)
      .add(message.signer)
      .add(message.hash)
      .under("starling/consensus/acknowledge/1");
}

Statement statement_of(const MergeRequest& message, const Hash& fingerprint) {
  return Signed(fingerprint)
      .add(message.number)
      .add(message.signer)
      .under("starling/consensus/merge-request/1");
}

Statement statement_of(const MergeAbort& message, const Hash& fingerprint) {
  return Signed(fingerprint)
      .add(message.number)
      .add(message.signer)
      .add(std::string_view(message.reason))
      .under("starling/consensus/merge-abort/1");
}

Statement statement_of(const ResultChunk& message, const Hash& fingerprint) {
  return Signed(fingerprint)
      .add(message.round)
      .add(message.chunk)
      .add(message.hash)
      .under("starling/consensus/result/1");
}

}  // namespace starling::gossip::consensus
