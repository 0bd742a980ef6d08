// How a model gets from members that have it to a node that has none.
//
// StateReceiver asks for chunks, several donors at a time, and checks each; StateSponsor answers
// from one immutable snapshot. Chunk indices and hashes only: the bytes pass through as they came.
#pragma once

#include "bootstrap/messages.h"
#include "bootstrap/snapshot.h"
#include "node/base/clock.h"
#include "node/base/error.h"
#include "node/base/ids.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace starling::bootstrap {

struct BootstrapOutgoing {
  NodeId to;
  BootstrapMessage message;
};

// A peer broke a rule: the shell counts it and may end the session.
struct BootstrapOffence {
  NodeId peer;
  Error error;
};

struct TransferOptions {
  // Chunks asked of one donor at a time. Raising it fills a long line; lowering it leaves room for
  // other traffic of the donor. 4 chunks of 256 KiB fill 100 ms of 80 Mbit/s.
  std::size_t window = 8;
  // So long a donor may bring nothing, or four times the average between two chunks, whichever is
  // longer, once those have come that others were asked for before. Not a chunk's own time: those
  // asked for together wait for each other, on a slow line for minutes.
  Duration chunk_deadline = std::chrono::seconds(10);
  // An answer to a StateRequest may take this long: the sponsor copies and hashes its model first.
  Duration manifest_deadline = std::chrono::seconds(20);
  // Wrong chunks after which a donor is not asked any more; and how often it may let go of the
  // transfer without a chunk in between. Not once only: a sponsor drops who is idle for long, and
  // takes it back.
  std::uint32_t max_wrong = 3;
  // A sponsor serves this many joiners at a time and takes no newcomer beyond; twice as many where
  // they come for the rest of the very snapshot that it holds. Where none is free, one that takes
  // less than 64 KiB/s or overstays gives up its own (node/decisions/0079).
  std::size_t max_joiners = 8;
  // A snapshot younger than this is given to newcomers; an older one is replaced if nobody loads
  // it.
  Duration fresh = std::chrono::seconds(60);
  // While somebody loads it, it is given to newcomers up to this age, above which it is replaced
  // and who still loads it starts over. Raising it lets slower lines finish (ResNet-50 takes 14
  // min over 1 Mbit/s); lowering it brings newcomers a younger model beside a joiner that never
  // ends.
  Duration shared = std::chrono::minutes(30);
  // A snapshot nobody asks for is dropped after this long; it costs one model of memory.
  Duration keep = std::chrono::minutes(10);
};

struct TransferProgress {
  std::uint64_t bytes_done = 0;
  std::uint64_t bytes_total = 0;  // 0: not known before the manifest
  Duration loading{0};            // since the first chunk was asked for
};

struct ReceiverEffects {
  std::vector<BootstrapOutgoing> send;
  std::vector<BootstrapOffence> offences;
  // Everything is here and checked.
  SharedSnapshot complete;
  // The manifest that came with it.
  std::optional<StateManifest> facts;
  // Nobody holds the snapshot any more, or no donor is left: start over with another sponsor.
  bool failed = false;
  // The sponsor has nothing at present that is ahead of this node's replica.
  bool not_ahead = false;
  std::string why;  // it failed
};

// One download of one snapshot.
//
// Owned by Join; lives from the choice of a sponsor until `complete` or `failed`; io thread only.
// Chunks that came stay when donors go, and other holders of the same snapshot go on. Memory: one
// model, bounded by max_bytes before the first chunk is asked for.
//
// | state    | manifest   | chunk                 | donor lost or refuses     | time-out        |
// |----------|------------|-----------------------|---------------------------|-----------------|
// | asking   | -> loading | ignored               | -> failed                 | -> failed       |
// | loading  | one more   | store; last: complete | others; none: -> orphaned | asked elsewhere |
// | orphaned | -> loading | ignored               | -                         | -> failed       |
class StateReceiver {
 public:
  // Takes nothing above `max_bytes`, no other settings than those of `fingerprint`, and, where this
  // node has a replica already, nothing whose age is not above `own_age`.
  StateReceiver(const Hash& fingerprint, std::uint64_t max_bytes, TransferOptions options,
                std::optional<double> own_age = std::nullopt)
      : fingerprint_(fingerprint), max_bytes_(max_bytes), options_(options), own_age_(own_age) {}

  ReceiverEffects start(TimePoint now, const NodeId& sponsor);
  // A peer with the same settings that might hold the snapshot too: it is asked.
  ReceiverEffects offer_donor(TimePoint now, const NodeId& peer);
  ReceiverEffects on_manifest(TimePoint now, const NodeId& from, const StateManifest& manifest);
  ReceiverEffects on_refused(TimePoint now, const NodeId& from, const StateRefused& refused);
  ReceiverEffects on_chunk(TimePoint now, const NodeId& from, const Chunk& chunk);
  ReceiverEffects on_session_down(TimePoint now, const NodeId& peer);
  ReceiverEffects on_tick(TimePoint now);
  [[nodiscard]] TimePoint next_deadline() const;

