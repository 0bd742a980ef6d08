#include "tests/gossip/exchange/link_sim.h"

#include "gossip/exchange/message_codec.h"
#include "node/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

namespace starling::gossip::sim {
namespace {

Layout make_layout() {
  auto layout = Layout::make({{"fc.weight", {96, 64}}, {"bn.weight", {40}}, {"bn.bias", {40}}}, 4);
  STARLING_CHECK(layout.has_value());
  return *layout;
}

NodeId node_id(std::size_t index, Rng& rng) {
  NodeId id;
  // Random first bytes, so that the order of ids is not that of indices.
  id.bytes[0] = static_cast<std::byte>(rng() & 0xff);
  id.bytes[31] = static_cast<std::byte>(index + 1);
  return id;
}

const EdgeEnds& ends_of(const CodecJob& job) {
  if (const auto* answer = std::get_if<AnswerJob>(&job)) return answer->terms.edge;
  if (const auto* apply = std::get_if<ApplyJob>(&job)) return apply->terms.edge;
  if (const auto* offer = std::get_if<OfferJob>(&job)) return offer->edge;
  if (const auto* genesis = std::get_if<GenesisJob>(&job)) return genesis->edge;
  if (const auto* snapshot = std::get_if<SnapshotJob>(&job)) return snapshot->edge;
  if (const auto* install = std::get_if<InstallJob>(&job)) return install->edge;
  return std::get<DropJob>(job).edge;
}

bool exchanges(const CodecJob& job) {
  return std::holds_alternative<AnswerJob>(job) || std::holds_alternative<ApplyJob>(job);
}

bool touches_master(const CodecJob& job) {
  return exchanges(job) || std::holds_alternative<OfferJob>(job) ||
         std::holds_alternative<SnapshotJob>(job);
}

}  // namespace

LinkSim::LinkSim(const LinkOptions& options)
    : options_(options), rng_(options.seed), layout_(make_layout()) {
  optimum_.resize(layout_.size());
  for (std::size_t i = 0; i < optimum_.size(); ++i)
    optimum_[i] =
        layout_.is_real(i / kBlock, i % kBlock) ? static_cast<float>(rng_.unit() - 0.5) : 0.0F;
  for (std::size_t i = 0; i < options_.nodes; ++i) {
    auto node = std::make_unique<Node>();
    node->id = node_id(i, rng_);
    node->latency = options_.latency;
    node->step_time = options_.step_time;
    node->master.parameters.assign(layout_.size(), 0.0F);
    for (std::size_t k = 0; k < layout_.size(); ++k)
      if (layout_.is_real(k / kBlock, k % kBlock))
        node->master.parameters[k] =
            static_cast<float>(options_.start_spread * (rng_.unit() - 0.5));
    nodes_.push_back(std::move(node));
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) start(i);
  for (std::size_t a = 0; a < nodes_.size(); ++a)
    for (std::size_t b = a + 1; b < nodes_.size(); ++b) connect(a, b);
  schedule_faults();
}

std::string LinkSim::replay() const {
  return "replay: STARLING_SEED=" + std::to_string(options_.seed) +
         " gossip_exchange_test -ts=gossip/exchange/link";
}

void LinkSim::run(Duration duration) {
  const TimePoint end = now_ + duration;
  while (broken_.empty() && !events_.empty() && events_.top().when <= end) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.when;
    event.happen();
  }
  now_ = std::max(now_, end);
}

// --- the world ----------------------------------------------------------------------------------

void LinkSim::in(Duration delay, std::function<void()> happen) {
  events_.push({now_ + delay, order_++, std::move(happen)});
}

// A stopped process does everything later, in the order in which it would have.
void LinkSim::for_node(std::size_t node, std::function<void()> happen) {
  if (now_ < nodes_[node]->stopped_until) {
    in(nodes_[node]->stopped_until - now_,
       [this, node, happen = std::move(happen)] { for_node(node, happen); });
    return;
  }
  happen();
}

void LinkSim::start(std::size_t index) {
  Node& node = *nodes_[index];
  node.alive = true;
  ++node.life;
  node.instance = {rng_()};
  node.jobs.clear();
  node.lane_busy = false;
  node.replica = std::make_unique<Replica>(
      layout_, node.master, [](std::span<float>) {},
      ReplicaOptions{.aggregator = options_.mixer.edge.aggregator});
  const double age = node.mixer ? node.mixer->age() : 0;
  node.mixer = std::make_unique<Mixer>(node.id, options_.mixer,
                                       static_cast<std::uint32_t>(layout_.blocks()), Rng(rng_()));
  node.steps = 0;
  if (age > 0) carry_out(index, node.mixer->adopt_replica(now_, age));
  std::vector<NodeId> wanted;
  for (const auto& other : nodes_)
    if (other->id != node.id) wanted.push_back(other->id);
  carry_out(index, node.mixer->on_neighbours(now_, wanted));
  const auto life = node.life;
  in(node.step_time, [this, index, life] {
    if (nodes_[index]->life == life) step(index);
  });
}

