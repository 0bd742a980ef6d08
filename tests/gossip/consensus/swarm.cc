#include "tests/gossip/consensus/swarm.h"

#include "gossip/consensus/arithmetic.h"
#include "node/base/check.h"
#include "node/base/hash.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace starling::gossip::consensus::testing {
namespace {

std::pair<std::size_t, std::size_t> sorted(std::size_t a, std::size_t b) {
  return {std::min(a, b), std::max(a, b)};
}

// As good as what an admin signs: the run that is to end.
Statement ordered(const Hash& fingerprint) {
  return {"starling/finish-order/1", to_bytes(fingerprint.view())};
}

}  // namespace

Swarm::Swarm(SwarmOptions options) : options_(options), rng_(options.seed) {
  base_.run = {options.kind, options.kind == RunKind::merge ? 77ULL : 0ULL};
  base_.fingerprint = hash_of(as_bytes("settings"));
  base_.manifest = hash_of(as_bytes("manifest"));
  base_.model = "small";
  base_.shape = options.shape;
  base_.window = options.window;
  base_.order = ordered(base_.fingerprint);
  if (options.admin) base_.admin = admin().id();
  for (std::size_t k = 0; k < options.nodes; ++k) {
    nodes_.push_back(std::make_unique<SimNode>());
    start_node(k);
  }
  for (std::size_t k = 0; k < options.nodes; ++k) introduce(k);
}

// Membership knows everybody for a member that trains, until the test says otherwise.
void Swarm::introduce(std::size_t k) {
  for (std::size_t other = 0; other < size(); ++other)
    if (other != k && options_.newcomer != other) presence(k, other, Presence::trains);
}

void Swarm::start_node(std::size_t k) {
  auto& n = *nodes_[k];
  n.id = node_id(options_.seed * 1000 + k);
  n.signer = std::make_unique<FakeSigner>(n.id);
  n.weight = options_.weighted ? static_cast<std::uint32_t>(1 + 7 * k) : 1;
  if (options_.heavy == k) n.weight = kMaxWeight;
  base_.weight = n.weight;
  base_.most_weight = options_.weighted ? kMaxWeight : n.weight;
  base_.rule = options_.rule;
  base_.contributes = options_.newcomer != k;
  n.consensus = std::make_unique<FinalConsensus>(base_, *n.signer, verifier_);
  const auto& shape = options_.shape;
  Rng values(options_.seed * 7919 + k + 1);
  n.y.resize(shape.parameters);
  for (std::size_t v = 0; v < n.y.size(); ++v) {
    // Blocks of very different sizes, one of zeros.
    const int block = static_cast<int>(v / kBlockValues);
    const double scale = block == 1 ? 0.0 : std::ldexp(1.0, block % 8 * 9 - 20);
    n.y[v] = static_cast<float>((values.unit() - 0.5) * scale);
  }
  n.mean.resize(shape.channels);
  n.variance.resize(shape.channels);
  for (auto& m : n.mean) m = static_cast<float>(values.unit() * 4 - 2);
  for (auto& v : n.variance) v = static_cast<float>(values.unit());
  n.counters.resize(shape.counters);
  for (auto& c : n.counters) c = static_cast<std::int64_t>(values.below(100'000));
  n.x.assign(shape.parameters, -1.0F);
  n.result_mean.assign(shape.channels, -1.0F);
  n.result_variance.assign(shape.channels, -1.0F);
  n.result_counters.assign(shape.counters, -1);
}

std::size_t Swarm::index_of(const NodeId& id) const {
  for (std::size_t k = 0; k < nodes_.size(); ++k)
    if (nodes_[k]->id == id) return k;
  STARLING_CHECK(false);
  return 0;
}

Duration Swarm::draw(Duration longest) {
  return Duration(
      static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(longest.count()) + 1)));
}

void Swarm::schedule(TimePoint at, std::function<void()> action) {
  events_.push({std::max(at, now_), next_order_++, std::move(action)});
}

void Swarm::at(Duration when, std::function<void()> action) {
  schedule(TimePoint{} + when, std::move(action));
}

bool Swarm::connected(std::size_t a, std::size_t b) const {
  return sessions_.contains(sorted(a, b));
}

