// Which seeds to dial and when: for ever, with backoff, until each of them is a member.
#pragma once

#include "bootstrap/address_book.h"
#include "bootstrap/seeds.h"
#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/random.h"
#include "transport/endpoint.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace starling::bootstrap {

// How a dial ended without a session.
enum class DialEnd : std::uint8_t {
  refused,          // no connection: nobody listens, or no way there
  timed_out,        // the address does not answer
  unresolved,       // the name has no address now
  closed_silently,  // it closed after our first message: wrong secret, another swarm, or busy
  wrong_identity,   // a pinned address answers with another identity
  refused_by_name,  // it said no, and why
  ourselves,        // the address is this node: tried again after minutes only
  other,
};

// The end that an error of transport means.
[[nodiscard]] DialEnd dial_end_of(const Error& error);
[[nodiscard]] std::string_view name_of(DialEnd end);

struct DiallerOptions {
  // Between two tries of one address, doubling from first to last, plus up to half of jitter.
  // Raising the last one makes a healed network be found later; lowering it costs a connection
  // attempt to each absent seed that often.
  Duration first_backoff = std::chrono::milliseconds(500);
  Duration last_backoff = std::chrono::seconds(30);
  // A name is resolved anew this often while one of its addresses is wanted.
  Duration resolve_interval = std::chrono::seconds(15);
  // An outcome that does not come is taken as a time-out.
  Duration outcome = std::chrono::seconds(20);
  // From the beginning of a session to the next dial of its address, at least, plus up to half of
  // jitter.
  Duration apart = std::chrono::seconds(1);
  // A session without a Hello that ended sooner than this helped nobody: the address is tried again
  // as after a failure, each time later.
  Duration settled = std::chrono::seconds(10);
  std::size_t max_outstanding = 8;
  // Addresses of one name that are kept.
  std::size_t max_per_name = 32;
};

// A node is there and lets this one not in: it closed without a reply, or said no and why.
[[nodiscard]] constexpr bool is_turned_away(DialEnd end) {
  return end == DialEnd::closed_silently || end == DialEnd::refused_by_name;
}

// What happened at one address, for `status`, logs and the verdict.
struct AddressReport {
  transport::Endpoint endpoint;
  std::string origin;
  std::uint32_t attempts = 0;
  std::uint32_t turned_away = 0;    // closed without a reply, or refused by name
  std::optional<DialEnd> last_end;  // nothing: it worked, or was never tried
  std::string detail;
  std::optional<NodeId> peer;  // who answered there
};

struct DiallerEffects {
  // One dial each; the outcome is reported with on_up or on_failed.
  std::vector<transport::DialTarget> dial;
  // All addresses of these names are wanted: on_resolved or on_resolve_failed.
  std::vector<transport::Endpoint> resolve;
};

// The endless search for peers.
//
// Owned by Join; io thread only; resolves nothing and opens nothing itself. Holds this node's
// experience with each address. Names are resolved anew again and again, so that what is dialled is
// always a literal address, and who answered can be told. An address rests while the node that
// answered there is an alive member; when that node is gone, it is dialled again. Bounded:
// kMaxSeeds seeds, max_per_name addresses for each name.
//
// State of an address (`gone`: the node that answered there is no alive member any more):
//
// | state    | time is due       | on_up      | on_failed            | gone       |
// |----------|-------------------|------------|----------------------|------------|
// | waiting  | dial, -> dialling | -> resting | -                    | -          |
// | dialling | -> waiting        | -> resting | -> waiting (backoff) | -          |
// | resting  | -                 | stays      | -                    | -> waiting |
//
// From resting it also goes to waiting where the session ended almost at once: for a second, or
// with a backoff where no Hello came.
class Dialler {
 public:
  using Test = std::function<bool(const NodeId&)>;

  Dialler(DiallerOptions options, Rng rng) : options_(options), rng_(rng) {}

