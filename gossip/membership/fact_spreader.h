// How statements travel: new ones are pushed or announced to every session once, the rest is asked
// for bucket by bucket; and how many of them a peer may send.
#pragma once

#include "gossip/membership/announcements.h"
#include "gossip/membership/messages.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/rate.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace starling::gossip {

struct SpreadOptions {
  // New records and accusations that one peer may push: a bucket of `fact_burst` that fills at
  // `facts_per_second`.
  double facts_per_second = 10;
  double fact_burst = 1000;
  // New statements that it may answer with where buckets were asked for. The burst is the largest
  // view there is, each member with its report and some with accusations.
  double answers_per_second = 500;
  double answer_burst = 40'000;
  // Progress reports: 64 a second is what an honest edge carries.
  double reports_per_second = 200;
  double report_burst = 4000;
  // Statements that one peer may announce, and may ask for: what its neighbours say of all others.
  double names_per_second = 300;
  double name_burst = 5000;
  // Statements of one kind that wait to be pushed; more are left to the digests.
  std::size_t max_pending = 4096;
  AnnouncementOptions announcements;
  // Up to so many members news is sent to everybody instead of announced: a few copies more, and
  // one way a hop instead of three.
  std::size_t send_news_up_to = 64;
};

;

// Splits statements into messages of at most kMaxFactsBytes.
[[nodiscard]] std::vector<Facts> split(const Facts& facts);
// Bytes that the statements take in a message.
[[nodiscard]] std::size_t wire_bytes(const AgedRecord& record);

// Waiting statements, and what each session may still send us.
//
// A value owned by Membership, on the io thread. Pending statements are flushed at the end of the
// event that brought them (routine: the next time that this node looks around), to every session
// but those that have them: a peer that sends or announces in the meantime what waits to be sent to
// it is not sent it. What it asks for are records, which it is sent at once, and reports, which
// travel with the next routine flush, as do our own questions for reports: what a round of a large
// swarm brings is one message to each session, whatever the number of members.
//
// | statement                          | the author's node | its neighbours | everybody else     |
// |------------------------------------|-------------------|----------------|--------------------|
// | accusation, record that refutes    | sends             | send           | send               |
// | record with news, small swarm      | sends             | send           | send               |
// | record with news                   | sends             | send           | announce, at once  |
// | record renewed                     | sends             | announce       | announce           |
// | progress report, to subscribers    | sends             | send           | send               |
// | progress report, to others         | sends             | announce       | announce           |
//
// Whoever asked for a report of a member is a subscriber to that member's reports, until it says
// that it has one already.
//
// What is sent without being asked for comes once over every edge, so several times to everybody:
// the way of what must be known even where half of the neighbours lie or have just died. An author
// may be gone before anybody could ask it. Nothing else is worth more than one copy and the names.
class FactSpreader {
 public:
  FactSpreader(const NodeId& self, SpreadOptions options)
      : self_(self), options_(options), announcements_(options.announcements) {}

  // How many there are, this node included.
  void set_members(std::size_t members) { members_ = members; }
  void on_session_up(const NodeId& peer);
  void on_session_down(TimePoint now, const NodeId& peer);

  // Urgent: a record that refutes. Routine: one that says nothing but that its subject is still
  // there.
  enum class Haste { urgent, at_once, routine };
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
  // `everything`: with the reports that are owed, and the questions for what was announced and did
  // not come. Call a few times within a patience.
  [[nodiscard]] std::vector<Push> flush(TimePoint now, std::span<const NodeId> sessions,
                                        Urgency urgency);
  [[nodiscard]] bool has_facts() const { return !records_.empty() || !accusations_.empty(); }

  // `peer` can send this. Whether to ask it for it now; not called for what is held.
  [[nodiscard]] bool on_announced(TimePoint now, const NodeId& peer, const FactName& name);
  // `peer` asked for this report. It is sent with the next routine flush, and the next ones of
  // this member unasked.
  void on_wanted(const NodeId& peer, const ProgressReport& report);
  // `peer` has what is held here, too.
  void note_holder(const FactName& name, const NodeId& peer);
  [[nodiscard]] bool may_name(TimePoint now, const NodeId& peer);
  [[nodiscard]] bool may_want(TimePoint now, const NodeId& peer);

  [[nodiscard]] bool may_send_fact(TimePoint now, const NodeId& peer);
  [[nodiscard]] bool may_send_report(TimePoint now, const NodeId& peer);
  [[nodiscard]] bool may_answer(TimePoint now, const NodeId& peer);

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
    enum class Way : std::uint8_t { send, announce } way = Way::send;
    [[nodiscard]] bool is_new_to(const NodeId& peer) const;
  };
  struct Peer {
    TokenBucket facts;
    TokenBucket reports;
    TokenBucket answers;
    TokenBucket named;
    TokenBucket wanted;
    std::optional<BucketRequest> asked;
    std::set<std::uint64_t> subscribed;     // to reports of these members
    std::vector<FactName> repeated;         // what it sent in vain: it is told so
    std::map<NodeId, ProgressReport> owed;  // that it asked for
  };

  void add_reports(const NodeId& to, Facts& facts);
  [[nodiscard]] std::vector<NodeId> holders_of(const NodeId& source, const FactName& name);

  NodeId self_;
  SpreadOptions options_;
  std::size_t members_ = 1;
  Announcements announcements_;
  std::map<NodeId, Peer> peers_;
  std::vector<Pending<AgedRecord>> records_;
  std::vector<Pending<Accusation>> accusations_;
  // Routine; the newest of each member.
  std::map<NodeId, Pending<AgedRecord>> renewals_;
  std::map<NodeId, Pending<ProgressReport>> reports_;
};

}  // namespace starling::gossip
