#include "gossip/delta/replica.h"

#include "node/base/check.h"
#include "node/base/fault.h"
#include "node/base/hash.h"
#include "node/base/tree_hash.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace starling::gossip {

namespace {

std::string text_of(const EdgeEnds& edge) {
  return "edge " + short_form(edge.lower) + " - " + short_form(edge.higher);
}

// A float for the history of norms; a norm beyond all floats is as good as the largest.
float as_float(double norm) {
  return static_cast<float>(std::min(norm, static_cast<double>(std::numeric_limits<float>::max())));
}

// Mean and variance as the end of a payload; empty where it carries none.
Result<Bytes> own_statistics(LentMaster& master, Statistics statistics) {
  Bytes tail;
  if (statistics == Statistics::without) return tail;
  TRY(const ChannelStatistics own, master.statistics());
  TRY_VOID(append_statistics(own, tail));
  return tail;
}

void check_weight(Weight weight) { STARLING_CHECK(weight.of_128 >= 1 && weight.of_128 <= 64); }

// A clip below all floats leaves nothing, in either sense.
float factor_of(float scale, Weight weight) {
  return std::max(scale * weight.value(), std::numeric_limits<float>::min());
}

}  // namespace

Hash next_chain(const Hash& chain, ByteView lower, ByteView higher, const ForEachPart& parts) {
  TreeHash of_lower(lower);
  TreeHash of_higher(higher);
  const ForEachPart each = parts ? parts : ForEachPart(one_after_another);
  each(of_lower.parts() + of_higher.parts(), [&](std::size_t part) {
    if (part < of_lower.parts())
      of_lower.hash_part(part);
    else
      of_higher.hash_part(part - of_lower.parts());
  });
  const Hash low = of_lower.root();
  const Hash high = of_higher.root();
  return Hasher{}.add(chain.view()).add(low.view()).add(high.view()).finish();
}

Replica::Replica(const Layout& layout, MasterPort& master, Genesis genesis, ReplicaOptions options)
    : Replica(layout, std::make_unique<HostVectors>(layout, master, options.isa),
              std::move(genesis), options) {}

Replica::Replica(const Layout& layout, std::unique_ptr<ReplicaVectors> vectors, Genesis genesis,
                 ReplicaOptions options)
    : layout_(layout),
      vectors_(std::move(vectors)),
      genesis_(std::move(genesis)),
      options_(options) {}

CodecOutcome Replica::run(const CodecJob& job) {
  return {edge_of(job), std::visit([this](const auto& one) { return run_job(one); }, job)};
}

std::span<const float> Replica::reference(const EdgeEnds& edge) const {
  const auto found = edges_.find(edge);
  if (found == edges_.end()) return {};
  return found->second.reference->values();
}

Result<std::size_t> Replica::neighbourhood_mean(std::span<float> x) const {
  STARLING_CHECK_OP(x.size(), ==, layout_.size());
  std::vector<const Reference*> settled;
  for (const auto& [ends, edge] : edges_)
    if (edge.exchanges >= kSettledExchanges) settled.push_back(edge.reference.get());
  if (settled.empty() || !trusts(options_.aggregator)) return 0;
  std::ranges::fill(x, 0.0F);
  const float share = 1.0F / static_cast<float>(settled.size());
  for (const Reference* reference : settled) {
    TRY_VOID(reference->read([&](std::span<const float> r) {
      for (std::size_t i = 0; i < r.size(); ++i) x[i] += share * r[i];
    }));
  }
  return settled.size();
}

Result<Replica::Edge*> Replica::find(const EdgeEnds& edge) {
  const auto found = edges_.find(edge);
  if (found == edges_.end())
    return fail(Errc::not_found, Doing::exchanging, text_of(edge) + " has no reference here");
  return &found->second;
}

Result<Replica::Edge*> Replica::find_or_make(const EdgeEnds& edge) {
  held_.forget(edge);  // it was about another reference
  if (const auto found = edges_.find(edge); found != edges_.end()) {
    found->second.carry = {};
    found->second.exchanges = 0;
    return &found->second;
  }
  TRY(auto reference, vectors_->make_reference());
  Edge& made = edges_[edge];
  made.reference = std::move(reference);
  return &made;
}

