// What LinkSim checks after every event, and what it measures.
#include "node/base/check.h"
#include "tests/gossip/exchange/link_sim.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

namespace starling::gossip::sim {

// --- facts --------------------------------------------------------------------------------------

void LinkSim::check_half(std::size_t index, const CodecJob& job, const CodecOutcome& outcome,
                         const std::vector<float>& x_before, const std::vector<float>& r_before) {
  if (!checks_) return;
  Node& node = *nodes_[index];
  const auto* answer = std::get_if<AnswerJob>(&job);
  const auto& terms = answer != nullptr ? answer->terms : std::get<ApplyJob>(job).terms;
  const auto& done = std::get<ExchangeDone>(*outcome.result);
  const std::size_t lower = index_of(terms.edge.lower);
  const std::size_t higher = index_of(terms.edge.higher);
  const std::size_t peer = lower == index ? higher : lower;
  const Edge* edge = node.mixer->find_edge(nodes_[peer]->id);
  if (edge == nullptr) return;
  const bool half = terms.weight.of_128 == 64 && done.scale >= 1;
  if (terms.weight.of_128 < 64) ++totals_.late_weights;
  if (half)
    check_residual(index, answer != nullptr ? done.answer : std::get<ApplyJob>(job).own, terms.edge,
                   x_before, r_before);

  // One chain value is one exchange: generation and sequence number, and nothing applied twice.
  const ExchangeKey key{terms.edge,
                        nodes_[lower]->life,
                        nodes_[higher]->life,
                        {first_u64(terms.chain)},
                        {first_u64(done.chain)}};
  Half mine;
  mine.scale = static_cast<double>(done.scale);
  mine.moved.resize(x_before.size());
  for (std::size_t i = 0; i < x_before.size(); ++i)
    mine.moved[i] = node.master.parameters[i] - x_before[i];
  const auto other = halves_.find(key);
  if (other == halves_.end()) {
    mine.age_moved = static_cast<double>(index);  // which end this half is
    halves_.emplace(key, std::move(mine));
    return;
  }
  if (other->second.age_moved == static_cast<double>(index))
    return fact_broken("node " + std::to_string(index) + " applied one exchange twice");
  ++totals_.complete;
  if (mine.scale >= 1 && other->second.scale >= 1) {
    for (std::size_t i = 0; i < x_before.size(); ++i) {
      // Each end rounds its sum once: half an ulp of a value below 4, on both sides.
      const double sum =
          static_cast<double>(mine.moved[i]) + static_cast<double>(other->second.moved[i]);
      if (std::abs(sum) > 4 * 0x1p-23)
        return fact_broken("the mean moved by " + std::to_string(sum) + " at value " +
                           std::to_string(i));
    }
  }
  halves_.erase(other);
}

void LinkSim::check_residual(std::size_t index, const Payload& own, const EdgeEnds& ends,
                             const std::vector<float>& x_before,
                             const std::vector<float>& r_before) {
  const auto view = parse_payload(layout_, own);
  if (!view) return fact_broken("an own payload does not parse");
  const auto& x = nodes_[index]->master.parameters;
  const auto r = nodes_[index]->replica->reference(ends);
  std::vector<float> q(kBlock);
  for (std::size_t block = 0; block < layout_.blocks(); ++block) {
    decode_block(view->delta, block, q, Isa::scalar);
    for (std::size_t k = 0; k < layout_.width(block); ++k) {
      const std::size_t i = block * kBlock + k;
      // An own offer was encoded earlier: the steps between are in x before and after alike.
      const double expected = static_cast<double>(x_before[i]) - static_cast<double>(r_before[i]) -
                              static_cast<double>(q[k]);
      const double residual = static_cast<double>(x[i]) - static_cast<double>(r[i]);
      // Three rounded sums of values below 4.
      if (std::abs(expected - residual) > 12 * 0x1p-23)
        return fact_broken("residual of node " + std::to_string(index) + " is off at value " +
                           std::to_string(i));
    }
  }
}

void LinkSim::check_references(std::size_t index) {
  if (!checks_) return;
  Node& node = *nodes_[index];
  for (const auto& other : nodes_) {
    if (!node.alive || !other->alive || other->id == node.id) continue;
    const Edge* a = node.mixer->find_edge(other->id);
    const Edge* b = other->mixer->find_edge(node.id);
    if (a == nullptr || b == nullptr) continue;
    const auto usable = [](const Edge& edge) {
      return edge.state() == EdgeState::open || edge.state() == EdgeState::lost ||
             edge.state() == EdgeState::resuming;
    };
    if (!usable(*a) || !usable(*b) || a->generation() != b->generation() || a->seq() != b->seq())
      continue;
    if (a->chain() != b->chain()) continue;  // noticed by the next message
    const auto mine = node.replica->reference(a->ends());
    const auto theirs = other->replica->reference(a->ends());
    if (mine.empty() || theirs.empty()) continue;
    ++totals_.references_compared;
    if (std::memcmp(mine.data(), theirs.data(), mine.size_bytes()) != 0)
      return fact_broken("references of " + short_form(node.id) + " and " + short_form(other->id) +
                         " differ at generation " + std::to_string(a->generation().value) +
                         " seq " + std::to_string(a->seq().value));
  }
}

void LinkSim::note(std::size_t index, const ExchangeEvent& event) {
  if (const auto* exchanged = std::get_if<Exchanged>(&event)) {
    ++totals_.exchanges;
    if (exchanged->role == Role::crossing) ++totals_.crossings;
    if (exchanged->scale < 1) ++totals_.clipped;
    nodes_[index]->exchange_times.push_back(now_);
  }
  totals_.resumes += std::holds_alternative<EdgeResumed>(event) ? 1 : 0;
  totals_.resets += std::holds_alternative<EdgeWasReset>(event) ? 1 : 0;
  totals_.closes += std::holds_alternative<EdgeWasClosed>(event) ? 1 : 0;
  totals_.opens += std::holds_alternative<EdgeOpened>(event) ? 1 : 0;
  totals_.parked += std::holds_alternative<OfferParked>(event) ? 1 : 0;
  totals_.voided += std::holds_alternative<OfferVoided>(event) ? 1 : 0;
  totals_.torn += std::holds_alternative<ExchangeTorn>(event) ? 1 : 0;
  say(std::to_string(index) + " " + to_string(event));
}

void LinkSim::say(const std::string& line) {
  std::ostringstream out;
  out.precision(6);
  out << std::fixed << seconds(now_ - at(Duration{})) << "  " << line;
  trace_.push_back(std::move(out).str());
}

void LinkSim::fact_broken(const std::string& what) {
  say("BROKEN " + what);
  std::ostringstream out;
  out << what << "\n" << replay() << "\nlast events:\n";
  const std::size_t first = trace_.size() > 40 ? trace_.size() - 40 : 0;
  for (std::size_t i = first; i < trace_.size(); ++i) out << trace_[i] << '\n';
  if (broken_.empty()) broken_ = std::move(out).str();
}

// --- measures -----------------------------------------------------------------------------------

double LinkSim::disagreement() const {
  std::vector<double> mean(layout_.size());
  double alive = 0;
  for (const auto& node : nodes_) {
    if (!node->alive) continue;
    ++alive;
    for (std::size_t i = 0; i < mean.size(); ++i)
      mean[i] += static_cast<double>(node->master.parameters[i]);
  }
  double largest = 0;
  for (const auto& node : nodes_) {
    if (!node->alive) continue;
    double sum = 0;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const double off = static_cast<double>(node->master.parameters[i]) - mean[i] / alive;
      sum += off * off;
    }
    largest = std::max(largest, std::sqrt(sum / static_cast<double>(mean.size())));
  }
  return largest;
}

double LinkSim::distance_to_optimum() const {
  double sum = 0;
  for (std::size_t i = 0; i < optimum_.size(); ++i) {
    double mean = 0;
    for (const auto& node : nodes_) mean += static_cast<double>(node->master.parameters[i]);
    const double off = mean / static_cast<double>(nodes_.size()) - static_cast<double>(optimum_[i]);
    sum += off * off;
  }
  return std::sqrt(sum / static_cast<double>(optimum_.size()));
}

}  // namespace starling::gossip::sim
