#include "tests/sim/checkers.h"

#include "gossip/delta/exchange.h"
#include "node/base/hash.h"
#include "transport/limits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace starling::sim {

namespace consensus = gossip::consensus;
using gossip::MemberState;

namespace {

constexpr std::size_t kMostViolations = 10;
// A machine is healthy when no fault has touched it for this long: longer than what a fault leaves
// behind (suspicions, silent sessions, kernels that wait with their retransmission).
constexpr Duration kHealthy = std::chrono::seconds(45);
// An answer that comes later than this was held up by an outage.
constexpr Duration kHeldUp = std::chrono::seconds(3);
// One check of the residual in so many exchanges: it decodes a delta.
constexpr std::uint64_t kResidualEvery = 8;

// +1 or -1, fixed for each coordinate: two increments that are not opposite show in the sum.
double direction(std::size_t index) {
  return (index * 0x9e3779b97f4a7c15ULL) >> 63 != 0 ? 1.0 : -1.0;
}

bool overlap(const std::vector<NodeId>& a, const std::vector<NodeId>& b) {
  return std::ranges::any_of(a,
                             [&](const NodeId& id) { return std::ranges::binary_search(b, id); });
}

}  // namespace

void Checkers::report(std::string_view checker, std::string what) {
  if (violations_.size() < kMostViolations)
    violations_.push_back({schedule_.now(), checker, std::move(what)});
}

// ---- exchanges

void Checkers::check_finite(const Process& who, const char* after) {
  const Weights& weights = who.weights();
  if (all_finite(weights.parameters) && all_finite(weights.mean) && all_finite(weights.variance))
    return;
  report("finite values", who.name() + " holds a value that is not finite, after " + after);
}

void Checkers::on_codec_run(const Process& who, const CodecRun& run) {
  if (!run.outcome.result) return;
  const auto* done = std::get_if<gossip::ExchangeDone>(&*run.outcome.result);
  if (done == nullptr) return;
  ++tally_.exchanges;
  check_finite(who, "an exchange");
  const auto* answer = std::get_if<gossip::AnswerJob>(&run.job);
  const auto* apply = std::get_if<gossip::ApplyJob>(&run.job);
  const auto& terms = answer != nullptr ? answer->terms : apply->terms;
  const auto& own = answer != nullptr ? done->answer : apply->own;

  Half half{who.id(), 0, 0, done->scale >= 1, terms.weight, done->chain};
  const auto& before = run.weights_before.parameters;
  const auto& after = who.weights().parameters;
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (!problem_.is_real(i)) continue;
    const double moved = static_cast<double>(after[i]) - static_cast<double>(before[i]);
    half.moved += direction(i) * moved;
    half.largest = std::max(half.largest, std::abs(moved));
  }
  if (tally_.exchanges % kResidualEvery == 0) check_residual(who, run, terms, own, *done);
  check_halves(who, terms, half);
}

// x' - r' = (x - r) - q_own where w = 1/2 and nothing was clipped (design section 5).
void Checkers::check_residual(const Process& who, const CodecRun& run,
                              const gossip::ExchangeTerms& terms, const gossip::Payload& own,
                              const gossip::ExchangeDone& done) {
  if (terms.weight.of_128 != 64 || done.scale < 1) return;
  const auto parsed = gossip::parse_payload(problem_.layout(), own);
  if (!parsed)
    return report("readable payloads", who.name() + " sent a payload that it cannot read itself");
  const auto& x = run.weights_before.parameters;
  const auto& x_after = who.weights().parameters;
  const auto r_after = who.references()->reference(terms.edge);
  std::vector<float> q(gossip::kBlock);
  for (std::size_t block = 0; block < problem_.layout().blocks(); ++block) {
    gossip::decode_block(parsed->delta, block, q, gossip::Isa::scalar);
    for (std::size_t i = 0; i < problem_.layout().width(block); ++i) {
      const std::size_t at = block * gossip::kBlock + i;
      const double left = static_cast<double>(x_after[at]) - static_cast<double>(r_after[at]);
      const double expected = static_cast<double>(x[at]) -
                              static_cast<double>(run.reference_before[at]) -
                              static_cast<double>(q[i]);
      // Four roundings of values below 4: 4 x 4 x 2^-24.
      if (std::abs(left - expected) < 4e-6) continue;
      return report("residual", who.name() + ": what was not sent is lost: residual " +
                                    std::to_string(left) + " instead of " +
                                    std::to_string(expected) + " at " + std::to_string(at));
    }
  }
}