Result<void> Replica::compare_spot(const Edge& edge, const std::optional<Spot>& spot) const {
  if (!spot) return {};
  if (spot->block >= layout_.blocks())
    return fail(Errc::bad_message, Doing::exchanging,
                "a hash of block " + std::to_string(spot->block) + " of " +
                    std::to_string(layout_.blocks()));
  TRY(const Hash own, edge.reference->hash_of_block(spot->block));
  if (own != spot->hash)
    return fail(
        Errc::corrupt, Doing::exchanging,
        "block " + std::to_string(spot->block) + " of the reference differs from the neighbour's");
  return {};
}

struct Replica::OwnPayload {
  Payload payload;
  EncodeFigures figures;
};

struct Replica::FreshDelta {
  Encoded encoded;
  Carry carry;  // after it
  Level level;
  Statistics statistics;
  Bytes tail;  // own_statistics()
};

Result<Replica::OwnPayload> Replica::make_payload(LentMaster& master, Edge& edge, Level level,
                                                  Statistics statistics) {
  TRY(Bytes tail, own_statistics(master, statistics));
  Carry next = edge.carry;
  TRY(Encoded encoded, master.encode(edge.reference.get(), level, next));
  return keep(edge, {std::move(encoded), std::move(next), level, statistics, std::move(tail)});
}

Replica::OwnPayload Replica::keep(Edge& edge, FreshDelta fresh) {
  Bytes& bytes = fresh.encoded.bytes;
  bytes.insert(bytes.end(), fresh.tail.begin(), fresh.tail.end());
  OwnPayload own{{fresh.level, fresh.statistics, share(std::move(bytes))}, fresh.encoded.figures};
  edge.carry = std::move(fresh.carry);
  edge.sent = own.payload.bytes;
  edge.sent_offsets = std::move(fresh.encoded.offsets);
  return own;
}

Result<PayloadView> Replica::view_of_own(const Edge& edge, const Payload& own) const {
  if (edge.sent_offsets.empty() || own.bytes == nullptr || edge.sent.lock() != own.bytes)
    return parse_payload(layout_, own);
  const ByteView bytes(*own.bytes);
  const std::size_t delta = edge.sent_offsets.back();
  return PayloadView{own_delta(layout_, own.level, bytes.first(delta), edge.sent_offsets),
                     bytes.subspan(delta)};
}

struct Replica::Exchange {
  const ExchangeTerms& terms;
  const PayloadView& own;
  const PayloadView& theirs;
  const Payload& own_payload;
  const Payload& their_payload;
};

float Replica::scale_of(const ExchangeTerms& terms, double norm) const {
  const auto most = static_cast<double>(terms.max_norm);
  if (most <= 0 || norm <= most) return 1;
  const auto scale = static_cast<float>(most / norm);
  // The further off, the less of it: whoever shouts the same at every turn would otherwise pull as
  // hard each time as an honest neighbour does once, and always the same way.
  return options_.aggregator == Aggregator::clip ? scale * scale : scale;
}

Result<void> Replica::apply(const Exchange& exchange, LentMaster& master, Edge& edge,
                            ExchangeDone& done) {
  const ExchangeTerms& terms = exchange.terms;
  const DeltaPair pair{exchange.own.delta, exchange.theirs.delta, terms.own_side};
  // Both deltas are decoded twice where it is clipped: by how much must be known before the first
  // value changes.
  if (terms.max_norm > 0 && difference_norm_bound(pair) > static_cast<double>(terms.max_norm))
    done.scale = scale_of(terms, difference_norm(pair, options_.isa));
  const float factor = holds_back(options_.aggregator) ? 0 : factor_of(done.scale, terms.weight);
  TRY(const double norm, master.apply(pair, factor, *edge.reference));
  done.norm = as_float(norm);
  return settle(exchange, master, edge, done);
}

