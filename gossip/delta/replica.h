// Replica: carries out codec jobs on the master and on the references of this node's edges.
#pragma once

#include "gossip/delta/aggregation.h"
#include "gossip/delta/codec.h"
#include "gossip/delta/exchange.h"
#include "gossip/delta/host_vectors.h"
#include "gossip/delta/jobs.h"
#include "gossip/delta/master.h"
#include "gossip/delta/vectors.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace starling::gossip {

// Exchanges after which a reference is where its two replicas are. One at genesis is behind them
// until deltas have carried it along.
inline constexpr std::uint64_t kSettledExchanges = 16;

struct ReplicaOptions {
  Isa isa = detected_isa();
  // What increments become; clipping is the business of whoever makes the jobs.
  Aggregator aggregator = Aggregator::mean;
};

// The references of all edges, and the arithmetic between them and the master parameters.
//
// Owned by the node's shell; `layout` must outlive it. Lives on the codec lane of the
// pool: one job at a time, in the order in which the state machines returned them. Holds this
// node's copy of what each edge shares. Costs one model of memory for each edge and nothing else of
// that size; a job that is refused changes nothing, except that a refused InstallJob forgets its
// edge's reference (which was void already), and so does an AnswerJob whose own delta cannot be
// sent (what came before the block at fault has changed by then).
//
//   job          needs r   reads x   changes            refused with
//   OfferJob     yes       yes       carry              not_found, diverged, corrupt
//   AnswerJob    yes       yes       x, r, bn, carry    + bad_message, corrupt (spot differs)
//   ApplyJob     yes       yes       x, r, bn           not_found, bad_message, corrupt
//   GenesisJob   -         -         r                  no_memory
//   SnapshotJob  -         yes       r                  no_memory, diverged
//   InstallJob   -         -         r                  no_memory, bad_message, corrupt (hash)
//   DropJob      -         -         forgets r          never
class Replica {
 public:
  // Fills a zeroed span of Layout::size() values with the genesis parameters, padding left zero.
  using Genesis = Reference::Fill;

  // Over vectors in host memory; `layout` and `master` must outlive it.
  Replica(const Layout& layout, MasterPort& master, Genesis genesis, ReplicaOptions options = {});
  // Over vectors wherever they lie.
  Replica(const Layout& layout, std::unique_ptr<ReplicaVectors> vectors, Genesis genesis,
          ReplicaOptions options = {});

  // Does one job and says what came of it.
  //
  // Cost:    one or two passes over the model; blocks while the optimizer pass has the master.
  // Thread:  the codec lane.
  [[nodiscard]] CodecOutcome run(const CodecJob& job);

  // Writes the neighbourhood mean, the mean of this node's references, over `x`: what this node and
  // its neighbours would agree on now, as far as it can be known without a byte on the wire. Each r
  // follows (x_i + x_j) / 2, half of it this node's and half a neighbour's, and what the last local
  // steps did to either is not in it yet.
  //
  // Returns how many references were averaged. Left out are those that took part in fewer than
  // kSettledExchanges exchanges, and all where the aggregator does not trust neighbours; where none
  // is left, `x` is untouched.
  //
  // Shapes:  x has Layout::size() values.
  // Errors:  device_failed; x is unspecified then.
  // Cost:    reads every reference once; on a device it copies them, one at a time.
  // Thread:  the codec lane.
  [[nodiscard]] Result<std::size_t> neighbourhood_mean(std::span<float> x) const;

  // The reference of an edge, empty if there is none or it is not in host memory.
  [[nodiscard]] std::span<const float> reference(const EdgeEnds& edge) const;
  [[nodiscard]] std::size_t edges() const { return edges_.size(); }

 private:
  struct Edge {
    std::unique_ptr<Reference> reference;
    Carry carry;
    // The last payload that was encoded here, as long as somebody else keeps it, and its blocks.
    std::weak_ptr<const Bytes> sent;
    std::vector<std::uint32_t> sent_offsets;
    std::uint64_t exchanges = 0;  // since the reference was set
  };

  [[nodiscard]] Result<CodecDone> run_job(const OfferJob& job);
  [[nodiscard]] Result<CodecDone> run_job(const AnswerJob& job);
  [[nodiscard]] Result<CodecDone> run_job(const ApplyJob& job);
  [[nodiscard]] Result<CodecDone> run_job(const GenesisJob& job);
  [[nodiscard]] Result<CodecDone> run_job(const SnapshotJob& job);
  [[nodiscard]] Result<CodecDone> run_job(const InstallJob& job);
  [[nodiscard]] Result<CodecDone> run_job(const DropJob& job);

  // Applies checked payloads to x, r and the statistics; fills norm and scale.
  struct Exchange;
  [[nodiscard]] Result<void> apply(const Exchange& exchange, LentMaster& master, Edge& edge,
                                   ExchangeDone& done);
  // Encodes the answer and applies the exchange in one walk over x and r.
  [[nodiscard]] Result<void> answer_at_once(const AnswerJob& job, const PayloadView& theirs,
                                            LentMaster& master, ExchangeDone& done);
  // What of an increment of that norm is added: 1, or less where it is clipped.
  [[nodiscard]] float scale_of(const ExchangeTerms& terms, double norm) const;
  // What follows when x and r have changed.
  [[nodiscard]] Result<void> settle(const Exchange& exchange, LentMaster& master, Edge& edge,
                                    ExchangeDone& done);
  // By both payloads of an exchange. The master is not needed for it: training has it meanwhile.
  [[nodiscard]] Hash chain_after(const ExchangeTerms& terms, const Payload& own,
                                 const Payload& theirs) const;
  // Encodes the master against the edge's reference, with the statistics where they are asked for.
  struct OwnPayload;
  [[nodiscard]] static Result<OwnPayload> make_payload(LentMaster& master, Edge& edge, Level level,
                                                       Statistics statistics);
  struct FreshDelta;
  [[nodiscard]] static OwnPayload keep(Edge& edge, FreshDelta fresh);
  // A payload of this node's own: known blocks are not looked for again.
  [[nodiscard]] Result<PayloadView> view_of_own(const Edge& edge, const Payload& own) const;
  [[nodiscard]] Result<void> add_held(LentMaster& master);
  [[nodiscard]] Result<Edge*> find(const EdgeEnds& edge);
  [[nodiscard]] Result<Edge*> find_or_make(const EdgeEnds& edge);
  [[nodiscard]] Result<void> compare_spot(const Edge& edge, const std::optional<Spot>& spot) const;

  const Layout& layout_;
  std::unique_ptr<ReplicaVectors> vectors_;
  Genesis genesis_;
  ReplicaOptions options_;
  std::map<EdgeEnds, Edge> edges_;
  HeldIncrements held_;
  std::optional<Hash> genesis_hash_;  // worked out once
};

// The next value of an edge's hash chain: H(chain | tree hash of the lower end's payload | of the
// higher's). It shows that the ends have had the same payloads.
//
// Cost:    reads both payloads, their trees' parts by `parts`; empty: on the calling thread.
[[nodiscard]] Hash next_chain(const Hash& chain, ByteView lower, ByteView higher,
                              const ForEachPart& parts = {});

}  // namespace starling::gossip