// Both halves of one exchange are equal and opposite, whoever is first.
void Checkers::check_halves(const Process& who, const gossip::ExchangeTerms& terms,
                            const Half& half) {
  Hasher hasher;
  const Hash key = hasher.add(terms.edge.lower.view())
                       .add(terms.edge.higher.view())
                       .add(terms.chain.view())
                       .finish();
  const auto [at, first] = halves_.try_emplace(key, half);
  if (first) return;
  const Half other = at->second;
  if (other.who == half.who) {
    at->second = half;  // the same start with other payloads: the edge was opened again
    return;
  }
  halves_.erase(at);
  // Both ends are at the same place of the chain by chance of a reopened edge, or by an exchange.
  if (other.chain_after != half.chain_after) return;
  ++tally_.pairs_compared;
  if (other.weight != half.weight)
    return report("one weight", who.name() + " used another weight than its peer in one exchange");
  if (!other.whole || !half.whole) return;
  // Each coordinate is rounded once at either end; magnitudes stay below 4.
  const double tolerance = 1e-6 * std::sqrt(static_cast<double>(problem_.layout().parameters())) +
                           1e-5 * (half.largest + other.largest);
  if (std::abs(half.moved + other.moved) > 100 * tolerance)
    report("mean of the pair", "an exchange moved the pair's mean: " + std::to_string(half.moved) +
                                   " at " + who.name() + ", " + std::to_string(other.moved) +
                                   " at its peer");
}

void Checkers::on_exchange_event(const Process& who, const gossip::ExchangeEvent& event) {
  if (std::holds_alternative<gossip::ExchangeTorn>(event)) ++tally_.torn;
  if (std::holds_alternative<gossip::EdgeWasReset>(event)) ++tally_.resets;
  if (const auto* exchanged = std::get_if<gossip::Exchanged>(&event))
    note_delay(who, exchanged->peer, exchanged->took);
}

// What was offered before an outage that its session survived is averaged after it: it moves both
// ends by half of what they differed in then, in opposite directions, and they have their way to
// the optimum before them again, each with steps of its own.
void Checkers::note_delay(const Process& who, const NodeId& peer, Duration took) {
  if (took < kHeldUp) return;
  for (const auto* process : census_.processes())
    if (process->id() == who.id() || process->id() == peer)
      taken_back_[process->setup().number] = process->own_steps();
}

void Checkers::look_at_edges(const std::vector<Process*>& processes) {
  std::map<NodeId, const Process*> by_id;
  for (const auto* process : processes) by_id[process->id()] = process;
  for (const auto* process : processes) {
    if (process->gossip().mixer() == nullptr || process->ending()) continue;
    for (const auto& view : process->gossip().mixer()->neighbours()) {
      if (!(process->id() < view.peer)) continue;
      const auto peer = by_id.find(view.peer);
      if (peer == by_id.end() || peer->second->gossip().mixer() == nullptr) continue;
      look_at_edge(*process, *peer->second);
    }
  }
}

// Two ends that have seen the same exchanges hold the same reference, bit for bit.
void Checkers::look_at_edge(const Process& a, const Process& b) {
  const auto* one = a.gossip().mixer()->find_edge(b.id());
  const auto* other = b.gossip().mixer()->find_edge(a.id());
  if (one == nullptr || other == nullptr) return;
  const auto at_rest = [](const gossip::Edge& edge) {
    return edge.state() == gossip::EdgeState::open && !edge.job_running();
  };
  if (!at_rest(*one) || !at_rest(*other) || one->generation() != other->generation() ||
      one->seq() != other->seq())
    return;
  const std::string who = a.name() + "-" + b.name();
  if (one->chain() != other->chain())
    return report("equal history of an edge",
                  "edge " + who + ": equal sequence numbers, different exchanges");
  const auto ends = EdgeEnds::of(a.id(), b.id());
  const auto mine = a.references()->reference(ends);
  const auto theirs = b.references()->reference(ends);
  ++tally_.references_compared;
  if (mine.empty() || mine.size() != theirs.size() ||
      std::memcmp(mine.data(), theirs.data(), mine.size_bytes()) != 0)
    report("equal references", "edge " + who + ": the references differ");
}

