#include "node/cli/chaos_swarm.h"

#include "node/cli/demo_setup.h"
#include "node/control/caller.h"
#include "node/printable.h"
#include "node/state_dir.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace starling::node {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr Duration kChaosAskEvery = std::chrono::milliseconds(500);
constexpr Duration kChaosPatience = std::chrono::milliseconds(400);
constexpr int kChaosPollMs = 50;

bool contains(const ChaosSwarm::Numbers& numbers, std::size_t number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

std::string text_at(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

Result<std::unique_ptr<ChaosSwarm>> ChaosSwarm::make(fs::path dir, std::vector<std::string> words,
                                                     std::size_t most, StopSignals& signals) {
  std::unique_ptr<ChaosSwarm> made(new ChaosSwarm(std::move(dir), std::move(words), most, signals));
  TRY(made->proxies_, ByteProxies::start(most));
  return made;
}

fs::path ChaosSwarm::folder(std::size_t number) const {
  return dir_ / fmt::format("node-{}", number);
}

Result<void> ChaosSwarm::start(std::size_t number) {
  const auto name = fmt::format("node-{}", number);
  Seen& node = at(number);
  std::error_code error;
  fs::remove(folder(number) / "address", error);  // of the process before
  std::vector<std::string> words{"run",
                                 "--dir",
                                 folder(number).string(),
                                 "--listen",
                                 "127.0.0.1:0",
                                 "--advertise",
                                 proxies_->address(number - 1),
                                 "--http",
                                 "off",
                                 "--ui",
                                 "none"};
  if (number != 1) {
    const auto limit = clock_.now() + kStartLimit;
    while (!fs::exists(folder(1) / "address", error)) {
      if (at(1).process == nullptr || !at(1).here) break;  // it was here once
      if (clock_.now() > limit)
        return fail(Errc::timed_out, Doing::starting, "the first node did not start");
      TRY_VOID(turn());
    }
    add_secret_of(folder(1), words);
  }
  for (std::size_t peer = 1; peer <= nodes_.size(); ++peer) {
    if (peer == number || !at(peer).here) continue;
    words.insert(words.end(), {"--peer", proxies_->address(peer - 1)});
    break;
  }
  words.insert(words.end(), words_.begin(), words_.end());
  node.process.reset();
  TRY(node.process, DemoNode::start(name, folder(number), words));
  node.here = true;
  node.stopped = false;
  node.ends = false;
  node.alive.clear();
  node.step = node.uptime_s = node.marked_step = node.marked_uptime_s = node.moved_uptime_s = 0;
  return proxies_->open(number - 1, node.process->pid(), folder(number) / "address");
}

void ChaosSwarm::kill(std::size_t number) {
  at(number).ends = true;
  at(number).here = false;
  at(number).process->signal(SIGKILL);
  proxies_->close(number - 1);
}

void ChaosSwarm::stop(std::size_t number) {
  at(number).stopped = true;
  at(number).process->signal(SIGSTOP);
}

void ChaosSwarm::resume(std::size_t number) {
  at(number).stopped = false;
  at(number).process->signal(SIGCONT);
}

void ChaosSwarm::leave(std::size_t number) {
  at(number).ends = true;
  at(number).here = false;
  at(number).process->signal(SIGTERM);
}

void ChaosSwarm::split(const Numbers& side) {
  std::vector<int> sides(nodes_.size(), 0);
  for (const auto number : side) sides[number - 1] = 1;
  proxies_->split(std::move(sides));
}

void ChaosSwarm::mend() { proxies_->mend(); }

Result<void> ChaosSwarm::watch(Duration time) {
  const auto until = clock_.now() + time;
  while (clock_.now() < until) TRY_VOID(turn());
  return {};
}

Result<bool> ChaosSwarm::wait_whole(Duration limit) {
  const auto until = clock_.now() + limit;
  // What was heard before this moment is of another time.
  for (std::size_t number = 1; number <= nodes_.size(); ++number) at(number).alive.clear();
  while (!is_whole()) {
    if (clock_.now() > until) return false;
    TRY_VOID(turn());
  }
  return true;
}

bool ChaosSwarm::is_whole() const {
  return std::ranges::all_of(nodes_, [this](const Seen& watcher) {
    return !watcher.here || std::ranges::all_of(nodes_, [&](const Seen& other) {
      return !other.here || (!other.id.empty() && watcher.alive.contains(other.id));
    });
  });
}

Result<void> ChaosSwarm::turn() {
  std::vector<pollfd> waiting{{signals_.descriptor(), POLLIN, 0}};
  for (const Seen& node : nodes_)
    if (node.process && node.process->output() >= 0)
      waiting.push_back({node.process->output(), POLLIN, 0});
  (void)::poll(waiting.data(), waiting.size(), kChaosPollMs);
  if (signals_.take()) return fail(Errc::cancelled, Doing::stopping, "interrupted");
  const bool asks = clock_.now() >= ask_at_;
  if (asks) ask_at_ = clock_.now() + kChaosAskEvery;
  for (std::size_t number = 1; number <= nodes_.size(); ++number) {
    Seen& node = at(number);
    if (!node.process) continue;
    const bool running = node.process->running();
    listen_to(number);
    read_events(number);
    if (!running && !node.ends)
      return fail(Errc::io_failed, Doing::training,
                  fmt::format("node-{} ended with exit {}: {}", number,
                              node.process->exit_status().value_or(1), printable(node.last_words)));
    if (!running) proxies_->close(number - 1);
    if (running && asks && !node.stopped) ask(number);
  }
  return {};
}

void ChaosSwarm::listen_to(std::size_t number) {
  Seen& node = at(number);
  node.process->read_lines([&](const std::string& line) {
    if (!line.empty()) node.last_words = line;
  });
}

void ChaosSwarm::ask(std::size_t number) {
  Seen& node = at(number);
  const auto answer = ask_node(folder(number), StatusRequest{}, kChaosPatience);
  if (!answer) return;
  const auto status = Json::parse(*answer, nullptr, false);
  if (!status.is_object()) return;
  node.status = *answer;
  if (const auto part = status.find("node"); part != status.end() && part->is_object())
    node.id = text_at(*part, "id");
  const double step = status_number(status, "progress", "step");
  const double uptime_s = status_number(status, "node", "uptime_s");
  if (step != node.step || node.moved_uptime_s <= 0) node.moved_uptime_s = uptime_s;
  node.pause_s = std::max(node.pause_s, uptime_s - node.moved_uptime_s);
  node.step = step;
  node.uptime_s = uptime_s;
  node.alive.clear();
  if (const auto members = status.find("members"); members != status.end() && members->is_array())
    for (const auto& member : *members)
      if (member.is_object() && text_at(member, "state") == "alive")
        node.alive.insert(text_at(member, "id"));
}

void ChaosSwarm::read_events(std::size_t number) {
  Seen& node = at(number);
  if (!node.events) node.events = std::make_unique<LineTail>(folder(number) / "events.jsonl");
  for (const auto& line : node.events->read()) {
    const auto event = Json::parse(line, nullptr, false);
    if (event.is_object() && text_at(event, "event") == "member")
      node.changes.push_back({text_at(event, "id"), text_at(event, "state"), clock_.now()});
  }
}

ChaosSwarm::Numbers ChaosSwarm::here_without(const Numbers& some) const {
  Numbers numbers;
  for (std::size_t number = 1; number <= nodes_.size(); ++number)
    if (at(number).here && !contains(some, number)) numbers.push_back(number);
  return numbers;
}

void ChaosSwarm::mark() {
  marked_at_ = clock_.now();
  for (Seen& node : nodes_) {
    node.marked_step = node.step;
    node.marked_uptime_s = node.uptime_s;
    node.moved_uptime_s = node.uptime_s;
    node.pause_s = 0;
    node.changes.clear();
  }
}

double ChaosSwarm::steps_a_second(const Numbers& nodes) const {
  double sum = 0;
  for (const auto number : nodes) {
    const Seen& node = at(number);
    const double took = node.uptime_s - node.marked_uptime_s;
    if (took > 0) sum += (node.step - node.marked_step) / took;
  }
  return sum;
}

double ChaosSwarm::longest_pause(const Numbers& nodes) const {
  double longest = 0;
  for (const auto number : nodes) longest = std::max(longest, at(number).pause_s);
  return longest;
}

std::vector<Sighting> ChaosSwarm::sightings() const {
  std::vector<Sighting> all;
  for (std::size_t watcher = 1; watcher <= nodes_.size(); ++watcher)
    for (const auto& change : at(watcher).changes) {
      const auto subject = std::ranges::find(nodes_, change.member, &Seen::id);
      if (subject == nodes_.end()) continue;
      all.push_back({.watcher = watcher,
                     .subject = static_cast<std::size_t>(subject - nodes_.begin()) + 1,
                     .state = change.state,
                     .at_s = seconds(change.at - marked_at_)});
    }
  return all;
}

Result<std::vector<DemoEnd>> ChaosSwarm::finish(Duration limit) {
  const Numbers here = here_without({});
  for (const auto number : here) at(number).ends = true;
  // The answer comes with the end; nobody waits for it here.
  (void)ask_node(folder(here.front()), FinishRequest{}, kChaosPatience);
  const auto until = clock_.now() + limit;
  const auto running = [&](std::size_t number) { return at(number).process->running(); };
  while (std::ranges::any_of(here, running) && clock_.now() < until) TRY_VOID(turn());
  std::vector<DemoEnd> ends;
  for (const auto number : here)
    ends.push_back(end_of(*at(number).process, at(number).status, at(number).last_words));
  return ends;
}

}  // namespace starling::node
