#include "gossip/delta/replica.h"

#include "node/base/check.h"
#include "node/base/fault.h"
#include "node/base/hash.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace starling::gossip {

namespace {

Hash hash_of_reference(const FlatVector& reference) {
  return hash_of(std::as_bytes(reference.values()));
}

std::string text_of(const EdgeEnds& edge) {
  return "edge " + short_form(edge.lower) + " - " + short_form(edge.higher);
}

// A float for the history of norms; a norm beyond all floats is as good as the largest.
float as_float(double norm) {
  return static_cast<float>(std::min(norm, static_cast<double>(std::numeric_limits<float>::max())));
}

// Encodes the master against a reference, with the statistics where they are asked for.
struct OwnPayload {
  Payload payload;
  EncodeFigures figures;
};
struct PayloadOrder {
  Level level;
  Statistics statistics;
  Isa isa;
};
Result<OwnPayload> make_payload(const Layout& layout, const MasterView& master,
                                std::span<const float> reference, const PayloadOrder& order,
                                Carry& carry) {
  Carry next = carry;  // so that a refusal by the statistics leaves it alone as well
  TRY(Encoded encoded, encode(layout, {master.parameters, reference},
                              {.level = order.level, .isa = order.isa}, next));
  if (order.statistics == Statistics::with)
    TRY_VOID(append_statistics({master.bn_mean, master.bn_variance}, encoded.bytes));
  carry = std::move(next);
  return OwnPayload{{order.level, order.statistics, share(std::move(encoded.bytes))},
                    encoded.figures};
}

// Applies checked payloads to x, r and the statistics; fills norm, scale and chain.
struct Exchange {
  const ExchangeTerms& terms;
  const PayloadView& own;
  const PayloadView& theirs;
  ByteView own_bytes;
  ByteView their_bytes;
};
void apply(const Exchange& exchange, const MasterView& master, std::span<float> reference, Isa isa,
           ExchangeDone& done) {
  const ExchangeTerms& terms = exchange.terms;
  STARLING_CHECK(terms.weight.of_128 >= 1 && terms.weight.of_128 <= 64);
  const DeltaPair pair{exchange.own.delta, exchange.theirs.delta, terms.own_side};
  if (terms.max_norm > 0 && difference_norm_bound(pair) > static_cast<double>(terms.max_norm)) {
    // Both deltas are decoded twice then: the clip must be known before the first value changes.
    const double norm = difference_norm(pair, isa);
    if (norm > static_cast<double>(terms.max_norm))
      done.scale = static_cast<float>(static_cast<double>(terms.max_norm) / norm);
  }
  const float factor = done.scale * terms.weight.value();
  done.norm = as_float(apply_exchange(pair, factor, {master.parameters, reference}, isa));
  if (fault::planted("replica.residual_dropped"))
    std::ranges::copy(reference, master.parameters.begin());
  if (!exchange.theirs.statistics.empty())
    pool_statistics(exchange.theirs.statistics, terms.weight, {master.bn_mean, master.bn_variance});
  const bool own_is_lower = terms.own_side == Side::lower;
  done.chain = next_chain(terms.chain, own_is_lower ? exchange.own_bytes : exchange.their_bytes,
                          own_is_lower ? exchange.their_bytes : exchange.own_bytes);
}

void decode_into(const DeltaView& view, std::span<float> out, Isa isa) {
  for (std::size_t block = 0; block < view.layout().blocks(); ++block)
    decode_block(view, block, out.subspan(block * kBlock, kBlock), isa);
}

}  // namespace

Hash hash_of_block(std::span<const float> reference, std::size_t block) {
  return hash_of(std::as_bytes(reference.subspan(block * kBlock, kBlock)));
}

Hash next_chain(const Hash& chain, ByteView lower, ByteView higher) {
  return Hasher().add(chain.view()).add(lower).add(higher).finish();
}

Replica::Replica(const Layout& layout, MasterPort& master, Genesis genesis, ReplicaOptions options)
    : layout_(layout), master_(master), genesis_(std::move(genesis)), options_(options) {}

CodecOutcome Replica::run(const CodecJob& job) {
  return {edge_of(job), std::visit([this](const auto& one) { return run_job(one); }, job)};
}

std::span<const float> Replica::reference(const EdgeEnds& edge) const {
  const auto found = edges_.find(edge);
  if (found == edges_.end()) return {};
  return found->second.reference.values();
}

Result<Replica::Edge*> Replica::find(const EdgeEnds& edge) {
  const auto found = edges_.find(edge);
  if (found == edges_.end())
    return fail(Errc::not_found, Doing::exchanging, text_of(edge) + " has no reference here");
  return &found->second;
}

Result<Replica::Edge*> Replica::find_or_make(const EdgeEnds& edge) {
  if (const auto found = edges_.find(edge); found != edges_.end()) {
    found->second.carry = {};
    return &found->second;
  }
  TRY(FlatVector reference, FlatVector::make(layout_.size()));
  return &edges_.emplace(edge, Edge{std::move(reference), {}}).first->second;
}