// ---- membership

// Two processes never speak under one incarnation of a node.
void Checkers::check_owner(const Process& who, const gossip::MemberRecord& record) {
  const auto [at, first] = owners_.try_emplace({record.id, record.incarnation}, record.instance);
  if (first || at->second == record.instance) return;
  report("one owner of an incarnation",
         who.name() + " has two records of " + short_form(record.id) + " with incarnation " +
             std::to_string(record.incarnation.value) + ", of different processes");
}

void Checkers::on_member_change(const Process& who, const gossip::MemberChange& change) {
  auto& seen = seen_[{who.setup().number, change.id}];
  const auto member = who.gossip().membership().find(change.id);
  if (!change.after || !member) {
    seen = {};
    return;
  }
  const Incarnation incarnation = member->record.incarnation;
  check_owner(who, member->record);
  if (incarnation < seen.incarnation)
    report("incarnations grow",
           who.name() + " went back to an older incarnation of " + short_form(change.id));
  seen.incarnation = incarnation;
  const bool gone = *change.after == MemberState::dead || *change.after == MemberState::left;
  if (!gone) {
    const bool answers = change.cause == gossip::Cause::session_lives;
    if (seen.gone_at && incarnation <= *seen.gone_at && (seen.left || !answers))
      report("no revival without a word", who.name() + " revived " + short_form(change.id) +
                                              " without a word of it: " + gossip::describe(change));
    seen.gone_at.reset();
    return;
  }
  seen.gone_at = incarnation;
  seen.left = *change.after == MemberState::left;
  if (seen.left) return;
  ++tally_.deaths;
  if (who.gossip().membership().has_session(change.id) &&
      who.heard_within(change.id, std::chrono::milliseconds(250)))
    report("no burial of the living",
           who.name() + " buried " + short_form(change.id) +
               ", which spoke a moment ago: " + gossip::describe(change));
  const auto healthy = [&](const NodeId& id) {
    const auto since = census_.untouched_since(id);
    return since && schedule_.now() - *since >= kHealthy;
  };
  if (healthy(who.id()) && healthy(change.id))
    report("the healthy stay alive",
           who.name() + " holds a healthy machine for dead: " + gossip::describe(change));
}

void Checkers::on_close(const Process& who, const NodeId& peer, const Error& why) {
  // Given up because nothing came over it, or because neither side needs it: no offence.
  if (why.code == Errc::timed_out || why.code == Errc::cancelled) return;
  ++tally_.offences;
  report("no honest offender",
         who.name() + " ended its session with honest " + short_form(peer) + ": " + to_string(why));
}

// ---- the final consensus

void Checkers::on_contribution(const Process& who, const Weights& weights, std::uint64_t steps) {
  contributions_[who.id()] = {weights, steps - taken_back_[who.setup().number]};
}

void Checkers::on_finished(const Process& who, const consensus::Finished& finished,
                           const Weights& result) {
  ++tally_.finished;
  const auto& certificate = finished.certificate;
  if (!consensus::verify(certificate, certificate.fingerprint, verifier_))
    report("genuine certificate", who.name() + " finished with a certificate that is not genuine");
  if (const Result* known = find_result(certificate.hash)) {
    if (!(known->weights == result))
      report("one model", who.name() + " has another model behind the same hash");
    return;
  }
  results_.push_back({certificate, result});
  check_mean(who, certificate, result);
}

Checkers::Result* Checkers::find_result(const Hash& hash) {
  const auto at =
      std::ranges::find(results_, hash, [](const Result& held) { return held.certificate.hash; });
  return at == results_.end() ? nullptr : &*at;
}

