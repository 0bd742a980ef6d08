#include "gossip/consensus/message_codec.h"

#include "gossip/consensus/certificate.h"
#include "node/base/random.h"
#include "tests/gossip/consensus/sample_messages.h"
#include "tests/gossip/consensus/signed_certificate.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace starling::gossip::consensus::testing {
namespace {

bool same_wire(const transport::Message& a, const transport::Message& b) {
  return a.type == b.type && a.body == b.body && std::ranges::equal(a.attached(), b.attached());
}

// Encodes a message that breaks a rule and expects it to be refused.
void check_refused(const ConsensusMessage& message) {
  CHECK_FALSE(decode(encode(message)).has_value());
}

}  // namespace

TEST_SUITE("gossip/consensus/message_codec") {
  TEST_CASE("every message comes back from the wire as it was") {
    for (const auto& message : sample_messages()) {
      CAPTURE(message.index());
      const auto wire = encode(message);
      CHECK(wire.room() == transport::Room::consensus);
      const auto back = decode(wire);
      REQUIRE(back.has_value());
      CHECK(back->index() == message.index());
      CHECK(same_wire(encode(*back), wire));
      CHECK(run_of(*back) == run_of(message));
    }
  }

  TEST_CASE("signatures survive the wire and belong to every field and to the swarm") {
    const FakeVerifier verifier;
    const Hash fingerprint = hash_of(as_bytes("hash"));
    for (const auto& message : sample_messages()) {
      const auto back = decode(encode(message));
      REQUIRE(back.has_value());
      std::visit(
          [&]<class M>(const M& m) {
            if constexpr (requires { m.signer; }) {
              CHECK(check(m, m.signer, verifier, fingerprint) == Verdict::valid);
              CHECK(check(m, m.signer, verifier, Hash{}) == Verdict::invalid);
              CHECK(check(m, node_id(77), verifier, fingerprint) == Verdict::invalid);
            } else if constexpr (std::is_same_v<M, Equivocation>) {
              CHECK(check(m, verifier, fingerprint) == Verdict::valid);
              auto same = m;
              std::visit([](auto& pair) { pair.second = pair.first; }, same.proof);
              CHECK(check(same, verifier, fingerprint) == Verdict::invalid);
            }
          },
          *back);
    }
  }

  TEST_CASE("the order in a Finish is under its signature, and there or not there") {
    const FakeVerifier verifier;
    const Hash fingerprint = hash_of(as_bytes("hash"));
    const auto samples = sample_messages();
    const auto valid = [&](const Finish& finish) {
      return check(finish, finish.signer, verifier, fingerprint) == Verdict::valid;
    };
    const auto back = decode(encode(samples.back()));
    REQUIRE(back.has_value());
    auto ordered = std::get<Finish>(*back);
    REQUIRE(ordered.order == std::get<Finish>(samples.back()).order);
    CHECK(valid(ordered));

    ordered.order->bytes[0] ^= std::byte{1};
    CHECK_FALSE(valid(ordered));
    ordered.order.reset();
    CHECK_FALSE(valid(ordered));
    auto plain = std::get<Finish>(samples.front());
    CHECK(valid(plain));
    plain.order = Signature{};
    CHECK_FALSE(valid(plain));
    CHECK_FALSE(std::get<Finish>(decode(encode(samples.front())).value()).order.has_value());
  }

  TEST_CASE("a message that breaks a rule of its type is refused") {
    const auto samples = sample_messages();
    auto finish = std::get<Finish>(samples[0]);
    const auto good = finish;
    finish.round.epoch = Epoch{0};
    check_refused(finish);
    finish.round.epoch = Epoch{kMaxEpoch + 1};
    check_refused(finish);
    finish = good;
    finish.weight = 0;
    check_refused(finish);
    finish.weight = kMaxWeight + 1;
    check_refused(finish);
    finish = good;
    std::swap(finish.sessions[0], finish.sessions[1]);
    check_refused(finish);
    finish.sessions = {good.signer};
    check_refused(finish);
    finish.sessions.clear();
    for (std::size_t k = 0; k <= kMaxListedSessions; ++k) finish.sessions.push_back(node_id(k + 9));
    std::ranges::sort(finish.sessions);
    check_refused(finish);
    finish = good;
    finish.round.run.number = 4;
    check_refused(finish);
    finish = good;
    finish.role = static_cast<Role>(2);
    check_refused(finish);
    auto participants = std::get<Participants>(samples[1]);
    participants.count = 0;
    check_refused(participants);
    participants.count = kMaxParticipants + 1;
    check_refused(participants);
    auto exponents = std::get<Exponents>(samples[2]);
    exponents.values = share({std::byte{255}});
    check_refused(exponents);
    auto sum = std::get<Sum>(samples[3]);
    sum.chunk = kMaxChunks;
    check_refused(sum);
    sum.chunk = 0;
    sum.values = share(Bytes(kMaxConsensusAttachment + 1));
    check_refused(sum);
    auto certificate = std::get<CertificateMessage>(samples[10]);
    certificate.certificate.model = "line\nbreak";
    check_refused(certificate);
    certificate = std::get<CertificateMessage>(samples[10]);
    std::swap(certificate.certificate.participants[0], certificate.certificate.participants[1]);
    check_refused(certificate);
    auto abort = std::get<MergeAbort>(samples[15]);
    abort.reason = std::string(kMaxAbortReason + 1, 'x');
    check_refused(abort);
  }

  TEST_CASE("an attachment that does not belong, or of another size than announced, is refused") {
    for (const auto& message : sample_messages()) {
      auto wire = encode(message);
      const bool is_certificate = std::holds_alternative<CertificateMessage>(message);
      if (wire.attachment && !is_certificate) continue;
      wire.attachment = share(Bytes(96));
      CHECK_FALSE(decode(wire).has_value());
      if (!is_certificate) continue;
      wire.attachment = nullptr;
      CHECK_FALSE(decode(wire).has_value());
    }
  }

  TEST_CASE("mutated and truncated bytes are refused or decode to something encodable") {
    Rng rng(5);
    for (const auto& message : sample_messages())
      for (int round = 0; round < 400; ++round) {
        auto wire = encode(message);
        const auto flips = 1 + rng.below(4);
        for (std::uint64_t k = 0; k < flips; ++k)
          wire.body[rng.below(wire.body.size())] ^= static_cast<std::byte>(1U << rng.below(8));
        if (round % 5 == 0) wire.body.resize(rng.below(wire.body.size()));
        if (round % 7 == 0) wire.type = static_cast<std::uint16_t>(0x0300 + rng.below(20));
        const auto back = decode(wire);
        if (back) CHECK(decode(encode(*back)).has_value());
      }
  }
}

