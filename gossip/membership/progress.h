// Samples processed by the whole swarm, as far as this node knows: P.
#pragma once

#include "gossip/membership/member_record.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace starling::gossip {

struct ProgressOptions {
  // Between two reports of a node: max(min_interval, members / reports_per_second). Raising it
  // makes P rougher; lowering it costs 128 bytes on every edge for every report.
  Duration min_interval = std::chrono::seconds(1);
  double reports_per_second = 64;
  // A counter grows at most this many times as fast as the median of the members' rates. Raising it
  // lets a liar end the run sooner; lowering it leaves a machine that is so fast out of P.
  std::uint64_t max_rate_ratio = 16;
  // Where there is nothing to compare a member with (nobody else trains, or it is the only other
  // one), its word counts in full after this time. Zero: at once, so that a liar who is heard first
  // ends the run of whoever has just started.
  Duration patience = std::chrono::seconds(30);
  std::size_t max_ids = 32768;
};

// Samples of one identity: what state.json keeps and a sponsor hands to a newcomer.
struct SavedCounter {
  NodeId id;
  std::uint64_t samples = 0;

  friend bool operator==(const SavedCounter&, const SavedCounter&) = default;
};

// A member that says to be faster than it may count. Rates are samples a second.
struct CountedShort {
  NodeId id;
  double said = 0;
  double counted = 0;
};

// One counter per identity, merged by maximum; P is their sum, extrapolated with each one's rate.
//
// Owned by Membership, on the io thread. This node's view: two nodes differ by what happened since
// the last reports. P is of one run: only members that train this node's settings count. It never
// decreases while these stay; the counter of a member that takes others stops growing, as if it had
// left. What a member claims beyond max_rate_ratio times the median rate is not counted (but kept:
// the bound grows with time), and nothing is until this node's own rate or two others are known.
// Two members alone: the bound is by the slower one until `patience` is over. Invented identities
// can still inflate P in an open swarm, and so can the only other member; those are stated
// non-promises.
//
// Cost:    at most 32,768 counters of about 300 bytes, of which somebody who left makes room for
//          somebody who runs; total() is O(ids), cached for 100 ms.
class Progress {
 public:
  explicit Progress(const NodeId& self, ProgressOptions options = {});

  // This process has now processed `samples` since it started from its checkpoint or genesis,
  // the checkpoint's own count included.
  void on_local_samples(TimePoint now, std::uint64_t samples);

  // Takes counters that a file holds. For our own id the counter continues from the larger one.
  void merge(TimePoint now, const std::vector<SavedCounter>& saved);
  // Age of the run as a file knows it; the larger one wins.
  void merge_age(TimePoint now, Duration age);
  // Both as a sponsor knows them: whoever gives the model gives its age. They count here and are
  // not signed: our own counter and the age in our reports are what we know by ourselves, or a
  // sponsor that lies would speak with two voices.
  void merge_of_sponsor(TimePoint now, std::vector<SavedCounter> counters, Duration age);

  // What this node trains; zero: not known yet, so that everybody counts. Where these are others
  // than before, another run begins: of the counters and ages so far stays what those that train
  // the same say, and after "not known" what a file or a sponsor said. P may fall.
  void set_settings(TimePoint now, const Hash& settings);
  // What a member trains by its newest record; zero: it does not say, so what it said before holds.
  void on_settings(TimePoint now, const NodeId& id, const Hash& settings);

  enum class News { fresh, known, no_room };
  // A verified report of another member (or of ours, from an earlier process). `settings`: as in
  // on_settings(). Whoever has never said what it trains is counted when it does.
  News on_report(TimePoint now, const ProgressReport& report, const Hash& settings = {});
  // Whether a report would change anything: asked before its signature is verified.
  [[nodiscard]] bool is_news(const ProgressReport& report) const;

  // A member died or left: its counter stays and stops growing.
  void on_departed(TimePoint now, const NodeId& id);

  // How many members are alive, this node included: sets the interval between reports, and whether
  // there is anybody to compare a member with. To be told often: what waits is counted here.
  void set_members(TimePoint now, std::size_t alive);
  [[nodiscard]] Duration report_interval() const;
  // Our own report, unsigned, when one is due and has something new to say.
  [[nodiscard]] std::optional<ProgressReport> take_due_report(TimePoint now,
                                                              Incarnation incarnation);