void LinkSim::connect(std::size_t a, std::size_t b) {
  Session& link = session(a, b);
  if (link.up || !nodes_[a]->alive || !nodes_[b]->alive) return;
  link.up = true;
  ++link.epoch;
  link.order = {};
  session_up(a, b);
  session_up(b, a);
}

void LinkSim::session_up(std::size_t node, std::size_t peer) {
  const auto life = nodes_[node]->life;
  const auto epoch = session(node, peer).epoch;
  const Instance instance = nodes_[peer]->instance;
  for_node(node, [this, node, peer, life, epoch, instance] {
    const Session& link = session(node, peer);
    if (nodes_[node]->life != life || link.epoch != epoch) return;
    carry_out(node, nodes_[node]->mixer->on_session_up(now_, nodes_[peer]->id, instance));
  });
}

void LinkSim::session_down(std::size_t node, std::size_t peer) {
  const auto life = nodes_[node]->life;
  for_node(node, [this, node, peer, life] {
    if (nodes_[node]->life != life || !nodes_[node]->alive) return;
    if (session(node, peer).up) return;  // a new session replaced it: no word of the loss
    carry_out(node, nodes_[node]->mixer->on_session_down(now_, nodes_[peer]->id));
  });
}

void LinkSim::lose_session(std::size_t a, std::size_t b, std::optional<Duration> away) {
  Session& link = session(a, b);
  if (!link.up) return;
  link.up = false;
  ++link.epoch;
  say("session lost " + std::to_string(a) + "-" + std::to_string(b));
  // Each end notices in its own time, perhaps only by the new session.
  const auto notice = [this](std::size_t node, std::size_t peer) {
    in(std::chrono::milliseconds(rng_.below(400)),
       [this, node, peer] { session_down(node, peer); });
  };
  notice(a, b);
  notice(b, a);
  const Duration usual = std::chrono::milliseconds(100 + rng_.below(2000));
  in(away.value_or(usual), [this, a, b] { connect(a, b); });
}

void LinkSim::kill(std::size_t node) {
  nodes_[node]->alive = false;
  ++nodes_[node]->life;
  say("killed " + std::to_string(node));
  for (std::size_t other = 0; other < nodes_.size(); ++other)
    if (other != node) lose_session(node, other);
}

void LinkSim::stop(std::size_t node, Duration duration) {
  nodes_[node]->stopped_until = now_ + duration;
  say("stopped " + std::to_string(node));
}

void LinkSim::schedule_faults() {
  const auto wait = [this](double per_second) {
    const double s = -std::log(1 - rng_.unit()) / per_second;
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
  };
  if (options_.session_losses > 0)
    in(wait(options_.session_losses), [this] {
      const std::size_t a = rng_.below(nodes_.size());
      const std::size_t b = (a + 1 + rng_.below(nodes_.size() - 1)) % nodes_.size();
      lose_session(std::min(a, b), std::max(a, b));
      const double keep = std::exchange(options_.restarts, 0.0);
      schedule_faults();
      options_.restarts = keep;
    });
  if (options_.restarts > 0)
    in(wait(options_.restarts), [this] {
      const std::size_t node = rng_.below(nodes_.size());
      if (nodes_[node]->alive) {
        kill(node);
        in(std::chrono::milliseconds(300 + rng_.below(1500)), [this, node] { start(node); });
      }
      const double keep = std::exchange(options_.session_losses, 0.0);
      schedule_faults();
      options_.session_losses = keep;
    });
}

// --- one node -----------------------------------------------------------------------------------

void LinkSim::step(std::size_t index) {
  for_node(index, [this, index] {
    Node& node = *nodes_[index];
    const auto life = node.life;
    if (!node.alive) return;
    if (training_) {
      auto& x = node.master.parameters;
      const auto rate = static_cast<float>(options_.rate);
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (!layout_.is_real(i / kBlock, i % kBlock)) continue;
        const auto noise = static_cast<float>(options_.noise * (rng_.unit() - 0.5) * 2);
        x[i] -= rate * (x[i] - optimum_[i] + noise);
      }
      ++node.steps;
      node.samples += 32;
      carry_out(index, node.mixer->on_steps(now_, {.steps = node.steps,
                                                   .samples = node.samples,
                                                   .progress = 0,
                                                   .step_time = node.step_time}));
    }
    in(node.step_time, [this, index, life] {
      if (nodes_[index]->life == life) step(index);
    });
  });
}

void LinkSim::call(std::size_t node, const std::function<ExchangeEffects(Mixer&)>& event) {
  carry_out(node, event(*nodes_[node]->mixer));
}

void LinkSim::adopt(std::size_t node, std::size_t sponsor) {
  nodes_[node]->master.parameters = nodes_[sponsor]->master.parameters;
  carry_out(node, nodes_[node]->mixer->adopt_replica(now_, nodes_[sponsor]->mixer->age()));
}