void Swarm::connect(std::size_t a, std::size_t b) {
  if (a == b || !nodes_[a]->alive || !nodes_[b]->alive || connected(a, b)) return;
  const auto number = next_session_++;
  sessions_[sorted(a, b)] = number;
  // The two ends learn of it at different moments.
  for (const auto& [one, peer] : {std::pair(a, b), std::pair(b, a)}) {
    const auto k = one;
    const auto other = peer;
    const auto when = now_ + draw(options_.longest_delay);
    auto& last = last_delivery_[{other, k}];
    last = std::max(last, when);
    schedule(last, [this, k, other, number] {
      const auto at = sessions_.find(sorted(k, other));
      if (!nodes_[k]->alive || at == sessions_.end() || at->second != number) return;
      carry_out(k, nodes_[k]->consensus->on_session_up(now_, nodes_[other]->id));
    });
  }
}

void Swarm::disconnect(std::size_t a, std::size_t b) {
  if (!connected(a, b)) return;
  sessions_.erase(sorted(a, b));
  for (const auto& [one, peer] : {std::pair(a, b), std::pair(b, a)}) {
    const auto k = one;
    const auto other = peer;
    schedule(now_ + draw(options_.longest_delay), [this, k, other] {
      if (!nodes_[k]->alive || connected(k, other)) return;
      carry_out(k, nodes_[k]->consensus->on_session_down(now_, nodes_[other]->id));
    });
  }
}

void Swarm::connect_ring() {
  for (std::size_t k = 0; k + 1 < size(); ++k) connect(k, k + 1);
  if (size() > 2) connect(size() - 1, 0);
}

void Swarm::connect_all() {
  for (std::size_t a = 0; a < size(); ++a)
    for (std::size_t b = a + 1; b < size(); ++b) connect(a, b);
}

void Swarm::connect_randomly(std::size_t extra) {
  for (std::size_t k = 1; k < size(); ++k) connect(k, rng_.below(k));
  for (std::size_t k = 0; k < extra; ++k) connect(rng_.below(size()), rng_.below(size()));
}

void Swarm::kill(std::size_t node) {
  nodes_[node]->alive = false;
  ++nodes_[node]->life;
  for (std::size_t k = 0; k < size(); ++k)
    if (k != node) disconnect(node, k);
}

void Swarm::restart(std::size_t node) {
  start_again(node);
  introduce(node);
}

void Swarm::restart_from_checkpoint(std::size_t node) {
  start_again(node);
  std::set<NodeId> others;
  for (std::size_t k = 0; k < size(); ++k)
    if (k != node) others.insert(nodes_[k]->id);
  nodes_[node]->consensus->expect(now_, std::move(others));
}

void Swarm::start_again(std::size_t node) {
  kill(node);
  const auto life = nodes_[node]->life;
  nodes_[node] = std::make_unique<SimNode>();
  nodes_[node]->life = life;
  start_node(node);
}

void Swarm::restart_and_connect(std::size_t node) {
  restart(node);
  at(elapsed() + std::chrono::milliseconds(500), [this, node] {
    for (std::size_t other = 0; other < size(); ++other) connect(node, other);
  });
}

void Swarm::command(std::size_t k, const std::optional<Signature>& order) {
  carry_out(k, nodes_[k]->consensus->on_finish_command(now_, order));
}
Signature Swarm::order(const Hash& fingerprint, const FakeSigner& by) const {
  const Statement statement = ordered(fingerprint);
  return by.sign(statement.domain, statement.bytes);
}
void Swarm::progress(std::size_t k, std::uint64_t samples, std::uint64_t budget) {
  if (!nodes_[k]->alive) return;
  nodes_[k]->consensus->on_samples(samples);
  carry_out(k, nodes_[k]->consensus->on_progress(now_, samples, budget));
}
void Swarm::standing(std::size_t k, Role role) {
  carry_out(k, nodes_[k]->consensus->on_standing(now_, role));
}
void Swarm::presence(std::size_t k, std::size_t member, Presence presence) {
  if (nodes_[k]->alive)
    carry_out(k, nodes_[k]->consensus->on_member(now_, nodes_[member]->id, presence));
}

void Swarm::inject(std::size_t to, std::size_t from, const ConsensusMessage& message) {
  carry_out(to, nodes_[to]->consensus->on_message(now_, nodes_[from]->id, message));
}

