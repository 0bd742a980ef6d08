#include "tests/sim/world.h"

#include "node/base/check.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace starling::sim {

using namespace std::chrono_literals;
using gossip::consensus::testing::FakeSigner;
using gossip::consensus::testing::node_id;

namespace {

constexpr std::uint16_t kPort = 7700;
// How long a supervisor waits before it starts a process again that failed.
constexpr Duration kRestart = 3s;
// What a machine may cause in one second: messages, timers, jobs. Finish statements of 30 machines
// after a partition have been seen to make 50,000.
constexpr std::uint64_t kMostEvents = 200'000;
// Between two looks at a condition that the liveness phase waits for.
constexpr Duration kLook = 250ms;

transport::Endpoint endpoint_of(Host host) {
  return {"10." + std::to_string(host >> 16) + "." + std::to_string(host >> 8 & 255) + "." +
              std::to_string(host & 255),
          kPort};
}

// Where one end alone wants an edge, the other may have no room for it.
bool averages_with(const Process& process, const NodeId& peer) {
  if (process.ending() || !process.training() || process.gossip().mixer() == nullptr) return false;
  const auto views = process.gossip().mixer()->neighbours();
  const auto at = std::ranges::find(views, peer, &gossip::NeighbourView::peer);
  return at != views.end() && at->wanted;
}

}  // namespace

