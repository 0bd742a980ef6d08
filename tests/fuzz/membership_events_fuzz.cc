// A sequence of events for one Membership among seven others, three of which may have sessions and
// send anything, signed well or badly: nothing of it may break a CHECK, put a record into the table
// that its subject did not sign, use an incarnation that is not on the disk, or leave a deadline
// that a tick does not move.
#include "gossip/membership/membership.h"
#include "gossip/membership/message_codec.h"
#include "node/base/check.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace {

using namespace starling;
using namespace starling::gossip;
using consensus::testing::FakeSigner;
using consensus::testing::FakeVerifier;
using consensus::testing::node_id;

constexpr std::uint64_t kNodes = 8;  // number 0 is the one under test
constexpr std::uint64_t kPeers = 3;

class Bench {
 public:
  explicit Bench(ByteView input)
      : input_(input), node_(now_, {SwarmId{}, self(), {}, signer_, verifier_}, Rng(1)) {}

  void run() {
    for (int events = 0; events < 300 && input_.left() > 0; ++events) {
      event();
      check();
    }
  }

 private:
  static SelfDescription self() {
    SelfDescription self;
    self.name = "here";
    self.addresses = {"10.0.0.1:7700"};
    self.instance = {42};
    self.ceiling = {20};  // low, so that it is reached
    return self;
  }
  std::uint8_t byte() { return input_.read<std::uint8_t>().value_or(0); }
  NodeId any() { return node_id(byte() % kNodes); }
  NodeId peer() { return node_id(1 + byte() % kPeers); }

  void take(MembershipEffects effects) {
    for (const auto& outgoing : effects.send) {
      STARLING_CHECK(node_.has_session(outgoing.to));
      auto decoded = decode_membership(encode(outgoing.message));
      STARLING_CHECK_OP(decoded ? "" : to_string(decoded.error()), ==, "");
      STARLING_CHECK(*decoded == outgoing.message);
      if (const auto* asked = std::get_if<BucketRequest>(&outgoing.message)) nonce_ = asked->nonce;
      if (const auto* probe = std::get_if<ProbeRequest>(&outgoing.message)) nonce_ = probe->nonce;
    }
    if (effects.persist_incarnation) wanted_ = *effects.persist_incarnation;
  }

  void event() {
    switch (byte() % 16) {
      case 0:
      case 1:
        return take(node_.on_session_up(now_, peer()));
      case 2:
        return take(node_.on_session_down(now_, peer(), static_cast<SessionEnd>(byte() % 4)));
      case 3:
      case 4:
        return tick();
      case 5:
        return take(byte() % 2 == 0 ? node_.on_dial_refused(now_, any())
                                    : node_.on_dial_failed(now_, any()));
      case 6:
        return take(node_.on_heard(now_, peer(), Traffic::use));
      case 7:
        return own();
      case 8:
        return take(node_.on_message(now_, peer(), many_names()));
      default:
        return receive();
    }
  }

  // What the codec refuses does not get as far as a Membership.
  void receive() {
    const auto decoded = decode_membership(encode(message()));
    if (decoded) take(node_.on_message(now_, peer(), *decoded));
  }

  void tick() {
    now_ += std::chrono::milliseconds(5) * (1 << (byte() % 20));
    for (int ticks = 0; ticks < 4; ++ticks) {
      take(node_.on_tick(now_));
      if (node_.next_deadline() > now_) return;
    }
    STARLING_CHECK(node_.next_deadline() > now_);
  }

  void own() {
    switch (byte() % 6) {
      case 0:
        return take(node_.set_state(now_, RecordState::alive));
      case 1:
        return take(node_.set_state(now_, RecordState::joining));
      case 2:
        samples_ += byte() * 100U;
        return node_.on_local_samples(now_, samples_);
      case 3: {
        Hash settings;
        settings.bytes[0] = static_cast<std::byte>(byte() % 3);
        if (settings != node_.self().settings) total_ = 0;  // P is of what is trained
        return take(node_.set_settings(now_, settings));
      }
      case 4:
        return take(node_.set_degree(now_, byte() % 20U));
      default:
        if (!wanted_) return;
        ceiling_ = std::max(ceiling_, *wanted_);
        return take(node_.on_incarnations_persisted(now_, *std::exchange(wanted_, std::nullopt)));
    }
  }

  MembershipMessage message() {
    switch (byte() % 12) {
      case 0:
        return Heartbeat{.seq = byte(), .view = byte() % 2U};
      case 1:
        return HeartbeatAck{byte()};
      case 2:
        return ProbeRequest{byte(), any()};
      case 3:
        return ProbeReply{nonce_, any(), static_cast<ProbeVerdict>(1 + byte() % 3)};
      case 4: {
        Digest digest;
        digest.buckets.fill(byte());
        digest.wants_reply = byte() % 2 == 0;
        return digest;
      }
      case 5: {
        BucketRequest request;
        request.nonce = 1U + byte();
        request.buckets.set();
        request.after = any();
        return request;
      }
      case 6: {
        Facts facts;
        for (int i = 0; i < 8; ++i) (i % 2 == 0 ? facts.has : facts.wants).push_back(name());
        return facts;
      }
      default:
        return facts();
    }
  }

