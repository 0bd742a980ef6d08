// How statements travel: new ones are pushed to every session once, the rest is asked for bucket
// by bucket; and how many of them a peer may send.
#pragma once

#include "gossip/membership/messages.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace starling::gossip {

struct SpreadOptions {
  // New records and accusations that one peer may push: a bucket of `fact_burst` that fills at
  // `facts_per_second`. Answers that we asked for are not counted.
  double facts_per_second = 10;
  double fact_burst = 1000;
  // Progress reports: 64 a second is what an honest edge carries.
  double reports_per_second = 200;
  double report_burst = 4000;
  // Statements of one kind that wait to be pushed; more are left to the digests.
  std::size_t max_pending = 4096;
};

// Fills with time, empties with use.
class Allowance {
 public:
  Allowance(double per_second, double burst) : rate_(per_second), burst_(burst), left_(burst) {}
  [[nodiscard]] bool take(TimePoint now);

 private:
  double rate_;
  double burst_;
  double left_;
  TimePoint at_{};
};

// Splits statements into messages of at most kMaxFactsBytes.
[[nodiscard]] std::vector<Facts> split(const Facts& facts);
// Bytes that the statements take in a message.
[[nodiscard]] std::size_t wire_bytes(const AgedRecord& record);

// Waiting statements, and what each session may still send us.
//
// A value owned by Membership, on the io thread. Pending statements are flushed at the end of the
// event that brought them (routine: the next time that this node looks around), to every session
// but those that they came from: a peer that sends in the meantime what waits to be sent to it is
// not sent it.
class FactSpreader {
 public:
  explicit FactSpreader(SpreadOptions options) : options_(options) {}

  void on_session_up(const NodeId& peer);
  void on_session_down(const NodeId& peer);

  // Routine: reports, and records that say nothing but that their subject is still there.
  enum class Haste { at_once, routine };
  // `source` is the session it came from; our own id for our own statements.
  void push(const AgedRecord& record, const NodeId& source, Haste haste = Haste::at_once);
  void push(const Accusation& accusation, const NodeId& source);
  void push(const ProgressReport& report, const NodeId& source);
  // `peer` sent what was known already.
  void on_repeat(const AgedRecord& record, const NodeId& peer);
  void on_repeat(const ProgressReport& report, const NodeId& peer);

  enum class Urgency { facts_only, everything };
  struct Push {
    NodeId to;
    Facts facts;
  };
  [[nodiscard]] std::vector<Push> flush(std::span<const NodeId> sessions, Urgency urgency);
  [[nodiscard]] bool has_facts() const { return !records_.empty() || !accusations_.empty(); }

  [[nodiscard]] bool may_send_fact(TimePoint now, const NodeId& peer);
  [[nodiscard]] bool may_send_report(TimePoint now, const NodeId& peer);

  // What we asked a peer for. At most one request per peer is out.
  [[nodiscard]] std::optional<BucketRequest> ask(const NodeId& peer, const Digest& mine,
                                                 const Digest& theirs, std::uint64_t nonce);
  // Whether `facts` answers what is out; then `id` may be tested with was_asked_for.
  [[nodiscard]] bool answers_request(const NodeId& peer, const Facts& facts) const;
  [[nodiscard]] bool was_asked_for(const NodeId& peer, const NodeId& id) const;
  // After an answer: the next request, if there is more.
  [[nodiscard]] std::optional<BucketRequest> continue_request(const NodeId& peer,
                                                              const Facts& answer,
                                                              std::uint64_t nonce);

 private:
  template <class T>
  struct Pending {
    T statement;
    std::vector<NodeId> holders;  // need not be told
    [[nodiscard]] bool is_new_to(const NodeId& peer) const;
  };
  struct Peer {
    Allowance facts;
    Allowance reports;
    std::optional<BucketRequest> asked;
  };

  SpreadOptions options_;
  std::map<NodeId, Peer> peers_;
  std::vector<Pending<AgedRecord>> records_;
  std::vector<Pending<Accusation>> accusations_;
  // Routine; the newest of each member.
  std::map<NodeId, Pending<AgedRecord>> renewals_;
  std::map<NodeId, Pending<ProgressReport>> reports_;
};

}  // namespace starling::gossip