void Swarm::carry_out(std::size_t k, ConsensusEffects effects) {
  auto& n = *nodes_[k];
  for (auto& out : effects.send) deliver(k, index_of(out.to), out.message);
  for (auto& job : effects.jobs) n.jobs.push_back(std::move(job));
  if (effects.freeze)
    schedule(now_ + draw(options_.longest_step), [this, k, life = n.life] {
      if (nodes_[k]->life == life) carry_out(k, nodes_[k]->consensus->on_frozen(now_));
    });
  for (const auto& peer : effects.dial) {
    n.dialled.push_back(peer);
    const auto other = index_of(peer);
    schedule(now_ + draw(options_.longest_delay), [this, k, other] {
      if (!can_dial || can_dial(k, other)) connect(k, other);
    });
  }
  for (auto& m : effects.misbehaved) {
    n.misbehaved.push_back(m);
    disconnect(k, index_of(m.peer));
  }
  if (effects.finished) {
    STARLING_CHECK(!n.finished.has_value());
    n.finished = effects.finished;
    n.finished_at = now_;
    if (!n.disk_hangs)
      schedule(now_ + draw(options_.longest_step), [this, k, life = n.life] {
        if (nodes_[k]->life == life) store(k);
      });
  }
  if (effects.merged) n.merged = effects.merged;
  if (effects.failed) n.failed = effects.failed;
  if (effects.not_taken) n.not_taken.push_back(*effects.not_taken);
  if (effects.awaiting) n.awaiting.push_back(*effects.awaiting);
  if (effects.may_exit) n.may_exit = true;
  work(k);
  set_timer(k);
}

void Swarm::store(std::size_t node) { carry_out(node, nodes_[node]->consensus->on_stored(now_)); }

void Swarm::deliver(std::size_t from, std::size_t to, const ConsensusMessage& message) {
  const auto session = sessions_.find(sorted(from, to));
  if (session == sessions_.end()) return;
  auto& last = last_delivery_[{from, to}];
  last = std::max(last, now_ + draw(options_.longest_delay));
  schedule(last, [this, from, to, number = session->second, wire = encode(message)] {
    const auto at = sessions_.find(sorted(from, to));
    if (!nodes_[to]->alive || at == sessions_.end() || at->second != number) return;
    auto decoded = decode(wire);
    STARLING_CHECK(decoded.has_value());
    if (on_deliver && !on_deliver(from, to, *decoded)) return;
    carry_out(to, nodes_[to]->consensus->on_message(now_, nodes_[from]->id, *decoded));
  });
}

void Swarm::work(std::size_t k) {
  auto& n = *nodes_[k];
  if (n.busy || n.jobs.empty()) return;
  n.busy = true;
  schedule(now_ + draw(options_.longest_job), [this, k, life = n.life] {
    auto& m = *nodes_[k];
    if (m.life != life || !m.alive) return;
    const auto job = std::move(m.jobs.front());
    m.jobs.pop_front();
    const JobMemory memory{m.y,      m.mean,        m.variance,        m.counters,
                           m.x,      m.result_mean, m.result_variance, m.result_counters,
                           m.tensors};
    const auto outcome = run_job(job, ChunkPlan(options_.shape), memory);
    m.busy = false;
    carry_out(k, m.consensus->on_job_done(now_, outcome));
  });
}

void Swarm::refuse(std::size_t from, std::size_t to, const ConsensusMessage& message) {
  auto& consensus = *nodes_[from]->consensus;
  if (std::holds_alternative<CertificateMessage>(message))
    return carry_out(from, consensus.on_certificate_refused(now_, nodes_[to]->id));
  auto wire = encode(message);
  wire.attachment = nullptr;
  const auto known = decode(wire);
  STARLING_CHECK(known.has_value());
  carry_out(from, consensus.on_refused(now_, nodes_[to]->id, *known));
}

void Swarm::set_timer(std::size_t k) {
  auto& n = *nodes_[k];
  const auto next = n.consensus->next_deadline();
  if (next == n.tick_at || next == kNever) return;
  n.tick_at = next;
  schedule(next, [this, k, next, life = n.life] {
    auto& m = *nodes_[k];
    if (m.life != life || !m.alive || m.tick_at != next) return;
    m.tick_at = kNever;
    if (m.consensus->next_deadline() > now_) return set_timer(k);
    carry_out(k, m.consensus->on_tick(now_));
    STARLING_CHECK(m.consensus->next_deadline() > now_);
  });
}