void Checkers::on_final_written(const Process& who) {
  Result* mine = find_result(who.finished()->certificate.hash);
  if (mine == nullptr || std::exchange(mine->written, true)) return;
  const auto& certificate = mine->certificate;
  for (const auto& other : results_)
    if (other.written && other.certificate.hash != certificate.hash &&
        overlap(other.certificate.participants, certificate.participants))
      report("one certificate", who.name() + " holds a certificate of " +
                                    std::to_string(certificate.participants.size()) + " in epoch " +
                                    std::to_string(certificate.epoch.value) +
                                    ", another node one of " +
                                    std::to_string(other.certificate.participants.size()) +
                                    " in epoch " + std::to_string(other.certificate.epoch.value) +
                                    ": some took part in both, and the hashes differ");
}

// The result is the mean of what the participants froze, to the last bits.
void Checkers::check_mean(const Process& who, const consensus::Certificate& certificate,
                          const Weights& result) {
  // After a refusal it is the median (rulings 37).
  if (who.gossip().final_consensus()->state().rule == consensus::Rule::median) return;
  std::vector<const Weights*> parts;
  std::uint64_t fewest = 1'000'000;
  for (const auto& id : certificate.participants) {
    const auto at = contributions_.find(id);
    if (at == contributions_.end())
      return report("exact mean", who.name() + ": the certificate names " + short_form(id) +
                                      ", which has frozen no replica");
    parts.push_back(&at->second.weights);
    fewest = std::min(fewest, at->second.steps);
  }
  const double distance = problem_.distance(result.parameters);
  const bool everybody = std::ranges::all_of(counters_, [&](const auto& counter) {
    return counter.second == 0 ||
           std::ranges::binary_search(certificate.participants, counter.first);
  });
  if (census_.is_steady() && everybody && distance > Quadratic::bound_after(fewest))
    report("convergence", who.name() + ": the certified model is " + std::to_string(distance) +
                              " from the optimum after at least " + std::to_string(fewest) +
                              " steps of everybody");
  const double count = static_cast<double>(parts.size());
  double worst = 0;
  for (std::size_t i = 0; i < result.parameters.size(); ++i) {
    double sum = 0;
    for (const auto* part : parts) sum += static_cast<double>(part->parameters[i]);
    worst = std::max(worst, std::abs(sum / count - static_cast<double>(result.parameters[i])));
  }
  for (std::size_t k = 0; k < result.mean.size(); ++k) {
    double sum = 0;
    for (const auto* part : parts) sum += static_cast<double>(part->mean[k]);
    worst = std::max(worst, std::abs(sum / count - static_cast<double>(result.mean[k])));
  }
  // Of what all saw together: the spread within each, and between them (rulings 18).
  for (std::size_t k = 0; k < result.variance.size(); ++k) {
    double sum = 0;
    for (const auto* part : parts) {
      const double away = static_cast<double>(part->mean[k]) - static_cast<double>(result.mean[k]);
      sum += static_cast<double>(part->variance[k]) + away * away;
    }
    worst = std::max(worst, std::abs(sum / count - static_cast<double>(result.variance[k])));
  }
  std::int64_t batches = 0;
  for (const auto* part : parts) batches += part->batches;
  // Fixed point at 2^-30 of a block's largest, one rounding to fp32 of values below 4.
  if (worst > 1e-6)
    report("exact mean", who.name() + ": the certified model is off the participants' mean by " +
                             std::to_string(worst));
  if (batches != result.batches)
    report("exact mean", who.name() + ": " + std::to_string(result.batches) +
                             " batches certified, " + std::to_string(batches) + " were trained");
}

void Checkers::on_chunk_fetched(const Process& who, std::uint32_t chunk, const Hash& hash) {
  if (!fetched_.insert({who.setup().number, chunk, hash}).second)
    report("each chunk once", who.name() + " fetched chunk " + std::to_string(chunk) + " twice");
}

void Checkers::on_merged(const Process& who, const consensus::Merged&) {
  ++tally_.merged;
  check_finite(who, "a merge");
}