World::World(Plan plan, std::ostream* trace)
    : plan_(std::move(plan)),
      rng_(plan_.seed * 77 + 5),
      trace_(trace),
      problem_(plan_.problem),
      wire_(schedule_, Rng(rng_()), plan_.wire, plan_.machines.size()),
      checkers_(schedule_, *this, problem_, verifier_),
      machines_(plan_.machines.size()) {
  for (Host host = 0; host < machines_.size(); ++host) {
    machines_[host].signer = std::make_unique<FakeSigner>(node_id(plan_.seed * 100'003 + host));
    hosts_[machines_[host].signer->id()] = host;
    wire_.set_distance(host, plan_.distances[host]);
    machines_[host].untouched_since = schedule_.now();
    machines_[host].wanted = true;
    schedule_.after(plan_.starts[host], [this, host] { start(host); });
  }
  for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
    faults_.push_back({plan_.faults[i], true, {}});
    schedule_.after(plan_.faults[i].at, [this, i] { begin_fault(i); });
  }
  schedule_.after(1s, [this] { every_second(); });
}

World::~World() {
  for (auto& machine : machines_) machine.process.reset();
}

// ---- machines

void World::start(Host host) {
  Machine& machine = machines_[host];
  if (machine.process || machine.departed || !machine.wanted || machine.darknesses > 0) return;
  if (machine.disk.final && !plan_.machines[host].serves_for_ever) {
    machine.departed = true;  // nothing is left to do
    return;
  }
  machine.life = Life::running;
  machine.held.clear();
  machine.running_since = schedule_.now();
  ProcessSetup setup;
  setup.host = host;
  setup.number = ++processes_started_;
  setup.signer = machine.signer.get();
  setup.endpoint = endpoint_of(host);
  for (const auto seed : plan_.machines[host].seeds) setup.seeds.push_back(endpoint_of(seed));
  setup.traits = plan_.machines[host];
  setup.gossip = plan_.gossip;
  setup.join = plan_.join;
  trace_.mix(std::uint64_t{host} | std::uint64_t{1} << 40);
  if (trace_.wanted())
    trace_.line(schedule_.now(), "m" + std::to_string(host),
                "starts as " + short_form(machine.signer->id()));
  const Services services{schedule_, wire_, *this, trace_, checkers_, problem_, verifier_};
  machine.process = std::make_unique<Process>(services, std::move(setup), machine.disk,
                                              machine.burden, Rng(rng_()));
  machine.process->begin();
  checkers_.look_at_start(*machine.process);
  if (machine.pauses > 0) machine.life = Life::paused;
}

// The process is gone, as by SIGKILL.
void World::stop(Host host) {
  Machine& machine = machines_[host];
  if (!machine.process) return;
  trace_.mix(std::uint64_t{host} | std::uint64_t{2} << 40);
  trace_.line(schedule_.now(), "m" + std::to_string(host), "process ends");
  node_seconds_ += seconds(schedule_.now() - machine.running_since);
  machine.process.reset();
  machine.held.clear();
  machine.life = Life::off;
}

void World::pause(Host host) {
  Machine& machine = machines_[host];
  ++machine.pauses;
  if (machine.life == Life::running) machine.life = Life::paused;
}

void World::resume(Host host) {
  Machine& machine = machines_[host];
  if (machine.pauses == 0) return;
  --machine.pauses;
  if (machine.pauses > 0 || machine.life != Life::paused) return;
  machine.life = Life::running;
  // Whether the timers or the sockets are looked at first is the kernel's business.
  if (rng_.chance(0.5)) machine.process->wake();
  auto held = std::exchange(machine.held, {});
  for (std::size_t i = 0; i < held.size(); ++i) {
    // One of them may have ended the process, or a fault paused it again.
    if (machine.life != Life::running) break;
    held[i]();
  }
}

// Processes that have said their goodbyes.
void World::reap() {
  for (Host host = 0; host < machines_.size(); ++host) {
    Machine& machine = machines_[host];
    if (!machine.process || !machine.process->ending()) continue;
    machine.process->sessions_tick();
    if (!machine.process->sessions().drained() && machine.life == Life::running) continue;
    const Exit how = machine.process->how_it_ended();
    stop(host);
    if (how == Exit::finished || how == Exit::left || how == Exit::gave_up)
      machine.departed = true;
    else
      schedule_.after(kRestart, [this, host] { start(host); });
  }
}

void World::every_second() {
  reap();
  checkers_.look();
  schedule_.after(1s, [this] { every_second(); });
}

// ---- Hosts

std::optional<Host> World::find(const transport::Endpoint& endpoint) const {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  if (endpoint.port != kPort || std::sscanf(endpoint.host.c_str(), "10.%u.%u.%u", &a, &b, &c) != 3)
    return std::nullopt;
  const Host host = a << 16 | b << 8 | c;
  if (host >= machines_.size()) return std::nullopt;
  return host;
}

bool World::is_dialable(Host host) const { return plan_.machines[host].dialable; }

Sessions* World::process(Host host) {
  Machine& machine = machines_[host];
  return machine.process ? &machine.process->sessions() : nullptr;
}

void World::run(Host host, std::uint64_t process, Action action) {
  Machine& machine = machines_[host];
  if (!machine.process || machine.process->setup().number != process) return;
  if (machine.life == Life::paused) {
    machine.held.push_back(std::move(action));
    return;
  }
  action();
}

// ---- Census

std::vector<Process*> World::processes() const {
  std::vector<Process*> all;
  for (const auto& machine : machines_)
    if (machine.process) all.push_back(machine.process.get());
  return all;
}

std::optional<TimePoint> World::untouched_since(const NodeId& id) const {
  const Machine& machine = machines_[hosts_.at(id)];
  if (machine.touches > 0 || !machine.process || machine.process->ending()) return std::nullopt;
  return std::max(machine.untouched_since, machine.running_since);
}

bool World::is_steady() const {
  return std::ranges::none_of(plan_.faults, [](const Fault& fault) {
    return fault.kind == FaultKind::crash || fault.kind == FaultKind::power ||
           fault.kind == FaultKind::leave || fault.kind == FaultKind::finish;
  });
}

double World::samples_per_second() const {
  double sum = 0;
  for (const auto& machine : plan_.machines)
    sum += static_cast<double>(machine.batch) / seconds(machine.step_time);
  return sum;
}

// ---- the run

// A message that makes others say the same again would keep this second from ending.
void World::watch_traffic() {
  if (schedule_.now() >= next_count_) {
    next_count_ = schedule_.now() + 1s;
    counted_ = schedule_.events();
  }
  if (schedule_.events() - counted_ > kMostEvents * machines_.size())
    checkers_.report("bounded traffic", "more than " + std::to_string(kMostEvents) +
                                            " events a machine in one second");
}

bool World::run_until(Duration limit, const std::function<bool()>& done) {
  const TimePoint end = schedule_.now() + limit;
  TimePoint next_look = schedule_.now();
  while (checkers_.violations().empty()) {
    if (schedule_.now() >= next_look) {
      if (done()) return true;
      next_look = schedule_.now() + kLook;
    }
    if (!schedule_.run_next(end)) break;
    watch_traffic();
  }
  return checkers_.violations().empty() && done();
}

bool World::is_there(Host host) const {
  const auto& process = machines_[host].process;
  return process && !process->ending();
}

// For each machine the number of its island. Two are in one island if they can hear of each other:
// an operator or a file tells one of them where the other one, or one that both know, takes calls.
std::vector<Host> World::islands() const {
  std::vector<Host> island(machines_.size());
  std::iota(island.begin(), island.end(), Host{0});
  for (Host host = 0; host < machines_.size(); ++host) {
    if (!is_there(host)) continue;
    const auto& machine = machines_[host];
    const auto meet = [&](const transport::Endpoint& endpoint) {
      const auto other = find(endpoint);
      if (!other || !is_there(*other) || !is_dialable(*other)) return;
      std::ranges::replace(island, Host{island[*other]}, Host{island[host]});
    };
    for (const auto& endpoint : machine.process->setup().seeds) meet(endpoint);
    for (const auto& peer : machine.disk.book.peers()) meet(peer.endpoint);
  }
  return island;
}

bool World::one_island() const {
  const auto island = islands();
  std::set<Host> seen;
  for (Host host = 0; host < machines_.size(); ++host)
    if (is_there(host)) seen.insert(island[host]);
  return seen.size() <= 1;
}

// Every process that runs knows exactly the processes that run, as far as it can hear of them.
bool World::one_view() {
  apart_.clear();
  const auto island = islands();
  for (Host observer = 0; observer < machines_.size(); ++observer) {
    if (!is_there(observer)) continue;
    const auto& process = *machines_[observer].process;
    if (process.phase() == bootstrap::RunPhase::starting && apart_.empty())
      apart_ = process.name() + " still joins";
    for (Host subject = 0; subject < machines_.size(); ++subject) {
      if (observer == subject) continue;
      const auto& machine = machines_[subject];
      const auto state = process.gossip().membership().state_of(machine.signer->id());
      const bool there =
          is_there(subject) && machine.process->phase() != bootstrap::RunPhase::leaving;
      if (there == (state == gossip::MemberState::alive)) continue;
      // Who took the final model before it had one of its own serves it, and never trains.
      if (there && state == gossip::MemberState::joining && machine.process->finished()) continue;
      if (there && island[observer] != island[subject]) continue;
      if (apart_.empty())
        apart_ = process.name() + " holds " + short_form(machine.signer->id()) +
                 (there ? " (running)" : " (gone)") + " for " +
                 std::string(state ? gossip::name_of(*state) : "unknown");
    }
  }
  return apart_.empty();
}

// Any two who are to average with each other have done so since then.
bool World::all_exchange(TimePoint since) {
  apart_.clear();
  for (const auto& machine : machines_) {
    const Process* process = machine.process.get();
    if (process == nullptr || process->gossip().mixer() == nullptr) continue;
    for (const auto& view : process->gossip().mixer()->neighbours()) {
      const Machine& peer = machines_[hosts_.at(view.peer)];
      if (!view.wanted || !peer.process || !averages_with(*peer.process, process->id())) continue;
      if (!averages_with(*process, view.peer)) continue;
      if (view.last_exchange && process->local() - *view.last_exchange < schedule_.now() - since)
        continue;
      if (apart_.empty())
        apart_ = "no exchange of " + process->name() + " with " + peer.process->name() + " (" +
                 std::string(gossip::name_of(view.state)) + ")";
    }
  }
  return apart_.empty();
}

bool World::all_finished() {
  return std::ranges::all_of(machines_, [](const Machine& machine) {
    if (!machine.wanted || machine.departed) return true;
    return machine.process && (machine.process->finished() || machine.process->ending());
  });
}

// Who keeps the end waiting, and where it stands.
std::string World::unfinished() const {
  std::string all = "not finished:";
  for (const Machine& machine : machines_) {
    if (!machine.wanted || machine.departed) continue;
    if (machine.process && (machine.process->finished() || machine.process->ending())) continue;
    all += machine.process ? " " + machine.process->name() : " one that is down";
    const auto* run = machine.process ? machine.process->gossip().final_consensus() : nullptr;
    if (run == nullptr) continue;
    const auto state = run->state();
    all += " (" + std::string(name_of(state.phase)) + " in epoch " +
           std::to_string(state.epoch.value) + ": " + state.reason + ")";
  }
  return all;
}

// One machine of each island is told.
void World::order_the_end() {
  const auto island = islands();
  std::set<Host> told;
  for (Host host = 0; host < machines_.size(); ++host)
    if (is_there(host) && !machines_[host].process->finished() && told.insert(island[host]).second)
      machines_[host].process->finish();
}

// Faults are over: one view, an exchange on every edge, one end.
void World::run_liveness(Outcome& outcome) {
  const TimePoint healed = schedule_.now();
  const auto within = [&](Duration limit, const std::function<bool()>& done) {
    return run_until(limit, done) || !checkers_.violations().empty();
  };
  const auto passed = [&](TimePoint since) { return seconds(schedule_.now() - since); };
  if (!within(plan_.to_one_view, [this] { return one_view() || all_finished(); }))
    checkers_.report("one view", "the machines are not in one view " +
                                     std::to_string(static_cast<int>(passed(healed))) +
                                     " s after the last fault: " + apart_);
  outcome.one_view_seconds = passed(healed);
  const TimePoint one = schedule_.now();
  // What a fault held back still arrives, and may shake a view: it must hold to the end.
  const auto exchanged = [&] { return one_view() && all_exchange(one); };
  if (!within(plan_.to_exchanges, [&] { return exchanged() || all_finished(); }))
    checkers_.report("every edge exchanges", apart_ + " for " +
                                                 std::to_string(static_cast<int>(passed(one))) +
                                                 " s though nothing is wrong");
  const TimePoint counting = schedule_.now();
  const auto counted = [&] {
    if (all_finished()) return true;
    if (!exchanged()) return false;
    apart_ = one_island() ? checkers_.look_at_progress() : "";
    return apart_.empty();
  };
  if (!within(plan_.to_one_sum, counted))
    checkers_.report("P is the sum", apart_ + ", " +
                                         std::to_string(static_cast<int>(passed(counting))) +
                                         " s after all were there");
  if (!checkers_.violations().empty()) return;
  const TimePoint ordered = schedule_.now();
  order_the_end();
  if (!within(plan_.to_the_end, [this] { return all_finished(); }))
    checkers_.report("the end comes", unfinished() + " " +
                                          std::to_string(static_cast<int>(passed(ordered))) +
                                          " s after the order");
  outcome.end_seconds = passed(ordered);
}

Outcome World::run() {
  (void)run_until(plan_.safety, [] { return false; });
  end_all_faults();
  checkers_.begin_liveness();
  Outcome outcome;
  if (checkers_.violations().empty()) run_liveness(outcome);
  for (Host host = 0; host < machines_.size(); ++host)
    if (machines_[host].process)
      node_seconds_ += seconds(schedule_.now() - machines_[host].running_since);
  outcome.seed = plan_.seed;
  outcome.machines = machines_.size();
  outcome.events = schedule_.events();
  outcome.frames = wire_.frames();
  outcome.bytes = wire_.bytes();
  outcome.node_seconds = node_seconds_;
  outcome.virtual_seconds = seconds(schedule_.now() - TimePoint(std::chrono::hours(1)));
  trace_.mix(outcome.events);
  outcome.trace = trace_.hash();
  outcome.tally = checkers_.tally();
  outcome.violations = checkers_.violations();
  return outcome;
}

}  // namespace starling::sim
