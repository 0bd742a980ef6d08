#include "tests/gossip/virtual_swarm.h"

#include "node/base/check.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace starling::gossip::testing {

namespace {

constexpr std::size_t kChannels = 32;

SwarmModel small_model(std::size_t parameters) {
  auto layout = Layout::make({{"conv.weight", {static_cast<std::int64_t>(parameters / 16), 16}},
                              {"bn.weight", {kChannels}},
                              {"bn.bias", {kChannels}}},
                             kChannels);
  STARLING_CHECK(layout.has_value());
  std::vector<float> zeros(layout->size(), 0.0F);
  return {std::move(*layout), std::move(zeros)};
}

std::array<std::byte, 32> seed_bytes(std::uint64_t number) {
  Rng rng(number * 7919 + 17);
  std::array<std::byte, 32> bytes{};
  for (auto& b : bytes) b = static_cast<std::byte>(rng() & 255U);
  return bytes;
}

consensus::ModelShape shape_of(const Layout& layout) {
  return {.parameters = layout.size(),
          .channels = static_cast<std::uint32_t>(layout.bn_channels()),
          .counters = 1};
}

ModelFacts facts_of(const Layout& layout, const SwarmOptions& options) {
  return {.name = "simulated",
          .fingerprint = hash_of(as_bytes("settings")),
          .manifest = layout.manifest(),
          .shape = shape_of(layout),
          .blocks = static_cast<std::uint32_t>(layout.blocks()),
          .max_payload = std::size_t{1} << 24,
          .degree = options.degree,
          .budget = {.samples = options.budget_samples, .time = options.budget_time},
          .admin = options.admin};
}

// A real value of the layout is a parameter; padding must stay zero.
bool is_parameter(const Layout& layout, std::size_t index) {
  return layout.is_real(index / kBlock, index % kBlock);
}

}  // namespace