Result<void> Replica::answer_at_once(const AnswerJob& job, const PayloadView& theirs,
                                     LentMaster& master, ExchangeDone& done) {
  const ExchangeTerms& terms = job.terms;
  Edge& edge = edges_.at(terms.edge);
  const Statistics statistics = job.theirs.statistics;
  const bool holds = holds_back(options_.aggregator);
  TRY(Bytes tail, own_statistics(master, statistics));
  Carry next = edge.carry;
  auto answered = master.answer({theirs.delta, terms.own_side, holds ? 0 : terms.weight.value()},
                                *edge.reference, job.own_level, next);
  if (!answered) {
    edges_.erase(terms.edge);
    return std::unexpected(answered.error());
  }
  OwnPayload own = keep(edge, {std::move(answered->own), std::move(next), job.own_level, statistics,
                               std::move(tail)});
  const auto view = view_of_own(edge, own.payload);
  STARLING_CHECK(view.has_value());
  done.answer = own.payload;
  done.figures = own.figures;
  done.norm = as_float(answered->norm);
  done.scale = scale_of(terms, answered->norm);
  if (done.scale < 1 && !holds) {
    // Rare: theirs was within the bound by itself. What was too much is taken back.
    const float back = factor_of(done.scale, terms.weight) - terms.weight.value();
    TRY_VOID(master.edit([&](std::span<float> parameters) {
      add_difference({view->delta, theirs.delta, terms.own_side}, back, parameters, options_.isa);
    }));
  }
  return settle({terms, *view, theirs, own.payload, job.theirs}, master, edge, done);
}

Result<void> Replica::settle(const Exchange& exchange, LentMaster& master, Edge& edge,
                             ExchangeDone& done) {
  const ExchangeTerms& terms = exchange.terms;
  edge.exchanges += 1;
  if (holds_back(options_.aggregator)) {
    const float factor = 2 * factor_of(done.scale, terms.weight);
    held_.hold(terms.edge, {exchange.own_payload, exchange.their_payload, factor});
    if (held_.complete(edges_.size())) TRY_VOID(add_held(master));
  }
  if (fault::planted("replica.residual_dropped")) master.overwrite(*edge.reference);
  // Who sends a few sizes at every turn moves a mean as far as it likes in the end, so whoever is
  // on guard keeps its own until the final consensus.
  if (trusts(options_.aggregator) && !exchange.theirs.statistics.empty()) {
    TRY(const ChannelStatistics own, master.statistics());
    const auto bound = options_.aggregator == Aggregator::unguarded ? StatisticsBound::none
                                                                    : StatisticsBound::reach;
    done.channels_clipped = pool_statistics(exchange.theirs.statistics, terms.weight, own, bound);
  }
  return {};
}

Hash Replica::chain_after(const ExchangeTerms& terms, const Payload& own,
                          const Payload& theirs) const {
  const bool own_is_lower = terms.own_side == Side::lower;
  const Payload& lower = own_is_lower ? own : theirs;
  const Payload& higher = own_is_lower ? theirs : own;
  return next_chain(terms.chain, *lower.bytes, *higher.bytes, vectors_->parts());
}

Result<void> Replica::add_held(LentMaster& master) {
  return master.edit([this](std::span<float> parameters) {
    held_.apply(layout_, options_.aggregator, parameters, options_.isa);
  });
}

Result<CodecDone> Replica::run_job(const OfferJob& job) {
  STARLING_CHECK_OP(job.spot_block, <, layout_.blocks());
  TRY(Edge * edge, find(job.edge));
  OfferDone done;
  TRY_VOID(vectors_->with_master([&](LentMaster& master) -> Result<void> {
    TRY(OwnPayload own, make_payload(master, *edge, job.level, job.statistics));
    done.payload = std::move(own.payload);
    done.figures = own.figures;
    return {};
  }));
  TRY(const Hash spot, edge->reference->hash_of_block(job.spot_block));
  done.spot = {job.spot_block, spot};
  return done;
}