Result<void> Replica::compare_spot(const Edge& edge, const std::optional<Spot>& spot) const {
  if (!spot) return {};
  if (spot->block >= layout_.blocks())
    return fail(Errc::bad_message, Doing::exchanging,
                "a hash of block " + std::to_string(spot->block) + " of " +
                    std::to_string(layout_.blocks()));
  if (hash_of_block(edge.reference.values(), spot->block) != spot->hash)
    return fail(
        Errc::corrupt, Doing::exchanging,
        "block " + std::to_string(spot->block) + " of the reference differs from the neighbour's");
  return {};
}

Result<CodecDone> Replica::run_job(const OfferJob& job) {
  STARLING_CHECK_OP(job.spot_block, <, layout_.blocks());
  TRY(Edge * edge, find(job.edge));
  Result<OwnPayload> own = fail(Errc::internal, Doing::encoding_delta, "the master was not lent");
  master_.with_master([&](MasterView master) {
    own = make_payload(layout_, master, edge->reference.values(),
                       {job.level, job.statistics, options_.isa}, edge->carry);
  });
  if (!own) return fail(std::move(own).error());
  const Hash spot = hash_of_block(edge->reference.values(), job.spot_block);
  return OfferDone{std::move(own->payload), {job.spot_block, spot}, own->figures};
}

Result<CodecDone> Replica::run_job(const AnswerJob& job) {
  TRY(Edge * edge, find(job.terms.edge));
  TRY(PayloadView theirs, parse_payload(layout_, job.theirs));
  TRY_VOID(compare_spot(*edge, job.their_spot));
  Result<CodecDone> result = fail(Errc::internal, Doing::encoding_delta, "the master was not lent");
  // One lease for both halves: the answer encodes exactly the x that the increment changes.
  master_.with_master([&](MasterView master) {
    auto own = make_payload(layout_, master, edge->reference.values(),
                            {job.own_level, job.theirs.statistics, options_.isa}, edge->carry);
    if (!own) {
      result = fail(std::move(own).error());
      return;
    }
    const auto view = parse_payload(layout_, own->payload);
    STARLING_CHECK(view.has_value());
    ExchangeDone done;
    done.answer = own->payload;
    done.figures = own->figures;
    apply({job.terms, *view, theirs, *own->payload.bytes, *job.theirs.bytes}, master,
          edge->reference.values(), options_.isa, done);
    result = std::move(done);
  });
  return result;
}

Result<CodecDone> Replica::run_job(const ApplyJob& job) {
  TRY(Edge * edge, find(job.terms.edge));
  TRY(PayloadView theirs, parse_payload(layout_, job.theirs));
  TRY(PayloadView own, parse_payload(layout_, job.own));
  TRY_VOID(compare_spot(*edge, job.their_spot));
  ExchangeDone done;
  master_.with_master([&](MasterView master) {
    if (fault::planted("replica.late_answer_overwrites"))
      std::ranges::copy(edge->reference.values(), master.parameters.begin());
    apply({job.terms, own, theirs, *job.own.bytes, *job.theirs.bytes}, master,
          edge->reference.values(), options_.isa, done);
  });
  return done;
}

Result<CodecDone> Replica::run_job(const GenesisJob& job) {
  TRY(Edge * edge, find_or_make(job.edge));
  const auto values = edge->reference.values();
  std::ranges::fill(values, 0.0F);
  genesis_(values);
  if (!genesis_hash_) genesis_hash_ = hash_of_reference(edge->reference);
  return ReferenceSet{*genesis_hash_, nullptr};
}

Result<CodecDone> Replica::run_job(const SnapshotJob& job) {
  Result<Encoded> encoded = fail(Errc::internal, Doing::encoding_delta, "the master was not lent");
  Carry unused;
  master_.with_master([&](MasterView master) {
    encoded =
        encode(layout_, {master.parameters, {}}, {.level = Level::l6, .isa = options_.isa}, unused);
  });
  if (!encoded) return fail(std::move(encoded).error());
  TRY(Edge * edge, find_or_make(job.edge));
  const auto view = parse_delta(layout_, Level::l6, encoded->bytes);
  STARLING_CHECK(view.has_value());
  decode_into(*view, edge->reference.values(), options_.isa);
  return ReferenceSet{hash_of_reference(edge->reference), share(std::move(encoded->bytes))};
}

Result<CodecDone> Replica::run_job(const InstallJob& job) {
  if (job.bytes == nullptr)
    return fail(Errc::bad_message, Doing::opening_edge, "a snapshot without bytes");
  TRY(DeltaView view, parse_delta(layout_, Level::l6, *job.bytes));
  TRY(Edge * edge, find_or_make(job.edge));
  decode_into(view, edge->reference.values(), options_.isa);
  const Hash hash = hash_of_reference(edge->reference);
  if (fault::planted("replica.snapshot_for_another_edge")) {
    genesis_(edge->reference.values());
  } else if (hash != job.expected) {
    edges_.erase(job.edge);
    return fail(Errc::corrupt, Doing::opening_edge,
                text_of(job.edge) + ": the snapshot decodes to " + short_form(hash) +
                    ", the neighbour says " + short_form(job.expected));
  }
  return ReferenceSet{hash, nullptr};
}

Result<CodecDone> Replica::run_job(const DropJob& job) {
  edges_.erase(job.edge);
  return ReferenceDropped{};
}

}  // namespace starling::gossip
