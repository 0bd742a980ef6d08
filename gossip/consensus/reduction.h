// Reduction: the contributions of an agreed set become one result, chunk by chunk.
//
//   a chunk     event                                  next        effect
//   ---------   ------------------------------------   ---------   ---------------------------
//   waiting     it came into the window                measuring   ExponentsJob
//   measuring   own and all children's exponents       raising     Exponents up (root: down)
//   raising     everybody's exponents, from above      summing     Exponents down
//   summing     all children's sums                    adding      SumJob (root: DivideJob)
//   adding      packed                                 lowering    Sum up
//   adding      divided, written, hashed (root)        done        ResultChunk down
//   lowering    ResultChunk from above                 storing     StoreJob
//   storing     stored                                 done        ResultChunk down
//
// With the median rule `summing` sends the own values up (PackJob), hands on those of others, and
// the root collects all of them (MedianJob).
#pragma once

#include "gossip/consensus/chunk_store.h"
#include "gossip/consensus/jobs.h"
#include "gossip/consensus/messages.h"
#include "gossip/consensus/session_graph.h"
#include "node/base/ids.h"
#include "node/base/signing.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling::gossip::consensus {

struct ReductionTerms {
  RoundId round;
  NodeId self;
  Hash fingerprint;
  Agreed agreed;
  std::uint32_t window = 8;
};

// Why this epoch cannot go on.
struct ReductionFault {
  RefusalReason reason = RefusalReason::bad_bytes;
  std::uint32_t chunk = 0;
  NodeId accused;
  std::string detail;
};

struct ReductionEffects {
  std::vector<std::pair<NodeId, ConsensusMessage>> send;
  std::vector<ConsensusJob> jobs;
  std::optional<ReductionFault> fault;
};

// One epoch's reduction at one node. Owned by FinalConsensus for as long as the epoch lasts; on the
// io thread. Accepts messages from the moment the set is closed, works from start() on.
//
// Only the parent and the children of a chunk's tree are listened to, and only inside twice the
// window: an honest child is never further ahead, because it finishes no chunk without this node's
// sum. Memory: children's sums, about 1 MiB each, of up to `window` chunks, fewer where they would
// be more than 64 MiB together, and one sum of its own for each of these chunks. With the median
// rule up to one contribution of every participant, 1 MiB each, in two chunks.
class Reduction {
 public:
  Reduction(ReductionTerms terms, const ChunkPlan& plan, ChunkStore& store, const Signer& signer,
            const Verifier& verifier);

  ReductionEffects start();
  ReductionEffects on_exponents(const NodeId& from, const Exponents& message);
  ReductionEffects on_sum(const NodeId& from, const Sum& message);
  ReductionEffects on_contribution(const NodeId& from, const Contribution& message);
  ReductionEffects on_result(const NodeId& from, const ResultChunk& message);
  ReductionEffects on_request(const NodeId& from, const ChunkRequest& message);
  // Of this round only.
  ReductionEffects on_job_done(const JobOutcome& outcome);
  // Says again what may have been lost with the old session; everything is idempotent.
  ReductionEffects on_session_up(const NodeId& peer);
  // Says again what came to nothing at `peer`, if it has not become needless: a message of this
  // round, of which only the values are not known any more.
  ReductionEffects send_again(const NodeId& peer, const ConsensusMessage& message);

  [[nodiscard]] bool complete() const { return started_ && done_ == plan_.count(); }
  // Hashes of the result's chunks, once complete.
  [[nodiscard]] const std::vector<Hash>& hashes() const { return hashes_; }
  // Whether trees of this epoch use the session with this peer.
  [[nodiscard]] bool uses(const NodeId& peer) const;
  [[nodiscard]] NodeId root(std::uint32_t chunk) const;
  [[nodiscard]] std::uint64_t bytes_left() const;
  // Counts up with everything that brought this node nearer to the end.
  [[nodiscard]] std::uint64_t progress() const { return progress_; }

 private:
  enum class Stage : std::uint8_t {
    waiting,
    measuring,
    raising,
    summing,
    adding,
    lowering,
    storing,
    done,
  };
  struct Child {
    NodeId id;
    std::uint64_t weight = 0;
    std::uint32_t members = 0;
    SharedBytes exponents;
    SharedBytes sum;
  };
  struct Work {
    Stage stage = Stage::waiting;
    std::optional<NodeId> parent;
    std::vector<Child> children;
    SharedBytes own_exponents;
    SharedBytes raised;  // maximum of the own and the children's
    SharedBytes common;  // everybody's
    SharedBytes sum;     // packed, as sent to the parent
    bool packing = false;
    std::map<NodeId, SharedBytes> contributions;  // median rule
    std::optional<ResultChunk> result;            // between arrival and storage
  };

  Work& work(std::uint32_t chunk);
  [[nodiscard]] bool in_reach(std::uint32_t chunk) const;
  [[nodiscard]] JobTarget target(std::uint32_t chunk) const { return {terms_.round, chunk}; }
  // How results of this epoch travel.
  [[nodiscard]] ResultForm form() const {
    return terms_.agreed.rule == Rule::mean ? ResultForm::packed : ResultForm::plain;
  }
  Child* find_child(Work& work, const NodeId& id);
  [[nodiscard]] bool carries(const NodeId& from, const Contribution& message) const;
  void begin_chunks();
  [[nodiscard]] bool may_begin(std::uint32_t chunk);
  void advance(std::uint32_t chunk);
  void raise(std::uint32_t chunk, Work& work);
  void spread_exponents(std::uint32_t chunk, const Work& work);
  void send_own(std::uint32_t chunk, const Work& work);
  void add_up(std::uint32_t chunk, Work& work);
  void add_up_median(std::uint32_t chunk, Work& work);
  void finish(std::uint32_t chunk);
  void fault(RefusalReason reason, std::uint32_t chunk, const NodeId& accused, std::string detail);
  void on_done(std::uint32_t chunk, const ExponentsFound& done);
  void on_done(std::uint32_t chunk, const SumPacked& done);
  void on_done(std::uint32_t chunk, const ChunkDivided& done);
  void on_done(std::uint32_t chunk, const ChunkStored& done);
  void on_done(std::uint32_t chunk, const ChunkLoaded& done);
  void on_done(std::uint32_t, const ReplicaChecked&) {}
  void repeat(const NodeId& peer, Work& work, const Exponents& lost);
  void repeat(const NodeId& peer, Work& work, const Sum& lost);
  void repeat(const NodeId& peer, Work& work, const Contribution& lost);
  ReductionEffects take();

  ReductionTerms terms_;
  ChunkPlan plan_;
  ChunkStore& store_;
  const Signer& signer_;
  const Verifier& verifier_;
  std::uint32_t self_ = 0;  // index in the agreed set
  std::uint32_t window_ = 8;
  bool started_ = false;
  std::map<std::uint32_t, Work> works_;  // chunks in reach that are not done
  std::vector<Hash> hashes_;             // zero: not done
  std::vector<Signature> root_signatures_;
  std::uint32_t base_ = 0;  // the first chunk that is not done
  std::uint32_t done_ = 0;
  std::uint64_t progress_ = 0;
  ReductionEffects out_;
};

}  // namespace starling::gossip::consensus
