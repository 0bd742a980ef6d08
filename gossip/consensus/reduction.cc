#include "gossip/consensus/reduction.h"

#include "gossip/consensus/packing.h"
#include "node/base/check.h"
#include "node/base/fault.h"

#include <algorithm>

namespace starling::gossip::consensus {
namespace {

// Every contribution to a chunk is at its root at once: fewer chunks at a time (up to 64 MiB each).
constexpr std::uint32_t kMedianWindow = 2;

// Of children's sums that a node lets come at a time: a hub begins fewer chunks, one at least.
constexpr std::size_t kMostSumBytes = std::size_t{64} << 20;

// Byte by byte maximum.
SharedBytes larger_of(const SharedBytes& a, const SharedBytes& b) {
  Bytes out(a->size());
  std::transform(a->begin(), a->end(), b->begin(), out.begin(),
                 [](std::byte x, std::byte y) { return std::max(x, y); });
  return share(std::move(out));
}

bool all_at_least(const Bytes& values, const Bytes& bounds) {
  return std::equal(values.begin(), values.end(), bounds.begin(), bounds.end(),
                    [](std::byte value, std::byte bound) { return value >= bound; });
}

}  // namespace

Reduction::Reduction(ReductionTerms terms, const ChunkPlan& plan, ChunkStore& store,
                     const Signer& signer, const Verifier& verifier)
    : terms_(std::move(terms)),
      plan_(plan),
      store_(store),
      signer_(signer),
      verifier_(verifier),
      hashes_(plan.count()),
      root_signatures_(plan.count()) {
  const auto self = terms_.agreed.find_index(terms_.self);
  STARLING_CHECK(self.has_value());
  self_ = *self;
  window_ = terms_.agreed.rule != Rule::mean ? std::min(terms_.window, kMedianWindow)
                                             : std::max(terms_.window, 1U);
}

ReductionEffects Reduction::take() { return std::exchange(out_, {}); }

NodeId Reduction::root(std::uint32_t chunk) const {
  return terms_.agreed.members[root_of(terms_.agreed, chunk)].id;
}

bool Reduction::uses(const NodeId& peer) const {
  const auto at = terms_.agreed.find_index(peer);
  const auto& near = terms_.agreed.sessions[self_];
  return at && std::binary_search(near.begin(), near.end(), *at);
}

std::uint64_t Reduction::bytes_left() const {
  std::uint64_t left = 0;
  for (std::uint32_t chunk = base_; chunk < plan_.count(); ++chunk)
    if (hashes_[chunk].is_zero()) left += plan_.result_bytes(chunk);
  return left;
}

bool Reduction::in_reach(std::uint32_t chunk) const {
  return chunk >= base_ && chunk < plan_.count() && chunk - base_ < 2 * window_ &&
         hashes_[chunk].is_zero();
}

Reduction::Work& Reduction::work(std::uint32_t chunk) {
  const auto [at, is_new] = works_.try_emplace(chunk);
  if (!is_new) return at->second;
  const auto& members = terms_.agreed.members;
  const auto place = place_in_tree(terms_.agreed, root_of(terms_.agreed, chunk), self_);
  if (place.parent) at->second.parent = members[*place.parent].id;
  for (const auto& child : place.children)
    at->second.children.push_back(
        {members[child.member].id, child.weight, child.members, nullptr, nullptr});
  return at->second;
}

Reduction::Child* Reduction::find_child(Work& work, const NodeId& id) {
  const auto at = std::find_if(work.children.begin(), work.children.end(),
                               [&](const Child& child) { return child.id == id; });
  return at == work.children.end() ? nullptr : &*at;
}

void Reduction::fault(RefusalReason reason, std::uint32_t chunk, const NodeId& accused,
                      std::string detail) {
  if (!out_.fault) out_.fault = {reason, chunk, accused, std::move(detail)};
}

ReductionEffects Reduction::start() {
  started_ = true;
  begin_chunks();
  return take();
}

void Reduction::begin_chunks() {
  if (!started_) return;
  for (std::uint32_t chunk = base_; chunk < plan_.count() && chunk - base_ < window_; ++chunk)
    if (hashes_[chunk].is_zero()) advance(chunk);
}

// The first chunk that is not done goes on at every node, so all of them come to their end, and
// none is further ahead of this node than the window.
bool Reduction::may_begin(std::uint32_t chunk) {
  if (!started_ || chunk - base_ >= window_) return false;
  std::size_t bytes = 0;
  for (std::uint32_t earlier = base_; earlier <= chunk; ++earlier) {
    if (!hashes_[earlier].is_zero()) continue;
    for (const auto& child : work(earlier).children)
      bytes += packed_bytes(plan_.values(earlier), sum_bits(plan_.kind(earlier), child.weight));
  }
  return chunk == base_ || bytes <= kMostSumBytes;
}

// Takes a chunk as far as it can go without another message or outcome.
void Reduction::advance(std::uint32_t chunk) {
  auto& w = work(chunk);
  if (w.stage == Stage::waiting) {
    if (!may_begin(chunk)) return;
    // Second moments are taken about the common mean, the chunk before.
    if (plan_.kind(chunk) == ChunkKind::variance && hashes_[chunk - 1].is_zero()) return;
    w.stage = Stage::measuring;
    out_.jobs.emplace_back(ExponentsJob{target(chunk)});
  }
  if (w.stage == Stage::measuring) raise(chunk, w);
  if (w.stage == Stage::summing) add_up(chunk, w);
}

void Reduction::raise(std::uint32_t chunk, Work& w) {
  if (!w.own_exponents) return;
  SharedBytes most = w.own_exponents;
  for (const auto& child : w.children) {
    if (!child.exponents) return;
    most = larger_of(most, child.exponents);
  }
  w.raised = most;
  if (w.parent) {
    w.stage = Stage::raising;
    out_.send.emplace_back(*w.parent, Exponents{terms_.round, chunk, Direction::up, most});
    return;
  }
  w.common = most;
  w.stage = Stage::summing;
  spread_exponents(chunk, w);
}

void Reduction::spread_exponents(std::uint32_t chunk, const Work& w) {
  for (const auto& child : w.children)
    out_.send.emplace_back(child.id, Exponents{terms_.round, chunk, Direction::down, w.common});
}

void Reduction::add_up(std::uint32_t chunk, Work& w) {
  // Batch counters are summed under both rules: there is no middle one.
  if (terms_.agreed.rule != Rule::mean && plan_.kind(chunk) != ChunkKind::counters)
    return add_up_median(chunk, w);
  SumJob job{.target = target(chunk),
             .exponents = w.common,
             .own_weight = terms_.agreed.members[self_].weight,
             .children = {}};
  for (auto& child : w.children) {
    if (!child.sum) return;
    job.children.push_back({child.id, child.sum, child.weight, child.members});
  }
  w.stage = Stage::adding;
  if (w.parent) {
    out_.jobs.emplace_back(std::move(job));
  } else {
    store_.begin_write(chunk);
    out_.jobs.emplace_back(DivideJob{std::move(job)});
  }
}

void Reduction::add_up_median(std::uint32_t chunk, Work& w) {
  if (w.parent) {
    w.stage = Stage::adding;
    out_.jobs.emplace_back(PackJob{target(chunk)});
    return;
  }
  if (w.contributions.size() + 1 < terms_.agreed.members.size()) return;
  MedianJob job{.target = target(chunk), .rule = terms_.agreed.rule, .others = {}};
  for (const auto& [origin, values] : w.contributions) job.others.push_back({origin, values, 1, 1});
  w.stage = Stage::adding;
  store_.begin_write(chunk);
  out_.jobs.emplace_back(std::move(job));
}

ReductionEffects Reduction::on_exponents(const NodeId& from, const Exponents& message) {
  if (!in_reach(message.chunk)) return {};
  auto& w = work(message.chunk);
  if (w.parent != from && find_child(w, from) == nullptr) return {};
  if (message.values->size() != plan_.exponents(message.chunk)) {
    fault(RefusalReason::bad_bytes, message.chunk, from, "a wrong number of exponents");
    return take();
  }
  if (message.direction == Direction::up) {
    auto* child = find_child(w, from);
    if (child == nullptr || child->exponents) return {};
    child->exponents = message.values;
    ++progress_;
  } else {
    if (w.parent != from || w.stage != Stage::raising) return {};
    if (!all_at_least(*message.values, *w.raised)) {
      fault(RefusalReason::bad_bytes, message.chunk, from, "exponents below what was raised");
      return take();
    }
    w.common = message.values;
    w.stage = Stage::summing;
    spread_exponents(message.chunk, w);
    ++progress_;
  }
  advance(message.chunk);
  return take();
}

ReductionEffects Reduction::on_sum(const NodeId& from, const Sum& message) {
  if (!in_reach(message.chunk)) return {};
  auto& w = work(message.chunk);
  auto* child = find_child(w, from);
  if (child == nullptr || child->sum || w.stage != Stage::summing) return {};
  const auto bits = sum_bits(plan_.kind(message.chunk), child->weight);
  if (message.values->size() != packed_bytes(plan_.values(message.chunk), bits)) {
    fault(RefusalReason::bad_bytes, message.chunk, from, "a sum of a wrong size");
    return take();
  }
  child->sum = message.values;
  ++progress_;
  advance(message.chunk);
  return take();
}

// Whether the child `from` is who passes the values of this origin on. All others may lie about
// them: the median would be whatever one participant said in the name of all.
bool Reduction::carries(const NodeId& from, const Contribution& message) const {
  const auto origin = terms_.agreed.find_index(message.origin);
  if (!origin) return false;
  const auto way =
      child_towards(terms_.agreed, root_of(terms_.agreed, message.chunk), self_, *origin);
  return way && terms_.agreed.members[*way].id == from;
}

ReductionEffects Reduction::on_contribution(const NodeId& from, const Contribution& message) {
  if (terms_.agreed.rule == Rule::mean || !in_reach(message.chunk)) return {};
  auto& w = work(message.chunk);
  if (find_child(w, from) == nullptr || !w.common) return {};
  if (!carries(from, message)) {
    fault(RefusalReason::bad_bytes, message.chunk, from,
          "a contribution of " + short_form(message.origin) + ", which is not behind it");
    return take();
  }
  if (message.values->size() != plan_.values(message.chunk) * sizeof(float)) {
    fault(RefusalReason::bad_bytes, message.chunk, from, "a contribution of a wrong size");
    return take();
  }
  if (!w.contributions.try_emplace(message.origin, message.values).second) return {};
  ++progress_;
  if (w.parent)
    out_.send.emplace_back(*w.parent, message);
  else
    advance(message.chunk);
  return take();
}

ReductionEffects Reduction::on_result(const NodeId& from, const ResultChunk& message) {
  if (!in_reach(message.chunk)) return {};
  auto& w = work(message.chunk);
  if (w.parent != from || w.stage != Stage::lowering) return {};
  const std::size_t size = form() == ResultForm::packed ? plan_.packed_result_bytes(message.chunk)
                                                        : plan_.result_bytes(message.chunk);
  if (message.values->size() != size ||
      check(message, root(message.chunk), verifier_, terms_.fingerprint) != Verdict::valid) {
    fault(RefusalReason::bad_bytes, message.chunk, from,
          "a result of a wrong size or without its root's signature");
    return take();
  }
  w.stage = Stage::storing;
  w.result = message;
  store_.begin_write(message.chunk);
  out_.jobs.emplace_back(
      StoreJob{target(message.chunk), from, message.hash, message.values, form()});
  ++progress_;
  return take();
}

ReductionEffects Reduction::on_request(const NodeId& from, const ChunkRequest& message) {
  if (message.chunk >= plan_.count() || !uses(from)) return {};
  const auto& hash = hashes_[message.chunk];
  if (hash.is_zero() || !store_.holds(message.chunk, hash)) return {};
  out_.jobs.emplace_back(LoadJob{target(message.chunk), from, hash, form()});
  return take();
}

ReductionEffects Reduction::on_job_done(const JobOutcome& outcome) {
  const auto chunk = outcome.target.chunk;
  if (outcome.result) {
    std::visit([&](const auto& done) { on_done(chunk, done); }, *outcome.result);
  } else if (outcome.culprit) {
    fault(RefusalReason::bad_bytes, chunk, *outcome.culprit, outcome.result.error().detail);
  } else if (outcome.result.error().code == Errc::replicas_differ) {
    // The own replica is sound, what all of them came to is not: the next epoch takes the median.
    fault(RefusalReason::sanity, chunk, root(chunk), outcome.result.error().detail);
  } else if (outcome.kind != JobKind::load) {
    fault(RefusalReason::not_finite, chunk, terms_.self, outcome.result.error().detail);
  }
  return take();
}

void Reduction::on_done(std::uint32_t chunk, const ExponentsFound& done) {
  work(chunk).own_exponents = done.values;
  ++progress_;
  advance(chunk);
}

void Reduction::on_done(std::uint32_t chunk, const SumPacked& done) {
  fault::pass("consensus.summed");
  auto& w = work(chunk);
  w.stage = Stage::lowering;
  w.sum = done.values;
  ++progress_;
  send_own(chunk, w);
  for (auto& child : w.children) child.sum = nullptr;
}

// The packed sum of this node's subtree, or its own values, to the parent.
void Reduction::send_own(std::uint32_t chunk, const Work& w) {
  if (terms_.agreed.rule != Rule::mean && plan_.kind(chunk) != ChunkKind::counters)
    out_.send.emplace_back(*w.parent, Contribution{terms_.round, chunk, terms_.self, w.sum});
  else
    out_.send.emplace_back(*w.parent, Sum{terms_.round, chunk, w.sum});
}

void Reduction::on_done(std::uint32_t chunk, const ChunkDivided& done) {
  fault::pass("consensus.divided");
  ResultChunk result{terms_.round, chunk, done.hash, {}, done.values};
  sign(result, signer_, terms_.fingerprint);
  for (const auto& child : work(chunk).children) out_.send.emplace_back(child.id, result);
  root_signatures_[chunk] = result.signature;
  hashes_[chunk] = done.hash;
  finish(chunk);
}

void Reduction::on_done(std::uint32_t chunk, const ChunkStored& done) {
  auto& w = work(chunk);
  STARLING_CHECK(w.result.has_value());
  for (const auto& child : w.children) out_.send.emplace_back(child.id, *w.result);
  root_signatures_[chunk] = w.result->signature;
  hashes_[chunk] = done.hash;
  finish(chunk);
}

void Reduction::on_done(std::uint32_t chunk, const ChunkLoaded& done) {
  out_.send.emplace_back(
      done.to, ResultChunk{terms_.round, chunk, done.hash, root_signatures_[chunk], done.values});
}

void Reduction::finish(std::uint32_t chunk) {
  works_.erase(chunk);
  ++done_;
  ++progress_;
  while (base_ < plan_.count() && !hashes_[base_].is_zero()) ++base_;
  begin_chunks();
}

ReductionEffects Reduction::on_session_up(const NodeId& peer) {
  if (!uses(peer)) return {};
  for (auto& [chunk, w] : works_) {
    if (w.parent == peer) {
      if (w.stage == Stage::raising)
        out_.send.emplace_back(peer, Exponents{terms_.round, chunk, Direction::up, w.raised});
      for (const auto& [origin, values] : w.contributions)
        out_.send.emplace_back(peer, Contribution{terms_.round, chunk, origin, values});
      if (w.stage == Stage::lowering) {
        send_own(chunk, w);
        out_.send.emplace_back(peer, ChunkRequest{terms_.round, chunk, Hash{}});
      }
    }
    if (w.common && find_child(w, peer) != nullptr)
      out_.send.emplace_back(peer, Exponents{terms_.round, chunk, Direction::down, w.common});
  }
  return take();
}

ReductionEffects Reduction::send_again(const NodeId& peer, const ConsensusMessage& message) {
  // A result is kept by nobody but the result buffer.
  if (const auto* result = std::get_if<ResultChunk>(&message))
    return on_request(peer, ChunkRequest{terms_.round, result->chunk, Hash{}});
  std::visit(
      [&](const auto& lost) {
        if constexpr (requires(Work& w) { repeat(peer, w, lost); })
          if (const auto at = works_.find(lost.chunk); at != works_.end())
            repeat(peer, at->second, lost);
      },
      message);
  return take();
}

// A parent that went on has what it went on with, whatever became of the session.
void Reduction::repeat(const NodeId& peer, Work& w, const Exponents& lost) {
  const bool up = lost.direction == Direction::up;
  if (up ? w.parent == peer && w.stage == Stage::raising
         : w.common && find_child(w, peer) != nullptr)
    out_.send.emplace_back(
        peer, Exponents{terms_.round, lost.chunk, lost.direction, up ? w.raised : w.common});
}

void Reduction::repeat(const NodeId& peer, Work& w, const Sum& lost) {
  if (w.parent == peer && w.stage == Stage::lowering) send_own(lost.chunk, w);
}

void Reduction::repeat(const NodeId& peer, Work& w, const Contribution& lost) {
  if (w.parent != peer) return;
  if (lost.origin == terms_.self) {
    if (w.stage == Stage::lowering) send_own(lost.chunk, w);
  } else if (const auto at = w.contributions.find(lost.origin); at != w.contributions.end()) {
    out_.send.emplace_back(peer, Contribution{terms_.round, lost.chunk, lost.origin, at->second});
  }
}

}  // namespace starling::gossip::consensus