  // Up to all that a body of 16 KiB holds where it leaves out what encode() writes in any case.
  Facts many_names() {
    Facts facts;
    auto& names = byte() % 2 == 0 ? facts.has : facts.wants;
    const auto kind = byte() % 4 == 0 ? FactName::Kind::report : FactName::Kind::record;
    for (std::uint64_t left = 4U * byte(); left > 0; --left) names.push_back({left, kind, 1});
    return facts;
  }

  FactName name() {
    return {prefix_of(any()), byte() % 2 == 0 ? FactName::Kind::record : FactName::Kind::report,
            number()};
  }

  Facts facts() {
    Facts facts;
    const std::uint8_t shape = byte();
    if ((shape & 1U) != 0) facts.answers = nonce_;
    if ((shape & 2U) != 0) facts.more_after = any();
    for (int i = 0; i < (shape >> 2 & 3); ++i) facts.records.push_back(record());
    for (int i = 0; i < (shape >> 4 & 3); ++i) facts.accusations.push_back(accusation());
    for (int i = 0; i < (shape >> 6); ++i) facts.reports.push_back(report());
    return facts;
  }

  // Small numbers meet what the node holds, the rest is far away.
  std::uint64_t number() {
    const std::uint8_t value = byte();
    return value < 200 ? value % 32 : std::uint64_t{1} << (value % 62);
  }
  bool damaged() { return byte() % 8 == 0; }

  AgedRecord record() {
    const FakeSigner signer(any());
    MemberRecord record;
    record.id = signer.id();
    record.incarnation = {1 + number()};
    record.instance = {byte() % 3U};
    record.state = static_cast<RecordState>(1 + byte() % 3);
    const std::uint8_t kind = byte();
    record.capabilities = kind % 2U;
    if (kind % 4 != 0) record.addresses = {"10.0.0." + std::to_string(kind) + ":7700"};
    record.settings.bytes[0] = static_cast<std::byte>((kind >> 6) % 3);
    sign_record(record, SwarmId{}, signer);
    if (damaged()) record.instance = {77};
    return {std::move(record), static_cast<std::uint32_t>(number())};
  }

  Accusation accusation() {
    const FakeSigner signer(any());
    Accusation accusation;
    accusation.subject = any();
    accusation.accuser = signer.id();
    const auto held = node_.find(accusation.subject);
    accusation.incarnation = byte() % 4 == 0 ? Incarnation{number()}
                             : held          ? held->record.incarnation
                                             : node_.self().incarnation;
    accusation.kind = static_cast<AccusationKind>(1 + byte() % 2);
    accusation.evidence = static_cast<Evidence>(1 + byte() % 5);
    sign_accusation(accusation, SwarmId{}, signer);
    if (damaged()) accusation.signature = {};
    return accusation;
  }

  ProgressReport report() {
    const FakeSigner signer(any());
    ProgressReport report;
    report.id = signer.id();
    report.incarnation = {number()};
    report.samples = number();
    report.rate_millisamples = number();
    report.run_age_ms = number();
    sign_report(report, SwarmId{}, signer);
    if (damaged()) report.samples += 1;
    return report;
  }

  void check() {
    const auto members = node_.members();
    STARLING_CHECK(members.size() < kNodes);
    STARLING_CHECK(node_.alive_count() <= kNodes);
    for (const auto& member : members) {
      STARLING_CHECK(member.record.id != signer_.id());
      STARLING_CHECK(verify_record(member.record, SwarmId{}, verifier_) == Verdict::valid);
    }
    for (const auto& id : node_.neighbours())
      STARLING_CHECK(id != signer_.id() && node_.state_of(id).has_value());
    STARLING_CHECK(node_.self().incarnation >= incarnation_);
    STARLING_CHECK(node_.self().incarnation < ceiling_);
    incarnation_ = node_.self().incarnation;
    const std::uint64_t total = node_.progress().total(now_);
    STARLING_CHECK(total >= total_);
    total_ = total;
  }

  ByteReader input_;
  TimePoint now_ = TimePoint{} + std::chrono::hours(1000);
  FakeSigner signer_{node_id(0)};
  FakeVerifier verifier_;
  Membership node_;
  Incarnation incarnation_;
  Incarnation ceiling_{20};
  std::optional<Incarnation> wanted_;
  std::uint64_t nonce_ = 1;
  std::uint64_t samples_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bench(ByteView(reinterpret_cast<const std::byte*>(data), size)).run();
  return 0;
}
