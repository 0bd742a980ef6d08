// What somebody who has all keys but those of the nodes under test says to them in a consensus.
#pragma once

#include "gossip/consensus/message_codec.h"
#include "gossip/consensus/packing.h"
#include "tests/fuzz/consensus_ends.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace starling::gossip::consensus::testing {

// Whom a Liar speaks to and as whom, and what it knows of its listener's end and merge.
struct Speech {
  NodeId self;
  std::set<NodeId> honest;  // it has no keys of these
  std::vector<NodeId> sessions;
  RoundId end;
  RoundId merge;
  Hash hash;
};

// Takes from an input what it says. Everything is signed well but for one in 32, which a listener
// has to find, and what it says in the name of honest nodes.
class Liar {
 public:
  explicit Liar(ByteReader& input) : input_(input) {}

  // Anything, whoever asked for it.
  ConsensusMessage say(const Speech& speech) {
    const RoundId round = round_of(speech);
    const NodeId author = byte() % 4 == 0 ? node_id(byte() % 6) : speech.self;
    const Hash hash = byte() % 2 == 0 ? speech.hash : invented_models()[byte() % 4].hashes[0];
    switch (byte() % 10) {
      case 0:
        return signed_as(author, speech, finish_of(round, speech));
      case 1:
        return signed_as(author, speech, Participants{round, {}, 1U + byte() % 4U, hash, hash, {}});
      case 2:
        return signed_as(author, speech, HashSignature{round, {}, hash, hash, {}});
      case 3: {
        Refusal refusal{round, {}, {}, {}, chunk(), node_id(byte() % 4), {}};
        refusal.reason = static_cast<RefusalReason>(byte() % 3);
        refusal.rule = static_cast<Rule>(byte() % 3);
        return signed_as(author, speech, refusal);
      }
      case 4:
      case 5:
        return signed_as(author, speech, Acknowledge{round, {}, hash, {}});
      case 6: {
        const auto one = signed_as(author, speech, HashSignature{round, {}, hash, hash, {}});
        const Hash other = our_manifest();
        return Equivocation{
            round,
            std::pair(one, signed_as(author, speech, HashSignature{round, {}, hash, other, {}}))};
      }
      case 7:
        if (byte() % 4 == 0)
          return signed_as(author, speech, MergeAbort{speech.merge.run.number, {}, "so", {}});
        return signed_as(author, speech, MergeRequest{1U + byte(), {}, {}});
      case 8:
        return Chunk{chunk(), hash, share(Bytes(byte()))};
      default:
        return ChunkRequest{round, chunk(), byte() % 4 == 0 ? Hash{} : hash};
    }
  }

  // What a node without a replica of this run would say to that, as well as it can.
  std::vector<ConsensusMessage> answer(const Speech& speech, const ConsensusMessage& heard) {
    return std::visit([&](const auto& message) { return reply(speech, message); }, heard);
  }

 private:
  using Messages = std::vector<ConsensusMessage>;

  std::uint8_t byte() { return input_.read<std::uint8_t>().value_or(0); }
  std::uint32_t chunk() { return byte() % (plan_.count() + 1); }
  RoundId round_of(const Speech& speech) {
    const std::uint8_t kind = byte();
    if (kind % 4 == 0 && speech.merge.run.number != 0) return speech.merge;
    if (kind % 4 == 1) return {{}, Epoch{1U + kind / 4 % kMaxEpoch}};
    return speech.end;
  }

  template <class Message>
  Message signed_as(const NodeId& author, const Speech& speech, Message message) {
    sign(message, FakeSigner(author), our_fingerprint());
    if (speech.honest.contains(author) || byte() % 32 == 31)
      message.signature.bytes[7] ^= std::byte{1};
    return message;
  }

  Finish finish_of(const RoundId& round, const Speech& speech) {
    Finish finish;
    finish.round = round;
    finish.revision = byte() % 4U;
    finish.fingerprint = our_fingerprint();
    finish.reason = static_cast<FinishReason>(byte() % 2);
    finish.role = byte() % 4 == 0 ? Role::follower : Role::participant;
    finish.sessions = speech.sessions;
    return finish;
  }

  Messages reply(const Speech& speech, const Finish& heard) {
    if (!speech.honest.contains(heard.signer)) return {};
    Finish own = heard;
    own.sessions = speech.sessions;
    if (byte() % 8 == 7) own.role = Role::follower;
    return {signed_as(speech.self, speech, own)};
  }
  // Whoever is below a node in a tree sends first.
  Messages reply(const Speech& speech, const Participants& heard) {
    if (!speech.honest.contains(heard.signer)) return {};
    Messages said{signed_as(speech.self, speech, heard)};
    for (std::uint32_t k = 0; k < plan_.count(); ++k)
      said.emplace_back(Exponents{heard.round, k, Direction::up, share(Bytes(plan_.exponents(k)))});
    return said;
  }
  Messages reply(const Speech& speech, const Exponents& heard) {
    if (heard.direction == Direction::up)
      return {Exponents{heard.round, heard.chunk, Direction::down, heard.values}};
    const std::size_t values = plan_.values(heard.chunk);
    const unsigned bits = sum_bits(plan_.kind(heard.chunk), 1);
    return {
        Sum{heard.round, heard.chunk, share(Bytes(packed_bytes(values, bits)))},
        Contribution{heard.round, heard.chunk, speech.self, share(Bytes(values * sizeof(float)))}};
  }
  Messages reply(const Speech& speech, const Sum& heard) {
    return {result(speech, {heard.round, heard.chunk}, plan_.packed_result_bytes(heard.chunk))};
  }
  Messages reply(const Speech& speech, const Contribution& heard) {
    return {result(speech, {heard.round, heard.chunk}, plan_.result_bytes(heard.chunk))};
  }
  // Of zeros, as its root.
  ConsensusMessage result(const Speech& speech, const JobTarget& target, std::size_t bytes) {
    const Hash hash = tree_hash_of(Bytes(plan_.result_bytes(target.chunk)));
    return signed_as(speech.self, speech,
                     ResultChunk{target.round, target.chunk, hash, {}, share(Bytes(bytes))});
  }
  Messages reply(const Speech& speech, const HashSignature& heard) {
    if (!speech.honest.contains(heard.signer)) return {};
    return {signed_as(speech.self, speech, heard)};
  }
  Messages reply(const Speech& speech, const CertificateMessage& heard) {
    const auto& chunks = heard.chunks;
    const std::uint32_t wanted = byte() % static_cast<std::uint32_t>(chunks.size());
    if (byte() % 2 == 0) return {ChunkRequest{speech.end, wanted, chunks[wanted]}};
    const RoundId round{{}, heard.certificate.epoch};
    return {signed_as(speech.self, speech, Acknowledge{round, {}, heard.certificate.hash, {}})};
  }
  Messages reply(const Speech&, const ChunkRequest& heard) {
    auto bytes = find_invented(heard.chunk, heard.hash);
    if (!bytes) return {};
    if (byte() % 16 == 15) bytes->back() ^= std::byte{1};
    return {Chunk{heard.chunk, heard.hash, share(*std::move(bytes))}};
  }
  template <class Message>
  Messages reply(const Speech&, const Message&) {
    return {};
  }

  ByteReader& input_;
  ChunkPlan plan_{kSmallShape};
};

}  // namespace starling::gossip::consensus::testing