void Checkers::on_consensus_failed(const Process& who, const gossip::ConsensusFailed& failed) {
  if (failed.kind == consensus::RunKind::merge) return;
  ++tally_.failed;
  if (liveness_ && failed.error.code != Errc::cancelled)
    report("the end comes", who.name() + ": the final consensus failed though everybody is well: " +
                                to_string(failed.error));
}

// Every machine here has the settings of the swarm, its secret and no hurry.
void Checkers::on_exit(const Process& who, Exit how, const std::string& why) {
  if (how == Exit::gave_up) report("nobody gives up", who.name() + " gave up joining: " + why);
}

// ---- now and then

void Checkers::look_at_process(Process& process) {
  const auto& membership = process.gossip().membership();
  check_owner(process, membership.self());
  auto& own = own_incarnations_[process.id()];
  if (membership.self().incarnation < own)
    report("incarnations grow", process.name() + " uses an incarnation that it has used before");
  own = std::max(own, membership.self().incarnation);

  const std::uint64_t progress = process.gossip().swarm_samples(process.local());
  auto& [settings, before] = progress_[process.setup().number];
  if (progress < before && settings == membership.self().settings)
    report("P grows", process.name() + ": P went back");
  settings = membership.self().settings;
  before = progress;

  auto& counter = counters_[process.id()];
  counter = std::max(counter, membership.progress().own_samples());

  auto& ticks = ticks_[process.setup().number];
  if (process.ticks() - std::exchange(ticks, process.ticks()) > 2'000)
    report("timers rest", process.name() + ": its timer spins");

  if (process.sessions().largest_queue() > transport::limits::kMaxQueuedControl)
    report("bounded queues", process.name() + ": a queue is above its bound");
  if (const auto* mixer = process.gossip().mixer()) {
    std::size_t open = 0;
    for (const auto& view : mixer->neighbours())
      open += view.state == gossip::EdgeState::closed ? 0 : 1;
    // Degree and two more, and those that the topology has wanted meanwhile.
    if (open > 16)
      report("bounded edges", process.name() + " has " + std::to_string(open) + " edges");
    if (!std::isfinite(mixer->age()))
      report("finite values", process.name() + ": its age is not finite");
  }
  if (problem_.distance(process.weights().parameters) > 3)
    report("convergence", process.name() + " diverges");
}

// P is the sum of the counters: of those that work, and of those that worked once.
std::string Checkers::look_at_progress() {
  // Nobody has to know of those who finished and went while this process was away.
  if (tally_.finished > 0) return {};
  std::uint64_t counted = 0;
  std::uint64_t known = 0;  // what somebody here ever heard of: the rest died with its machine
  for (const auto& [id, samples] : counters_) {
    std::uint64_t most = 0;
    for (const auto* process : census_.processes())
      most = std::max(most, process->gossip().membership().progress().samples_of(id));
    counted += samples;
    known += std::min(samples, most);
  }
  // Reports are a second or two old and are extrapolated; a process that died had counted more than
  // it had told, and what was extrapolated for it stays.
  constexpr double kSeconds = 10;
  const double slack = kSeconds * census_.samples_per_second();
  const auto truth = static_cast<double>(counted);
  const auto least = static_cast<double>(known);
  for (auto* process : census_.processes()) {
    if (process->ending() || !process->training()) continue;
    const auto held = static_cast<double>(process->gossip().swarm_samples(process->local()));
    if (held < 0.9 * least - slack || held > 1.1 * truth + slack)
      return process->name() + " takes P for " + std::to_string(held) +
             " samples, the nodes have counted " + std::to_string(truth);
  }
  return {};
}

void Checkers::look_at_start(const Process& process) {
  const auto& self = process.gossip().membership().self();
  const auto before = own_incarnations_.find(process.id());
  if (before != own_incarnations_.end() && self.incarnation <= before->second)
    report("incarnations grow", process.name() + " begins with incarnation " +
                                    std::to_string(self.incarnation.value) +
                                    ", which a process of it has used before");
  check_owner(process, self);
}

void Checkers::look() {
  const auto processes = census_.processes();
  for (auto* process : processes)
    if (!process->ending() && !process->weights().parameters.empty()) look_at_process(*process);
  look_at_edges(processes);
}

}  // namespace starling::sim
