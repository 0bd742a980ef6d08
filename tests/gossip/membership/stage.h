// One membership against peers that the test plays.
#pragma once

#include "tests/gossip/membership/test_swarm.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::gossip::testing {

// How many signatures were checked.
class CountingVerifier final : public Verifier {
 public:
  [[nodiscard]] Verdict verify(const NodeId& signer, std::string_view domain, ByteView message,
                               const Signature& signature) const override {
    ++asked;
    return TestVerifier{}.verify(signer, domain, message, signature);
  }
  mutable std::size_t asked = 0;
};

// One real membership; every other node is played by the test.
struct Stage {
  TestSigner signer{test_id(0)};
  CountingVerifier verifier;
  Membership node;

  explicit Stage(MembershipOptions options = {}, SelfDescription self = {})
      : node(kStart, {SwarmId{}, prepared(std::move(self)), options, signer, verifier}, Rng(1)) {
    (void)node.set_state(kStart, RecordState::alive);
  }
  static SelfDescription prepared(SelfDescription self) {
    self.name = "here";
    self.addresses = {"10.0.0.1:7700"};
    self.instance = {42};
    return self;
  }
};

inline MemberRecord record_of(std::uint64_t number, std::uint64_t incarnation = 1,
                              RecordState state = RecordState::alive) {
  const TestSigner signer(test_id(number));
  MemberRecord record;
  record.id = test_id(number);
  record.name = "node";
  record.addresses = {"10.0.0.9:7700"};
  record.capabilities = capability::kDialable;
  record.incarnation = {incarnation};
  record.instance = {number};
  record.state = state;
  sign_record(record, SwarmId{}, signer);
  return record;
}

inline Accusation accusation_of(std::uint64_t subject, std::uint64_t accuser, AccusationKind kind,
                                std::uint64_t incarnation = 1) {
  Accusation accusation;
  accusation.subject = test_id(subject);
  accusation.incarnation = {incarnation};
  accusation.accuser = test_id(accuser);
  accusation.kind = kind;
  sign_accusation(accusation, SwarmId{}, TestSigner(test_id(accuser)));
  return accusation;
}

inline Facts facts_of(std::vector<MemberRecord> records, std::vector<Accusation> accusations = {}) {
  Facts facts;
  for (auto& record : records) facts.records.push_back({std::move(record), 0});
  facts.accusations = std::move(accusations);
  return facts;
}

inline ProgressReport report_of(std::uint64_t number, std::uint64_t samples) {
  ProgressReport report{
      .id = test_id(number), .incarnation = {1}, .samples = samples, .signature = {}};
  sign_report(report, SwarmId{}, TestSigner(test_id(number)));
  return report;
}

inline Facts facts_of(const ProgressReport& report) {
  Facts facts;
  facts.reports.push_back(report);
  return facts;
}

inline Facts wanted(const FactName& name) {
  Facts facts;
  facts.wants.push_back(name);
  return facts;
}

// The last Facts for each peer.
inline std::map<NodeId, Facts> facts_by_peer(const MembershipEffects& effects) {
  std::map<NodeId, Facts> told;
  for (const auto& outgoing : effects.send)
    if (const auto* facts = std::get_if<Facts>(&outgoing.message)) told[outgoing.to] = *facts;
  return told;
}

inline Hash test_hash_like(std::uint8_t number) {
  Hash hash;
  hash.bytes[0] = std::byte{number};
  return hash;
}

template <class T>
std::size_t count_sent(const MembershipEffects& effects) {
  return static_cast<std::size_t>(std::ranges::count_if(effects.send, [](const auto& outgoing) {
    return std::holds_alternative<T>(outgoing.message);
  }));
}

// Four others are known, three of them by a session, and nothing waits to be told.
inline void meet_four(Stage& stage) {
  for (const std::uint64_t peer : {1U, 2U, 4U})
    (void)stage.node.on_session_up(kStart, test_id(peer));
  (void)stage.node.on_message(kStart, test_id(1),
                              facts_of({record_of(1), record_of(2), record_of(3), record_of(4)}));
  (void)stage.node.on_tick(kStart + milliseconds(300));
}

}  // namespace starling::gossip::testing
