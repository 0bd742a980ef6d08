#include "tests/bootstrap/join_swarm.h"

#include "node/base/check.h"
#include "node/base/hash.h"

#include <algorithm>

namespace starling::bootstrap::testing {

using std::chrono::milliseconds;

void JoinSwarm::post(Duration delay, std::size_t node, std::function<void()> run) {
  events_.push({now_ + delay, order_++, node, std::move(run)});
}

std::size_t JoinSwarm::start(NodePlan plan, const std::vector<std::size_t>& seeds) {
  const std::size_t index = nodes_.size();
  Node node;
  node.id = *NodeId::from(Hasher().add(std::uint64_t{index}).finish().view());
  node.age = plan.age;
  node.certificate = plan.certificate;
  if (!plan.certificate.is_zero()) node.phase = RunPhase::finished;
  JoinParts parts{.own = *Settings::from(plan.settings),
                  .forced = plan.forced,
                  .start = plan.start,
                  .options = plan.options};
  node.join = std::make_unique<Join>(now_, std::move(parts), Rng(rng_()));
  node.plan = std::move(plan);
  index_[node.id] = index;
  nodes_.push_back(std::move(node));
  std::vector<Seed> wanted;
  for (const auto seed : seeds) {
    Seed one;
    one.endpoint = endpoint(seed);
    wanted.push_back(one);
  }
  Join& join = at(index);
  carry_out(index, *join.add_seeds(now_, wanted));
  carry_out(index, join.update(now_, facts(index)));
  carry_out(index, join.begin(now_));
  post(milliseconds(rng_.below(100)), index, [this, index] { every_second(index); });
  return index;
}

void JoinSwarm::add_seed(std::size_t node, std::size_t seed) {
  Seed one;
  one.endpoint = endpoint(seed);
  carry_out(node, *at(node).add_seeds(now_, {one}));
}

LocalFacts JoinSwarm::facts(std::size_t index) const {
  const Node& node = nodes_[index];
  LocalFacts facts;
  facts.phase = node.phase;
  facts.age = node.age;
  facts.samples = static_cast<std::uint64_t>(node.age * 10);
  facts.max_state_bytes = model_bytes;
  facts.certificate = node.certificate;
  std::set<std::size_t> seen = node.shown;
  for (const auto& [a, b] : sessions_)
    if (a == index) seen.insert(b);
  facts.alive_same = 0;
  for (const auto other : seen) {
    if (!nodes_[other].trains) continue;
    facts.alive.push_back(nodes_[other].id);
    *facts.alive_same += nodes_[other].join->settings() == node.join->settings() ? 1 : 0;
  }
  std::ranges::sort(facts.alive);
  return facts;
}

// Stands for membership, training and the clock of the shell; ten times a second.
void JoinSwarm::every_second(std::size_t index) {
  Node& node = nodes_[index];
  if (node.trains) node.age += 1;
  carry_out(index, node.join->update(now_, facts(index)));
  carry_out(index, node.join->on_tick(now_));
  post(milliseconds(100), index, [this, index] { every_second(index); });
}

void JoinSwarm::dial(std::size_t index, const transport::Endpoint& target) {
  std::size_t to = 0;
  while (to < nodes_.size() && endpoint(to) != target) ++to;
  const auto fails = [&](Duration delay, Errc code) {
    post(delay, index, [this, index, target, code] {
      carry_out(index, at(index).on_dial_failed(now_, target, {code, Doing::handshaking, ""}));
    });
  };
  if (to >= nodes_.size() || !nodes_[to].running)
    return fails(milliseconds(2), Errc::connect_failed);
  if (to == index) return fails(milliseconds(2), Errc::already_exists);
  if (nodes_[to].turns_away) return fails(milliseconds(2), *nodes_[to].turns_away);
  post(milliseconds(3), index, [this, index, to, target] {
    if (!nodes_[to].running) return;
    if (!sessions_.insert({index, to}).second)
      return carry_out(index, at(index).on_dial_met(now_, target, nodes_[to].id));
    sessions_.insert({to, index});
    carry_out(index, at(index).on_session_up(now_, nodes_[to].id, target));
    carry_out(to, at(to).on_session_up(now_, nodes_[index].id, std::nullopt));
  });
}

void JoinSwarm::send(std::size_t from, const BootstrapOutgoing& outgoing) {
  const std::size_t to = index_.at(outgoing.to);
  BootstrapMessage said = outgoing.message;
  if (nodes_[from].plan.lie) nodes_[from].plan.lie(said);
  const auto wire = encode(said);
  if (wire.attachment && std::holds_alternative<Chunk>(said))
    STARLING_CHECK(at(to).admits(nodes_[from].id, wire.type, wire.attached().size()));
  auto decoded = decode_bootstrap(wire);
  STARLING_CHECK(decoded.has_value());
  post(wire.attachment ? chunk_delay : milliseconds(1), to,
       [this, from, to, message = std::move(*decoded)] {
         if (sessions_.contains({from, to}))
           carry_out(to, at(to).on_message(now_, nodes_[from].id, message));
       });
}

Result<SharedSnapshot> JoinSwarm::snapshot(std::size_t index) const {
  const Node& node = nodes_[index];
  Bytes bytes(model_bytes);
  std::copy_n(as_bytes(node.model).begin(), node.model.size(), bytes.begin());
  Manifest about;
  about.fingerprint = node.join->settings().fingerprint();
  about.step = static_cast<std::uint64_t>(node.age);
  about.age = node.age;
  TRY(auto cut, cut_snapshot({bytes}, about));
  // Owners: see SharedSnapshot.
  return std::make_shared<const Snapshot>(std::move(cut));
}

// Like the node: what cannot be used stops nothing, and who ends keeps what it has.
void JoinSwarm::rebuild(std::size_t index, const Settings& settings) {
  Node& node = nodes_[index];
  if (node.plan.unusable_lr.contains(settings.values().at("lr"))) {
    const Error why{Errc::settings_mismatch, Doing::joining, "another genesis"};
    return carry_out(index, at(index).on_settings_unusable(now_, why));
  }
  if (node.phase != RunPhase::starting && node.phase != RunPhase::training)
    return carry_out(index, at(index).on_settings_kept(now_));
  node.trains = false;
  node.phase = RunPhase::starting;
  node.age = 0;
  carry_out(index, at(index).on_settings_adopted(now_, settings));
}

void JoinSwarm::carry_out(std::size_t index, JoinEffects effects) {
  for (const auto& effect : effects) {
    nodes_[index].told.push_back(effect);
    carry_out_one(index, effect);
  }
}

void JoinSwarm::carry_out_one(std::size_t index, const JoinEffect& effect) {
  Node& node = nodes_[index];
  if (const auto* outgoing = std::get_if<BootstrapOutgoing>(&effect)) send(index, *outgoing);
  if (const auto* wanted = std::get_if<Dial>(&effect)) dial(index, wanted->target.endpoint);
  if (const auto* begin = std::get_if<BeginTraining>(&effect)) {
    node.trains = true;
    node.phase = RunPhase::training;
    node.model = begin->start == Start::genesis ? "genesis of " + node.join->settings().text()
                                                : "checkpoint of " + std::to_string(index);
    if (begin->start == Start::genesis) node.age = 0;
  }
  if (const auto* adopt = std::get_if<AdoptSettings>(&effect)) {
    post(milliseconds(50), index,
         [this, index, settings = adopt->settings] { rebuild(index, settings); });
  }
  if (std::holds_alternative<TakeSnapshot>(effect))
    post(milliseconds(30), index,
         [this, index] { carry_out(index, at(index).on_snapshot(now_, snapshot(index))); });
  if (const auto* install = std::get_if<InstallState>(&effect)) {
    post(milliseconds(20), index, [this, index, snapshot = install->snapshot] {
      const auto text = as_text(*snapshot->chunks[0]);
      nodes_[index].model = std::string(text.substr(0, text.find('\0')));
      nodes_[index].age = snapshot->manifest.age;
      nodes_[index].trains = true;
      nodes_[index].phase = RunPhase::training;
      carry_out(index, at(index).on_state_installed(now_));
    });
  }
  if (const auto* probe = std::get_if<ProbePort>(&effect))
    post(milliseconds(5), index, [this, index, peer = probe->peer, port = probe->port] {
      DialBackReply found{port, port == 7700, "10.0.0.9", ""};
      carry_out(index, at(index).on_probed(now_, peer, std::move(found)));
    });
}

void JoinSwarm::run(Duration time) {
  const TimePoint end = now_ + time;
  while (!events_.empty() && events_.top().at <= end) {
    Event event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    if (nodes_[event.node].running) event.run();
  }
  now_ = end;
}

void JoinSwarm::kill(std::size_t index) {
  nodes_[index].running = false;
  for (std::size_t other = 0; other < nodes_.size(); ++other) {
    if (sessions_.erase({index, other}) == 0) continue;
    sessions_.erase({other, index});
    post(milliseconds(1), other, [this, index, other] {
      carry_out(other, at(other).on_session_down(now_, nodes_[index].id));
    });
  }
}

void JoinSwarm::finish(std::size_t index, const Hash& certificate) {
  nodes_[index].phase = RunPhase::finished;
  nodes_[index].certificate = certificate;
}

}  // namespace starling::bootstrap::testing