void Swarm::run(Duration limit) {
  const TimePoint end = now_ + limit;
  while (!events_.empty() && events_.top().at <= end) {
    auto event = events_.top();
    events_.pop();
    now_ = event.at;
    event.action();
  }
  now_ = end;
}

namespace {

__extension__ using Wide = __int128;

float divided(Wide sum, Wide weight, int power) {
  const Wide twice = sum < 0 ? -2 * sum : 2 * sum;
  const Wide magnitude = (twice + weight) / (2 * weight);
  const auto z = static_cast<double>(sum < 0 ? -magnitude : magnitude);
  return static_cast<float>(std::ldexp(z, -power));
}

struct Range {
  std::size_t first;
  std::size_t last;
};

struct Reducing {
  const std::vector<std::size_t>& members;
  Rule rule;
  int fraction;
};

float middle_of(std::vector<float> values, Rule rule) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  std::size_t cut = n % 2 == 1 ? n / 2 : n / 2 - 1;
  if (rule == Rule::trimmed) cut = n < 3 ? 0 : std::max<std::size_t>(1, n / 4);
  double kept = 0;
  for (std::size_t k = cut; k < n - cut; ++k) kept += static_cast<double>(values[k]);
  return static_cast<float>(kept / static_cast<double>(n - 2 * cut)) + 0.0F;
}

// One block: the exponent of all, the fixed-point values, the result.
template <class Get>
void reduce_block(Swarm& swarm, Range values, const Reducing& how, Get get,
                  std::vector<float>& out) {
  const auto& [members, rule, fraction] = how;
  const auto [first, last] = values;
  if (rule != Rule::mean) {
    for (std::size_t v = first; v < last; ++v) {
      std::vector<float> all;
      for (const auto m : members) all.push_back(get(m, v));
      out[v] = middle_of(std::move(all), rule);
    }
    return;
  }
  int exponent = -126;
  for (const auto m : members)
    for (std::size_t v = first; v < last; ++v) {
      int e = 0;
      const float value = get(m, v);
      (void)std::frexp(value, &e);
      if (value != 0.0F) exponent = std::max(exponent, e);
    }
  const int power = fraction - exponent;
  for (std::size_t v = first; v < last; ++v) {
    std::vector<Wide> fixed;
    for (const auto m : members)
      fixed.push_back(std::llrint(std::ldexp(static_cast<double>(get(m, v)), power)));
    Wide sum = 0;
    Wide weight = 0;
    for (std::size_t k = 0; k < fixed.size(); ++k) {
      sum += fixed[k] * static_cast<Wide>(swarm.node(members[k]).weight);
      weight += static_cast<Wide>(swarm.node(members[k]).weight);
    }
    out[v] = divided(sum, weight, power);
  }
}

}  // namespace

Reference reference_of(Swarm& swarm, const std::vector<std::size_t>& participants, Rule rule) {
  const auto& shape = swarm.options().shape;
  const Reducing how{participants, rule, 24};
  const Reducing of_statistics{participants, rule, 30};
  Reference reference;
  reference.x.resize(shape.parameters);
  for (std::size_t first = 0; first < shape.parameters; first += kBlockValues)
    reduce_block(
        swarm, {first, std::min<std::size_t>(first + kBlockValues, shape.parameters)}, how,
        [&](std::size_t m, std::size_t v) { return swarm.node(m).y[v]; }, reference.x);
  reference.mean.resize(shape.channels);
  reference.variance.resize(shape.channels);
  for (std::size_t c = 0; c < shape.channels; ++c)
    reduce_block(
        swarm, {c, c + 1}, of_statistics,
        [&](std::size_t m, std::size_t v) { return swarm.node(m).mean[v]; }, reference.mean);
  for (std::size_t c = 0; c < shape.channels; ++c)
    reduce_block(
        swarm, {c, c + 1}, of_statistics,
        [&](std::size_t m, std::size_t v) {
          return moment_about(swarm.node(m).mean[v], swarm.node(m).variance[v], reference.mean[v]);
        },
        reference.variance);
  reference.counters.assign(shape.counters, 0);
  for (const auto m : participants)
    for (std::size_t c = 0; c < shape.counters; ++c)
      reference.counters[c] += swarm.node(m).counters[c];
  return reference;
}

}  // namespace starling::gossip::consensus::testing
