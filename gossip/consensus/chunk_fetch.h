// ChunkFetch: a node that was shown a certificate gets the certified model, chunk by chunk.
#pragma once

#include "gossip/consensus/chunk_store.h"
#include "gossip/consensus/jobs.h"
#include "gossip/consensus/messages.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace starling::gossip::consensus {

struct FetchEffects {
  std::vector<std::pair<NodeId, ConsensusMessage>> send;
  std::vector<ConsensusJob> jobs;
  std::vector<NodeId> misbehaved;  // sent bytes that do not hash to what was asked for
};

// Requests what the result buffer lacks of a certified model from peers that hold it, a few chunks
// at a time, each by its hash, so any holder will do.
//
// A session may be dead for minutes before TCP says so. Hence a source that has not answered yet is
// asked for one chunk; those that have answered share kOutstanding, and in the end take over what
// the others still owe. A request that is not answered within kPatience goes to the next source.
//
// Owned by FinalConsensus, idle until begin(); io thread. Memory: kOutstanding chunks of 1 MiB, and
// one more for each source that has not answered yet. At most that one comes twice.
class ChunkFetch {
 public:
  static constexpr std::size_t kOutstanding = 4;
  static constexpr Duration kPatience = std::chrono::seconds(15);

  ChunkFetch(RunId run, ChunkStore& store) : run_(run), store_(store) {}

  void begin(std::vector<Hash> hashes);
  [[nodiscard]] bool complete() const;
  [[nodiscard]] std::uint32_t missing() const;

  // A peer that showed the certificate: it holds the model, or may soon.
  void add_source(const NodeId& peer) { sources_.insert(peer); }
  // A peer that says that it holds the model: from now on only such are asked.
  FetchEffects add_holder(TimePoint now, const NodeId& peer);
  FetchEffects remove_source(TimePoint now, const NodeId& peer);
  FetchEffects on_chunk(TimePoint now, const NodeId& from, const Chunk& message);
  FetchEffects on_job_done(TimePoint now, const JobOutcome& outcome);
  FetchEffects on_tick(TimePoint now);
  [[nodiscard]] TimePoint next_deadline() const;
  [[nodiscard]] bool has_holders() const { return !holders_.empty(); }

 private:
  struct Request {
    NodeId source;
    TimePoint asked;
  };
  FetchEffects ask(TimePoint now);
  void forget(const NodeId& peer);
  // Those who say that they hold the model, if any does.
  [[nodiscard]] const std::set<NodeId>& candidates() const {
    return holders_.empty() ? sources_ : holders_;
  }
  [[nodiscard]] std::size_t requests_to(const NodeId& source) const;
  [[nodiscard]] bool may_be_asked(const NodeId& source) const;
  [[nodiscard]] std::optional<NodeId> next_source();

  RunId run_;
  ChunkStore& store_;
  std::vector<Hash> hashes_;
  std::set<NodeId> sources_;
  std::set<NodeId> holders_;  // those of them that said so
  std::set<NodeId> proven_;   // those that have answered the last time
  std::optional<NodeId> last_source_;
  std::map<std::uint32_t, Request> requests_;
};

}  // namespace starling::gossip::consensus