SimNode::SimNode(const SwarmOptions& options, const SwarmModel& model, std::uint64_t number,
                 TimePoint now)
    : identity(transport::Identity::from_seed(seed_bytes(options.seed * 1'000 + number))),
      references(model.layout, master,
                 [&model](std::span<float> out) { std::ranges::copy(model.genesis, out.begin()); },
                 {.aggregator = options.aggregator}),
      rng(options.seed * 31 + number),
      number_(number) {
  const std::size_t channels = model.layout.bn_channels();
  master.parameters = model.genesis;
  master.mean.assign(channels, 0.0F);
  master.variance.assign(channels, 1.0F);
  result.assign(model.layout.size(), 0.0F);
  result_mean.assign(channels, 0.0F);
  result_variance.assign(channels, 0.0F);
  gossip_options.exchange.edge.aggregator = options.aggregator;
  gossip_options.exchange.levels.fixed_level = options.level;
  begin(now, 0);
}

void SimNode::begin(TimePoint now, std::uint64_t life) {
  instance = Instance{life * 1'000 + number_ + 1};
  SelfDescription self{.name = "node-" + std::to_string(number_),
                       .addresses = {"10.0.0." + std::to_string(number_ + 1) + ":7700"},
                       .instance = instance,
                       .data_set = {},
                       .first = {life * 1'000 + 1},
                       .ceiling = {life * 1'000 + 1'001}};
  GossipParts parts{SwarmId{}, std::move(self), gossip_options, identity, verifier};
  gossip = std::make_unique<Gossip>(now, std::move(parts), Rng(rng()));
}

VirtualSwarm::VirtualSwarm(SwarmOptions options)
    : options_(std::move(options)),
      model_(options_.model ? *options_.model : small_model(options_.parameters)),
      rng_(options_.seed) {
  optimum_.assign(model_.layout.size(), 0.0F);
  for (std::size_t i = 0; i < optimum_.size(); ++i)
    if (is_parameter(model_.layout, i)) optimum_[i] = static_cast<float>(rng_.unit() - 0.5);
  for (std::size_t i = 0; i < options_.nodes; ++i) {
    nodes_.push_back(std::make_unique<SimNode>(options_, model_, i, now_));
    index_[nodes_[i]->id()] = i;
    held_.emplace_back();
  }
  for (std::size_t i = 0; i < options_.nodes; ++i) begin(i, {});
}

void VirtualSwarm::begin(std::size_t index, const Beginning& beginning) {
  SimNode& node = *nodes_[index];
  node.steps = beginning.steps;
  node.training = true;
  node.next_step = now_ + options_.step_time;
  ModelFacts facts = facts_of(model_.layout, options_);
  if (options_.strangers.contains(index)) facts.fingerprint = hash_of(as_bytes("other settings"));
  carry_out(index, node.gossip->begin_averaging(now_, facts, beginning));
}

void VirtualSwarm::at(TimePoint time, std::size_t node, std::function<void(SimNode&)> happens) {
  events_.emplace(time, Event{node, std::move(happens)});
}

void VirtualSwarm::connect(std::size_t a, std::size_t b) {
  const auto key = std::minmax(a, b);
  if (sessions_.contains(key) || !nodes_[a]->running || !nodes_[b]->running) return;
  sessions_[key] = {++session_numbers_, {}, {}};
  for (const auto& [self, other] : {std::pair{a, b}, std::pair{b, a}}) {
    at(now_, self,
       [this, self, a, b, peer = nodes_[other]->id(),
        instance = nodes_[other]->instance](SimNode& node) {
         carry_out(self, node.gossip->on_session_up(now_, peer, instance));
         if (options_.strangers.contains(a) == options_.strangers.contains(b))
           carry_out(self, node.gossip->on_same_settings(now_, peer));
       });
  }
}

void VirtualSwarm::connect_all() {
  for (std::size_t a = 0; a < nodes_.size(); ++a)
    for (std::size_t b = a + 1; b < nodes_.size(); ++b) connect(a, b);
}

void VirtualSwarm::disconnect(std::size_t a, std::size_t b, SessionEnd end) {
  if (sessions_.erase(std::minmax(a, b)) == 0) return;
  for (const auto& [self, other] : {std::pair{a, b}, std::pair{b, a}}) {
    at(now_ + options_.delay_min, self,
       [this, self, peer = nodes_[other]->id(), end](SimNode& node) {
         carry_out(self, node.gossip->on_session_down(now_, peer, end));
       });
  }
}

void VirtualSwarm::kill(std::size_t node) {
  nodes_[node]->running = false;
  for (std::size_t other = 0; other < nodes_.size(); ++other)
    if (other != node) disconnect(node, other, SessionEnd::reset);
}

void VirtualSwarm::freeze(std::size_t node) { nodes_[node]->frozen_until_told = true; }

void VirtualSwarm::resume(std::size_t node) {
  nodes_[node]->frozen_until_told = false;
  for (auto& happens : std::exchange(held_[node], {})) at(now_, node, std::move(happens));
}

void VirtualSwarm::restart(std::size_t index) {
  kill(index);
  SimNode& node = *nodes_[index];
  node.begin(now_, ++lives_);
  node.running = true;
  node.training = node.may_exit = node.left = false;
  node.finished.reset();
}

void VirtualSwarm::serve(std::size_t node, const consensus::CertificateMessage& held) {
  at(now_, node, [this, node, held](SimNode& self) {
    auto effects = self.gossip->serve(now_, facts_of(model_.layout, options_), held);
    STARLING_CHECK(effects.has_value());
    carry_out(node, std::move(*effects));
  });
}

void VirtualSwarm::follow(std::size_t node) {
  at(now_, node, [this, node](SimNode& self) {
    carry_out(node, self.gossip->begin_following(now_, facts_of(model_.layout, options_)));
  });
}

void VirtualSwarm::finish(std::size_t node, const std::optional<Signature>& order) {
  at(now_, node,
     [this, node, order](SimNode& self) { carry_out(node, self.gossip->finish(now_, order)); });
}

void VirtualSwarm::merge(std::size_t node) {
  at(now_, node, [this, node](SimNode& self) {
    auto effects = self.gossip->merge(now_);
    STARLING_CHECK(effects.has_value());
    carry_out(node, std::move(*effects));
  });
}

void VirtualSwarm::leave(std::size_t node) {
  at(now_, node, [this, node](SimNode& self) {
    self.training = false;
    carry_out(node, self.gossip->begin_leave(now_, now_ + std::chrono::seconds(6)));
  });
}

bool VirtualSwarm::next_event(TimePoint limit) {
  TimePoint next = events_.empty() ? kNever : events_.begin()->first;
  std::optional<std::size_t> ticking;
  bool stepping = false;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    SimNode& node = *nodes_[i];
    if (!node.running || node.frozen_until_told) continue;
    if (node.training && node.next_step < next) {
      next = node.next_step;
      ticking = i;
      stepping = true;
    }
    // A deadline in the past is now: time does not run backwards.
    const TimePoint deadline = std::max(now_, node.gossip->next_deadline());
    if (deadline < next) {
      next = deadline;
      ticking = i;
      stepping = false;
    }
  }
  if (next > limit) return false;
  now_ = std::max(now_, next);
  if (ticking) {
    if (stepping) {
      step(*ticking);
    } else {
      carry_out(*ticking, nodes_[*ticking]->gossip->on_tick(now_));
    }
    return true;
  }
  Event event = std::move(events_.begin()->second);
  events_.erase(events_.begin());
  SimNode& node = *nodes_[event.node];
  if (!node.running) return true;
  if (node.frozen_until_told) {
    held_[event.node].push_back(std::move(event.happens));
    return true;
  }
  event.happens(node);
  return true;
}

bool VirtualSwarm::run_until(Duration limit, const std::function<bool()>& predicate) {
  const TimePoint end = now_ + limit;
  while (!predicate())
    if (!next_event(end)) return predicate();
  return true;
}

void VirtualSwarm::run_for(Duration time) {
  const TimePoint end = now_ + time;
  while (next_event(end)) {
  }
  now_ = end;
}

void VirtualSwarm::step(std::size_t index) {
  SimNode& node = *nodes_[index];
  node.steps += 1;
  node.next_step = now_ + options_.step_time;
  if (train) {
    train(index, node);
  } else {
    train_on_quadratic(node);
  }
  const TrainingFigures figures{
      .steps = node.steps, .samples = node.steps * options_.batch, .step_time = options_.step_time};
  carry_out(index, node.gossip->on_steps(now_, figures));
}

void VirtualSwarm::train_on_quadratic(SimNode& node) {
  for (std::size_t i = 0; i < node.master.parameters.size(); ++i) {
    if (!is_parameter(model_.layout, i)) continue;
    float& x = node.master.parameters[i];
    const auto noise = static_cast<float>(node.rng.unit() - 0.5) * 0.2F;
    x -= 0.05F * (x - optimum_[i] + noise);
  }
}

void VirtualSwarm::carry_out(std::size_t node, GossipEffects effects) {
  for (auto& effect : effects) carry_out_one(node, std::move(effect));
}

void VirtualSwarm::carry_out_one(std::size_t index, GossipEffect effect) {
  SimNode& node = *nodes_[index];
  const auto later = now_ + std::chrono::microseconds(100);
  if (auto* outgoing = std::get_if<Outgoing>(&effect)) {
    send(index, std::move(*outgoing));
  } else if (auto* job = std::get_if<CodecJob>(&effect)) {
    if (before_job) before_job(index, node, *job);
    auto outcome = node.references.run(*job);
    at(later, index, [this, index, outcome = std::move(outcome)](SimNode& self) {
      carry_out(index, self.gossip->on_codec_done(now_, outcome));
    });
  } else if (const auto* consensus_job = std::get_if<consensus::ConsensusJob>(&effect)) {
    run_job(index, *consensus_job);
  } else if (const auto* wanted = std::get_if<WantedSession>(&effect)) {
    dial(index, *wanted);
  } else if (const auto* close = std::get_if<CloseSession>(&effect)) {
    ++closed_;
    disconnect(index, index_of(close->peer), SessionEnd::local);
  } else if (const auto* persist = std::get_if<PersistIncarnation>(&effect)) {
    at(later, index, [this, index, ceiling = persist->ceiling](SimNode& self) {
      carry_out(index, self.gossip->on_incarnations_persisted(now_, ceiling));
    });
  } else if (std::holds_alternative<PauseTraining>(effect)) {
    node.training = false;
    at(later, index,
       [this, index](SimNode& self) { carry_out(index, self.gossip->on_training_paused(now_)); });
  } else if (const auto* take = std::get_if<TakeContribution>(&effect)) {
    node.contribution = node.master.parameters;
    node.contribution_mean = node.master.mean;
    node.contribution_variance = node.master.variance;
    at(later, index, [this, index, kind = take->kind](SimNode& self) {
      carry_out(index, self.gossip->on_contribution(now_, kind));
    });
  } else if (const auto* finished = std::get_if<consensus::Finished>(&effect)) {
    node.finished = *finished;
    at(later, index,
       [this, index](SimNode& self) { carry_out(index, self.gossip->on_result_stored(now_)); });
  } else if (const auto* failed = std::get_if<ConsensusFailed>(&effect)) {
    node.failed = failed->error;
  } else if (auto* not_taken = std::get_if<NotTaken>(&effect)) {
    node.not_taken = std::move(*not_taken);
  } else if (std::holds_alternative<MayExit>(effect)) {
    node.may_exit = true;
  } else if (std::holds_alternative<Left>(effect)) {
    node.left = true;
  } else if (std::holds_alternative<FarBehind>(effect)) {
    node.far_behind_told += 1;
  } else if (const auto* event = std::get_if<ExchangeEvent>(&effect)) {
    if (const auto* exchanged = std::get_if<Exchanged>(event)) node.halves[exchanged->peer] += 1;
  }
}

void VirtualSwarm::send(std::size_t from, Outgoing outgoing) {
  if (on_send) on_send(from, outgoing);
  const std::size_t to = index_of(outgoing.to);
  const auto found = sessions_.find(std::minmax(from, to));
  if (found == sessions_.end()) return;
  Session& session = found->second;
  const auto spread = static_cast<std::uint64_t>((options_.delay_max - options_.delay_min).count());
  const Duration delay = options_.delay_min + Duration(rng_.below(spread + 1));
  OrderOfArrival& order = from < to ? session.to_high : session.to_low;
  at(order.of(outgoing.message, now_ + delay), to,
     [this, from, to, number = session.number,
      message = std::move(outgoing.message)](SimNode& node) {
       const auto still = sessions_.find(std::minmax(from, to));
       if (still == sessions_.end() || still->second.number != number) return;
       if (message.attachment &&
           !node.gossip->admits(nodes_[from]->id(), message.type, message.attachment->size()))
         return;
       if (message.attachment && refuses && refuses(from, to, message)) {
         refuse(from, to, message);
         return;
       }
       carry_out(to, node.gossip->on_message(now_, nodes_[from]->id(), message));
     });
}

void VirtualSwarm::refuse(std::size_t from, std::size_t to, const transport::Message& message) {
  at(now_ + options_.delay_min, from,
     [this, from, to,
      known = transport::Message{message.type, message.body, nullptr}](SimNode& node) {
       if (!sessions_.contains(std::minmax(from, to))) return;
       carry_out(from, node.gossip->on_refused(now_, nodes_[to]->id(), known));
     });
}

void VirtualSwarm::dial(std::size_t from, const WantedSession& wanted) {
  const std::size_t to = index_of(wanted.id);
  at(now_ + options_.delay_max, from, [this, from, to](SimNode& node) {
    if (!nodes_[to]->running) {
      carry_out(from, node.gossip->on_dial_refused(now_, nodes_[to]->id()));
    } else if (nodes_[to]->frozen_until_told) {
      carry_out(from, node.gossip->on_dial_failed(now_, nodes_[to]->id()));
    } else {
      connect(from, to);
    }
  });
}

void VirtualSwarm::run_job(std::size_t index, const consensus::ConsensusJob& job) {
  SimNode& node = *nodes_[index];
  const consensus::ChunkPlan plan(shape_of(model_.layout));
  const consensus::JobMemory memory{.parameters = node.contribution,
                                    .mean = node.contribution_mean,
                                    .variance = node.contribution_variance,
                                    .counters = node.counters,
                                    .result_parameters = node.result,
                                    .result_mean = node.result_mean,
                                    .result_variance = node.result_variance,
                                    .result_counters = node.result_counters,
                                    .tensors = {}};
  auto outcome = consensus::run_job(job, plan, memory);
  at(now_ + std::chrono::microseconds(100), index,
     [this, index, outcome = std::move(outcome)](SimNode& self) {
       carry_out(index, self.gossip->on_consensus_done(now_, outcome));
     });
}

double VirtualSwarm::disagreement() const {
  double total = 0;
  for (std::size_t i = 0; i < model_.layout.size(); ++i) {
    double sum = 0;
    double squares = 0;
    double count = 0;
    for (const auto& node : nodes_) {
      if (!node->running) continue;
      const double x = static_cast<double>(node->master.parameters[i]);
      sum += x;
      squares += x * x;
      count += 1;
    }
    total += squares / count - (sum / count) * (sum / count);
  }
  return total / static_cast<double>(model_.layout.size());
}

double VirtualSwarm::distance_to_optimum(std::size_t index) const {
  double squares = 0;
  for (std::size_t i = 0; i < model_.layout.size(); ++i) {
    const double d =
        static_cast<double>(nodes_[index]->master.parameters[i]) - static_cast<double>(optimum_[i]);
    squares += d * d;
  }
  return std::sqrt(squares / static_cast<double>(model_.layout.size()));
}

bool all_finished(VirtualSwarm& swarm, const std::vector<std::size_t>& nodes) {
  for (const auto index : nodes)
    if (!swarm.node(index).finished) return false;
  return true;
}

std::set<std::vector<float>> results(VirtualSwarm& swarm, const std::vector<std::size_t>& nodes) {
  std::set<std::vector<float>> different;
  for (const auto index : nodes) different.insert(swarm.node(index).result);
  return different;
}

}  // namespace starling::gossip::testing