Result<CodecDone> Replica::run_job(const AnswerJob& job) {
  check_weight(job.terms.weight);
  TRY(Edge * edge, find(job.terms.edge));
  TRY(PayloadView theirs, parse_payload(layout_, job.theirs));
  TRY_VOID(compare_spot(*edge, job.their_spot));
  ExchangeDone done;
  // One lease for both halves: the answer encodes exactly the x that the increment changes.
  TRY_VOID(vectors_->with_master([&](LentMaster& master) -> Result<void> {
    // A value of theirs that is far above the bound would take the place of x in its float, and
    // nothing could be taken back.
    const auto most = static_cast<double>(job.terms.max_norm);
    if (most <= 0 || norm_bound(theirs.delta) <= most)
      return answer_at_once(job, theirs, master, done);
    TRY(OwnPayload own, make_payload(master, *edge, job.own_level, job.theirs.statistics));
    const auto view = view_of_own(*edge, own.payload);
    STARLING_CHECK(view.has_value());
    done.answer = own.payload;
    done.figures = own.figures;
    return apply({job.terms, *view, theirs, own.payload, job.theirs}, master, *edge, done);
  }));
  done.chain = chain_after(job.terms, done.answer, job.theirs);
  return done;
}

Result<CodecDone> Replica::run_job(const ApplyJob& job) {
  check_weight(job.terms.weight);
  TRY(Edge * edge, find(job.terms.edge));
  TRY(PayloadView theirs, parse_payload(layout_, job.theirs));
  TRY(PayloadView own, view_of_own(*edge, job.own));
  TRY_VOID(compare_spot(*edge, job.their_spot));
  ExchangeDone done;
  TRY_VOID(vectors_->with_master([&](LentMaster& master) -> Result<void> {
    if (fault::planted("replica.late_answer_overwrites")) master.overwrite(*edge->reference);
    return apply({job.terms, own, theirs, job.own, job.theirs}, master, *edge, done);
  }));
  done.chain = chain_after(job.terms, job.own, job.theirs);
  return done;
}

Result<CodecDone> Replica::run_job(const GenesisJob& job) {
  TRY(Edge * edge, find_or_make(job.edge));
  TRY_VOID(edge->reference->fill(genesis_));
  if (!genesis_hash_) {
    TRY(genesis_hash_, edge->reference->hash());
  }
  return ReferenceSet{*genesis_hash_, nullptr};
}

Result<CodecDone> Replica::run_job(const SnapshotJob& job) {
  Encoded encoded;
  TRY_VOID(vectors_->with_master([&](LentMaster& master) -> Result<void> {
    Carry unused;
    TRY(encoded, master.encode(nullptr, Level::l6, unused));
    return {};
  }));
  TRY(Edge * edge, find_or_make(job.edge));
  const auto view = parse_delta(layout_, Level::l6, encoded.bytes);
  STARLING_CHECK(view.has_value());
  TRY_VOID(edge->reference->install(*view));
  TRY(const Hash hash, edge->reference->hash());
  return ReferenceSet{hash, share(std::move(encoded.bytes))};
}

Result<CodecDone> Replica::run_job(const InstallJob& job) {
  if (job.bytes == nullptr)
    return fail(Errc::bad_message, Doing::opening_edge, "a snapshot without bytes");
  TRY(DeltaView view, parse_delta(layout_, Level::l6, *job.bytes));
  TRY(Edge * edge, find_or_make(job.edge));
  TRY_VOID(edge->reference->install(view));
  TRY(const Hash hash, edge->reference->hash());
  if (fault::planted("replica.snapshot_for_another_edge")) {
    TRY_VOID(edge->reference->fill(genesis_));
  } else if (hash != job.expected) {
    edges_.erase(job.edge);
    return fail(Errc::corrupt, Doing::opening_edge,
                text_of(job.edge) + ": the snapshot decodes to " + short_form(hash) +
                    ", the neighbour says " + short_form(job.expected));
  }
  return ReferenceSet{hash, nullptr};
}

Result<CodecDone> Replica::run_job(const DropJob& job) {
  held_.forget(job.edge);
  edges_.erase(job.edge);
  return ReferenceDropped{};
}

}  // namespace starling::gossip