  [[nodiscard]] TransferProgress progress(TimePoint now) const;
  [[nodiscard]] const NodeId& sponsor() const { return sponsor_; }
  // Whether a chunk of `bytes` from this peer was asked for: what admit() needs.
  [[nodiscard]] bool expects(const NodeId& from) const;
  // Whether a manifest of this peer was asked for.
  [[nodiscard]] bool was_asked(const NodeId& peer) const { return asked_.contains(peer); }
  // Chunks are missing and nobody is there to give them.
  [[nodiscard]] bool orphaned() const { return state_ == State::orphaned; }

 private:
  enum class State : std::uint8_t { idle, asking, loading, orphaned, ended };
  struct Donor {
    std::set<std::uint32_t> asked;
    std::set<std::uint32_t> late;  // may still come, and are asked elsewhere; here only at the end
    TimePoint since{};             // it has brought nothing, and was to
    std::uint32_t wrong = 0;
    std::uint32_t slow = 0;  // patiences that ran out since then
    std::size_t ahead = 0;   // chunks of others that may come before its next one
  };

  void ask_for_chunks(TimePoint now, ReceiverEffects& effects);
  void begin_wait(TimePoint now, const NodeId& id);
  void lose_donor(TimePoint now, const NodeId& peer, ReceiverEffects& effects);
  void give_up(std::string why, ReceiverEffects& effects);
  [[nodiscard]] std::optional<std::uint32_t> next_chunk(const NodeId& id, const Donor& donor) const;
  [[nodiscard]] bool takes_more(const Donor& donor) const;
  [[nodiscard]] TimePoint deadline_of(const Donor& donor) const;

  Hash fingerprint_;
  std::uint64_t max_bytes_;
  TransferOptions options_;
  std::optional<double> own_age_;
  State state_ = State::idle;
  NodeId sponsor_;
  TimePoint deadline_ = kNever;
  Hash id_;
  StateManifest facts_;
  std::vector<SharedBytes> chunks_;
  std::size_t done_ = 0;
  std::uint64_t bytes_done_ = 0;
  std::map<NodeId, Donor> donors_;
  std::set<NodeId> asked_;     // whether they hold it
  std::set<NodeId> refusers_;  // of them; asked once more when all donors are gone
  std::set<NodeId> banned_;
  // How often each was lost since its last good chunk. Outlives Donor: the same peer comes back.
  std::map<NodeId, std::uint32_t> fruitless_;
  std::map<std::uint32_t, std::set<NodeId>> wrong_from_;  // chunk -> who sent a wrong one
  TimePoint started_{};
  Duration average_chunk_{0};  // for which a donor was waited for
};

struct SponsorEffects {
  std::vector<BootstrapOutgoing> send;
  std::vector<BootstrapOffence> offences;
  // Make a snapshot of the replica (cut_snapshot on the pool), then call on_snapshot.
  bool take_snapshot = false;
};

// What a node gives to those who ask. At most one snapshot, for all joiners of the moment.
//
// Owned by Join; one per process; io thread only. Holds at most one model of memory, none while
// nobody joins. A node that just joined keeps what it loaded (hold()), and so is a donor.
class StateSponsor {
 public:
  explicit StateSponsor(TransferOptions options) : options_(options) {}

  // What this node can give at present.
  struct Stock {
    Hash fingerprint;
    RunPhase phase = RunPhase::starting;
    std::uint64_t run_age_ms = 0;
    std::vector<gossip::SavedCounter> counters;
  };
  SponsorEffects on_request(TimePoint now, const NodeId& from, const StateRequest& request,
                            const Stock& stock);
  SponsorEffects on_chunk_request(TimePoint now, const NodeId& from, const ChunkRequest& request);
  void on_done(TimePoint now, const NodeId& from, const StateDone& done);
  void on_session_down(const NodeId& peer);
  // The snapshot that was asked for; nothing: it could not be made, `why` says so.
  SponsorEffects on_snapshot(TimePoint now, SharedSnapshot snapshot, const Stock& stock);
  // Keeps a snapshot that this node loaded itself.
  void hold(TimePoint now, SharedSnapshot snapshot);
  // The replica or the settings are other ones now.
  void drop();
  void on_tick(TimePoint now);
  [[nodiscard]] TimePoint next_deadline() const;

  // Joiners that load from this node.
  [[nodiscard]] std::uint32_t load() const { return static_cast<std::uint32_t>(joiners_.size()); }

 private:
  struct Joiner {
    TimePoint since{};       // it was taken in
    TimePoint asked{};       // the last chunk; before the first: as `since`
    std::size_t chunks = 0;  // 0: whoever only asked for a manifest may not want it
  };

  void offer(TimePoint now, const NodeId& to, const Stock& stock, SponsorEffects& effects);
  [[nodiscard]] bool gives_to_newcomers(TimePoint now) const;
  [[nodiscard]] bool finds_place(TimePoint now, const NodeId& from, std::size_t places);
  [[nodiscard]] bool overstays(TimePoint now, const Joiner& joiner) const;

  TransferOptions options_;
  SharedSnapshot held_;
  Hash held_id_;
  TimePoint taken_{};
  TimePoint last_used_{};
  bool taking_ = false;
  std::set<NodeId> waiting_;  // for the snapshot that is being made
  std::map<NodeId, Joiner> joiners_;
  std::set<NodeId> lost_;       // that had to give up their places
  std::vector<NodeId> donors_;  // have it all
};

}  // namespace starling::bootstrap