  // Errors:  too_many above kMaxSeeds addresses; what was added before stays.
  [[nodiscard]] Result<void> add(TimePoint now, const Seed& seed);
  // Addresses that worked before: tried like seeds, but after them (a quarter of the dials is
  // theirs as long as both have something to try), and never counted in the verdict.
  void add(TimePoint now, const AddressBook& book);

  void on_resolved(TimePoint now, const transport::Endpoint& name,
                   const std::vector<transport::Endpoint>& addresses);
  void on_resolve_failed(TimePoint now, const transport::Endpoint& name, const Error& why);
  // A session came up at an endpoint that was dialled, or exists with the node that answered.
  void on_up(TimePoint now, const transport::Endpoint& endpoint, const NodeId& peer);
  // An alive member says that it can be dialled there. Believed of whom the address book knows
  // there, and of nobody else: what a person named is dialled until somebody answers, or a liar
  // could hide it.
  void learn(const transport::Endpoint& endpoint, const NodeId& peer);
  void on_failed(TimePoint now, const transport::Endpoint& endpoint, const Error& why);
  enum class Greeted { no, yes };
  // The last session with `peer` ended, which was up for so long and in which its Hello came or
  // not.
  void on_down(TimePoint now, const NodeId& peer, Duration lived, Greeted greeted);

  // Every waiting address is due at once.
  void retry_now(TimePoint now);
  // What to dial and resolve now. `is_member` says whether a node is an alive member with which
  // nothing need be dialled, `is_refused` whether it trains what this node refuses: then it rests,
  // and the other addresses of its name do not.
  [[nodiscard]] DiallerEffects on_tick(
      TimePoint now, const Test& is_member,
      const Test& is_refused = [](const NodeId&) { return false; });
  [[nodiscard]] TimePoint next_deadline() const;

  // There is something to try, seeds or book.
  [[nodiscard]] bool has_addresses() const { return !addresses_.empty() || !names_.empty(); }
  // Every seed address closed silently, or refused by name, at least `times` times, and none ever
  // worked.
  [[nodiscard]] bool all_turned_away(std::uint32_t times) const;
  // At every seed address a node answers for which `test` holds, or this node itself; every name
  // has an address, and all else, the address book too, was tried. Of the addresses of one node one
  // answer is enough, once the others were tried.
  [[nodiscard]] bool all_answered_by(const Test& test) const;
  [[nodiscard]] std::vector<AddressReport> report() const;

 private:
  enum class Source : std::uint8_t { seed, book };
  struct Address {
    AddressReport report;
    std::optional<NodeId> pin;
    std::optional<NodeId> known;  // who was there, by the address book
    Source source = Source::seed;
    std::optional<transport::Endpoint> name;  // whose address it is
    std::uint32_t failures = 0;               // since it last worked
    std::uint32_t brief = 0;                  // sessions in a row that helped nobody
    TimePoint not_before{};
    TimePoint out_until{};  // a dial is out until then
  };
  struct Name {
    SeedKind kind = SeedKind::all_of_name;
    std::optional<NodeId> pin;
    std::string origin;
    TimePoint not_before{};
    std::size_t found = 0;  // addresses that it had when it was last resolved
    std::uint32_t failures = 0;
    std::string detail;
  };

  // Also of what the address book had: a person named it.
  static void make_seed(Address& address, const std::string& origin,
                        const std::optional<NodeId>& pin);
  [[nodiscard]] Duration backoff(std::uint32_t failures);
  [[nodiscard]] Duration with_jitter(Duration base);
  // Names of single nodes of which some address passes `test`: the other addresses do not matter.
  template <class AddressTest>
  [[nodiscard]] std::set<transport::Endpoint> settled_names(AddressTest test) const;
  [[nodiscard]] bool is_single(const std::optional<transport::Endpoint>& name) const;

  DiallerOptions options_;
  Rng rng_;
  std::map<transport::Endpoint, Address> addresses_;
  std::map<transport::Endpoint, Name> names_;
};

}  // namespace starling::bootstrap