TEST_SUITE("gossip/consensus/certificate") {
  TEST_CASE("a certificate verifies, and one with anything changed does not") {
    const FakeVerifier verifier;
    const Hash fingerprint = hash_of(as_bytes("settings"));
    std::vector<Hash> chunks{hash_of(as_bytes("a")), hash_of(as_bytes("b"))};
    const Hash manifest = hash_of(as_bytes("manifest"));
    Certificate good{.epoch = Epoch{2},
                     .fingerprint = fingerprint,
                     .hash = model_hash(manifest, chunks),
                     .set = hash_of(as_bytes("set")),
                     .participants = {node_id(1), node_id(2), node_id(3)},
                     .signatures = {},
                     .samples = 1000,
                     .model = "small"};
    sign_by_participants(good);
    REQUIRE(verify(good, fingerprint, verifier).has_value());
    REQUIRE(verify(CertificateMessage{good, manifest, chunks}, fingerprint, verifier).has_value());

    const auto refused = [&](auto&& change) {
      auto bad = good;
      change(bad);
      return !verify(bad, fingerprint, verifier).has_value();
    };
    CHECK(refused([](Certificate& c) { c.hash.bytes[0] ^= std::byte{1}; }));
    CHECK(refused([](Certificate& c) { c.epoch = Epoch{3}; }));
    CHECK(refused([](Certificate& c) { c.samples = 1001; }));
    CHECK(refused([](Certificate& c) { c.model = "large"; }));
    CHECK(refused([](Certificate& c) { c.set.bytes[0] ^= std::byte{1}; }));
    CHECK(refused([](Certificate& c) { c.fingerprint = {}; }));
    CHECK(refused([](Certificate& c) { c.signatures[1].bytes[0] ^= std::byte{1}; }));
    CHECK(refused([](Certificate& c) { c.signatures.pop_back(); }));
    CHECK(refused([](Certificate& c) {
      c.participants.pop_back();
      c.signatures.pop_back();
    }));
    CHECK(refused([](Certificate& c) { std::swap(c.participants[0], c.participants[1]); }));
    CHECK(refused([](Certificate& c) {
      c.participants.clear();
      c.signatures.clear();
    }));
    std::swap(chunks[0], chunks[1]);
    CHECK_FALSE(verify(CertificateMessage{good, manifest, chunks}, fingerprint, verifier));
  }
}

}  // namespace starling::gossip::consensus::testing