void LinkSim::corrupt_reference(std::size_t node, std::size_t peer) {
  const auto ends = EdgeEnds::of(id(node), id(peer));
  const auto reference = nodes_[node]->replica->reference(ends);
  STARLING_CHECK(!reference.empty());
  // A flipped bit in memory, which no message can cause: the span is const for everybody else.
  const_cast<float&>(reference[0]) += 0.25F;
}

void LinkSim::carry_out(std::size_t index, ExchangeEffects effects) {
  Node& node = *nodes_[index];
  for (const auto& event : effects.events) note(index, event);
  for (auto& outgoing : effects.send)
    deliver(index, index_of(outgoing.to), std::move(outgoing.message));
  for (auto& job : effects.jobs) node.jobs.push_back(std::move(job));
  next_job(index);
  ask_tick(index);
  check_references(index);
}

void LinkSim::deliver(std::size_t from, std::size_t to, ExchangeMessage message) {
  Session& link = session(from, to);
  if (!link.up) return;  // the session is gone, the sender has not noticed
  const auto wire = encode_exchange(message);
  const auto bytes = static_cast<double>(wire.attached().size());
  Duration delay = nodes_[from]->latency + nodes_[to]->latency;
  delay += Duration{static_cast<std::int64_t>(
      rng_.below(static_cast<std::uint64_t>(options_.latency.count()) + 1))};
  delay += std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(bytes / options_.bytes_per_second));
  const TimePoint arrival = link.order[from < to ? 0 : 1].of(wire, now_ + delay);
  const bool refused = bytes > 0 && rng_.chance(options_.refusals);
  const bool word_lost = bytes > 0 && options_.lost_words > 0 && rng_.chance(options_.lost_words);
  const auto epoch = link.epoch;
  const auto same_session = [this, from, to, epoch] {
    const Session& present = session(from, to);
    return present.up && present.epoch == epoch;
  };
  const auto tell_refused = [this, from, to, same_session](const ExchangeMessage& lost) {
    for_node(from, [this, from, to, same_session, lost] {
      if (same_session())
        carry_out(from, nodes_[from]->mixer->on_refused(now_, nodes_[to]->id, lost));
    });
  };
  in(arrival - now_, [this, from, to, refused, word_lost, same_session, tell_refused,
                      message = std::move(message)] {
    for_node(to, [this, from, to, refused, word_lost, same_session, tell_refused, message] {
      if (!same_session()) return;
      if (refused || word_lost) tell_refused(message);
      if (refused) return;
      // Through the bytes of the wire, as in the real thing.
      auto decoded = decode_exchange(encode_exchange(message));
      if (!decoded) return fact_broken("own message refused: " + to_string(decoded.error()));
      carry_out(to, nodes_[to]->mixer->on_message(now_, nodes_[from]->id, std::move(*decoded)));
    });
  });
}

void LinkSim::ask_tick(std::size_t index) {
  Node& node = *nodes_[index];
  const TimePoint due = node.mixer->next_deadline();
  const auto asked = ++node.tick_asked;
  if (due == kNever) return;
  const auto life = node.life;
  in(std::max(Duration{}, due - now_), [this, index, life, asked] {
    for_node(index, [this, index, life, asked] {
      Node& mine = *nodes_[index];
      if (mine.life == life && mine.alive && mine.tick_asked == asked)
        carry_out(index, mine.mixer->on_tick(now_));
    });
  });
}

void LinkSim::next_job(std::size_t index) {
  Node& node = *nodes_[index];
  if (node.lane_busy || node.jobs.empty()) return;
  node.lane_busy = true;
  const auto life = node.life;
  const Duration took{options_.job_time.count() / 2 +
                      static_cast<std::int64_t>(
                          rng_.below(static_cast<std::uint64_t>(options_.job_time.count()) + 1))};
  in(took, [this, index, life] {
    for_node(index, [this, index, life] {
      if (nodes_[index]->life == life) run_job(index);
    });
  });
}

void LinkSim::run_job(std::size_t index) {
  Node& node = *nodes_[index];
  const CodecJob job = std::move(node.jobs.front());
  node.jobs.pop_front();
  node.lane_busy = false;
  const EdgeEnds ends = ends_of(job);
  const auto x_before = node.master.parameters;
  const auto r = node.replica->reference(ends);
  const std::vector<float> r_before(r.begin(), r.end());
  if (touches_master(job)) ++node.master_jobs;
  auto outcome = node.replica->run(job);
  if (!outcome.result)
    say(std::to_string(index) + " job failed: " + to_string(outcome.result.error()));
  if (exchanges(job) && outcome.result) check_half(index, job, outcome, x_before, r_before);
  if (!broken_.empty()) return;
  carry_out(index, node.mixer->on_job_done(now_, std::move(outcome)));
}

std::size_t LinkSim::index_of(NodeId id) const {
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i]->id == id) return i;
  STARLING_CHECK(false);
  return 0;
}

LinkSim::Session& LinkSim::session(std::size_t a, std::size_t b) {
  return sessions_[{std::min(a, b), std::max(a, b)}];
}

}  // namespace starling::gossip::sim
