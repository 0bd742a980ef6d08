// What members say about themselves and about each other: signed statements, and their bytes.
//
// Three kinds: a record (a member describes itself), an accusation (a member says of another that
// it does not answer), a progress report (a member says how many samples it has processed). Each
// has one canonical form in bytes, which is what is signed together with the swarm's id, so that a
// statement means nothing in another swarm. Relays pass the bytes on and can change none of them.
#pragma once

#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace starling::gossip {

inline constexpr std::size_t kMaxRecordBytes = 512;
inline constexpr std::size_t kMaxNameBytes = 64;
inline constexpr std::size_t kMaxAddresses = 4;
inline constexpr std::size_t kMaxAddressBytes = 56;  // "[ipv6]:port" needs 47
inline constexpr std::size_t kAccusationBytes = 32 + 8 + 32 + 2 + 64;
inline constexpr std::size_t kProgressReportBytes = 32 + 8 + 8 + 8 + 8 + 64;
// Incarnations end here, so that adding to one never wraps.
inline constexpr Incarnation kMaxIncarnation{std::uint64_t{1} << 62};

// What a member says of itself.
enum class RecordState : std::uint8_t {
  joining = 1,  // has no model yet: takes part in membership, is no neighbour
  alive = 2,
  left = 3,  // said goodbye; ends this incarnation
};

// Things that a member may do or is able to do, as bits of MemberRecord.
namespace role {
inline constexpr std::uint32_t kTrainer = 1U << 0;   // trains and averages
inline constexpr std::uint32_t kFinisher = 1U << 1;  // may start the final consensus
inline constexpr std::uint32_t kSponsor = 1U << 2;   // gives its model to newcomers
}  // namespace role
namespace capability {
inline constexpr std::uint32_t kDialable = 1U << 0;  // others can open a session to its addresses
}  // namespace capability

// A member, described and signed by itself.
struct MemberRecord {
  NodeId id;
  std::string name;                    // shown to people: escape before printing
  std::vector<std::string> addresses;  // "host:port", most useful first; empty: cannot be dialled
  Incarnation incarnation;             // a higher one replaces a lower one
  Instance instance;                   // of the process
  RecordState state = RecordState::joining;
  std::uint32_t roles = 0;
  std::uint32_t capabilities = 0;
  Hash data_set;  // members with equal ids share one data set; zero: none or private
  Hash settings;  // fingerprint of what it trains; zero: not said yet
  Signature signature;

  friend bool operator==(const MemberRecord&, const MemberRecord&) = default;
  [[nodiscard]] bool dialable() const {
    return (capabilities & capability::kDialable) != 0 && !addresses.empty();
  }
};

enum class AccusationKind : std::uint8_t {
  suspect = 1,  // did not answer in time
  dead = 2,     // did not refute a suspicion in time, or refused a connection
};

// How a member found out; for people, and for the rule that a refused connection counts at once.
enum class Evidence : std::uint8_t {
  no_answer = 1,           // heartbeats on a session stayed without answer
  session_lost = 2,        // the session ended without a goodbye and could not be opened again
  connection_refused = 3,  // the address answers, the process does not
  dial_timed_out = 4,      // the address does not answer
  indirect_silence = 5,    // others were asked to reach it and could not
};

// One member's word that another does not answer. Worth something only together with others'.
struct Accusation {
  NodeId subject;
  Incarnation incarnation;  // of the subject: a higher one refutes
  NodeId accuser;
  AccusationKind kind = AccusationKind::suspect;
  Evidence evidence = Evidence::no_answer;
  Signature signature;

  friend bool operator==(const Accusation&, const Accusation&) = default;
};

// How far a member has come, in its own words.
struct ProgressReport {
  NodeId id;
  Incarnation incarnation;
  std::uint64_t samples = 0;            // processed by this identity since genesis
  std::uint64_t rate_millisamples = 0;  // per second, so that slow nodes are not rounded to zero
  std::uint64_t run_age_ms = 0;         // since genesis, without its sponsor's word
  Signature signature;

  friend bool operator==(const ProgressReport&, const ProgressReport&) = default;
};

// The canonical bytes, signature last.
//
// Rule:    encode_record needs a record within the bounds above (checked: our own bug otherwise).
[[nodiscard]] Bytes encode_record(const MemberRecord& record);
[[nodiscard]] Bytes encode_accusation(const Accusation& accusation);
[[nodiscard]] Bytes encode_report(const ProgressReport& report);

// The statement in `bytes`, with the signature not yet checked.
//
// Errors:  bad_message or too_large unless the bytes are exactly the canonical form of a statement
//          within the bounds; names and addresses are printable UTF-8 and ASCII respectively.
[[nodiscard]] Result<MemberRecord> parse_record(ByteView bytes);
[[nodiscard]] Result<Accusation> parse_accusation(ByteView bytes);
[[nodiscard]] Result<ProgressReport> parse_report(ByteView bytes);

// Whether a record of ours can be encoded: name, number and length of addresses.
//
// Errors:  bad_argument, naming the field.
[[nodiscard]] Result<void> check_record(const MemberRecord& record);

// Whether two records of one process differ in nothing but when they were signed.
[[nodiscard]] bool says_the_same(const MemberRecord& one, const MemberRecord& other);

// Signs in the name of `signer`; the statement's id (accuser) must be the signer's.
void sign_record(MemberRecord& record, const SwarmId& swarm, const Signer& signer);
void sign_accusation(Accusation& accusation, const SwarmId& swarm, const Signer& signer);
void sign_report(ProgressReport& report, const SwarmId& swarm, const Signer& signer);

// Cost:    one Ed25519 verification, 34 us.
[[nodiscard]] Verdict verify_record(const MemberRecord& record, const SwarmId& swarm,
                                    const Verifier& verifier);
[[nodiscard]] Verdict verify_accusation(const Accusation& accusation, const SwarmId& swarm,
                                        const Verifier& verifier);
[[nodiscard]] Verdict verify_report(const ProgressReport& report, const SwarmId& swarm,
                                    const Verifier& verifier);

[[nodiscard]] std::string_view name_of(RecordState state);
[[nodiscard]] std::string_view name_of(Evidence evidence);

}  // namespace starling::gossip