  // P.
  [[nodiscard]] std::uint64_t total(TimePoint now);
  // The fastest member that has been counted short for a minute, told once a process; of several
  // one each minute. After set_members(), which compares the rates. O(ids).
  [[nodiscard]] std::optional<CountedShort> take_counted_short(TimePoint now);
  // Samples per second of all members that are running. Of whoever says nothing new, this node
  // included, it is for two of its usual gaps what it said last, then no more than that work over
  // the whole silence: nobody trains on for ever by a last word.
  [[nodiscard]] double rate(TimePoint now) const;
  [[nodiscard]] std::uint64_t own_samples() const { return own_.samples; }
  [[nodiscard]] std::uint64_t samples_of(const NodeId& id) const;
  // Since genesis, continued on our own clock: the largest age that this node, its sponsor or two
  // others know of (of one other alone: its word, after `patience`).
  [[nodiscard]] Duration run_age(TimePoint now) const;
  // Of them what a checkpoint keeps, each by itself: merge_age() and merge_of_sponsor() take them.
  [[nodiscard]] Duration own_age(TimePoint now) const {
    return age_since(genesis_.value_or(now), now);
  }
  [[nodiscard]] Duration sponsors_age(TimePoint now) const {
    return now - std::min(sponsors_, now);
  }
  // The newest report held, for bucket answers.
  [[nodiscard]] const ProgressReport* report_of(const NodeId& id) const;
  // Every counter, ascending by id.
  [[nodiscard]] std::vector<SavedCounter> saved() const;

 private:
  struct Counter {
    std::uint64_t claimed = 0;  // the largest that was claimed
    std::uint64_t counted = 0;  // what goes into P, at `at`
    std::uint64_t kept = 0;     // what a file or a sponsor said: counts whoever its author is
    std::uint64_t rate_millisamples = 0;
    std::uint64_t fresh = 0;  // samples that its newest report told beyond the one before
    TimePoint heard_at{};     // that report
    TimePoint at{};           // when `counted` was last settled; zero: never
    bool running = false;
    bool waiting = false;     // claimed while there was nothing to compare it with
    bool told_short = false;  // by take_counted_short()
    std::optional<TimePoint> short_since;
    Hash settings;               // of its author; zero: not said yet
    TimePoint genesis = kNever;  // of the run of these settings, as its author claims
    std::optional<ProgressReport> report;
  };
  struct Own {
    std::uint64_t samples = 0;  // since genesis, earlier processes included
    std::uint64_t offset = 0;   // what earlier processes did beyond our checkpoint
    std::uint64_t reported = 0;
    double rate = 0;  // samples a second, averaged
    TimePoint rate_since{};
    std::uint64_t rate_base = 0;
    std::uint64_t fresh = 0;  // samples in the time over which the rate was last measured
    std::optional<TimePoint> last_report;
  };

  struct Claim {
    NodeId id;
    TimePoint genesis = kNever;
  };

  // Finds anew what a counter may grow by, and counts what has waited for that to be known.
  void weigh(TimePoint now);
  void settle(TimePoint now, Counter& counter);
  [[nodiscard]] bool word_counts(TimePoint now) const;
  // Of every running member, this one included, that has said how fast it is; milli-samples/s.
  [[nodiscard]] std::vector<std::uint64_t> known_rates() const;
  [[nodiscard]] std::uint64_t counted_rate(const Counter& counter) const;
  [[nodiscard]] std::uint64_t value_of(const Counter& counter, TimePoint now) const;
  [[nodiscard]] bool has_room() const;
  [[nodiscard]] bool make_room();
  // Whether its author trains what this node trains, or nobody knows yet what that is.
  [[nodiscard]] bool alike(const Counter& counter) const {
    return settings_.is_zero() || counter.settings == settings_;
  }
  bool note_settings(Counter& counter, const Hash& settings);
  void learn_age(const NodeId& id, TimePoint genesis);
  // run_age(), given the earliest genesis that this node knows of by itself.
  [[nodiscard]] Duration age_since(TimePoint own, TimePoint now) const;
  void continue_own_from(std::uint64_t samples);

  NodeId self_;
  ProgressOptions options_;
  Hash settings_;
  Own own_;
  std::unordered_map<NodeId, Counter> counters_;
  std::size_t members_ = 1;
  std::size_t others_ = 0;             // counters of this run, when the rates were last compared
  std::size_t strangers_ = 0;          // running members that train something else, likewise
  std::uint64_t limit_millirate_ = 0;  // what a counter may grow by; 0: nothing to compare with
  std::optional<TimePoint> rates_at_;  // when the rates were last compared
  bool comparable_ = false;
  bool any_waiting_ = false;
  std::optional<TimePoint> few_since_;  // since when there are others, but too few to compare
  std::uint64_t floor_ = 0;             // the largest P so far
  std::optional<TimePoint> floor_at_;
  std::optional<TimePoint> genesis_;  // on our clock; may lie before our start
  TimePoint sponsors_ = kNever;       // the genesis that a sponsor told
  std::array<Claim, 2> oldest_;       // the earliest geneses that others claim
  std::optional<TimePoint> told_short_at_;
};

}  // namespace starling::gossip
