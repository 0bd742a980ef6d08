#include "node/bench/swarm_nodes.h"

#include "node/cli/demo_report.h"
#include "node/config/keys.h"
#include "node/control/caller.h"
#include "node/printable.h"
#include "node/state_dir.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <utility>

namespace starling::node::bench {

namespace {

namespace fs = std::filesystem;

constexpr Duration kSwarmStartLimit = std::chrono::minutes(10);
constexpr Duration kStepLimit = std::chrono::minutes(5);
constexpr Duration kFinishLimit = std::chrono::minutes(10);
constexpr Duration kAskPatience = std::chrono::seconds(2);
// How often something is looked at that is to be seen at once, and a node whose steps are awaited.
// To answer costs a node a fifth of a millisecond, which eight nodes on two cores would miss.
constexpr Duration kFine = std::chrono::milliseconds(4);
constexpr Duration kCoarse = std::chrono::milliseconds(200);
// A slow node runs for the first of every four of these.
constexpr int kSlowTickMs = 20;

// User and system time of all its threads; 0 if it is gone.
double cpu_seconds_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text(std::istreambuf_iterator<char>(file), {});
  // The name is in brackets and may hold anything; user and system time are fields 14 and 15.
  const auto after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  std::istringstream rest(text.substr(after_name + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) rest >> skipped;
  double user = 0;
  double system = 0;
  rest >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// The thread of a node that trains, as trainer.cc names it.
std::optional<fs::path> train_thread_of(pid_t pid) {
  std::error_code error;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    if (std::getline(file, name) && name == "train") return task.path();
  }
  return std::nullopt;
}

// A key that nodes are told, its name in reports, and where a node's status has what became of it.
struct Setting {
  std::string_view key;
  const char* name;
  const char* group = nullptr;
  const char* field = nullptr;
};
constexpr std::array<Setting, 11> kSettings{{{"train.model", "model", "model", "name"},
                                             {"train.img", "img", "model", "img"},
                                             {"train.batch", "batch", "train", "batch"},
                                             {"train.precision", "precision", "train", "precision"},
                                             {"train.device", "device", "train", "device"},
                                             {"node.threads", "threads"},
                                             {"data.train", "data"},
                                             {"data.threads", "data_threads"},
                                             {"gossip.codec", "codec"},
                                             {"gossip.tau", "tau"},
                                             {"swarm.degree", "degree"}}};

// The last one that is said of it.
std::optional<std::string> told(const std::vector<std::string>& words, std::string_view key) {
  std::optional<std::string> value;
  for (const auto& word : words)
    if (word.starts_with(key) && word.substr(key.size(), 1) == "=")
      value = word.substr(key.size() + 1);
  return value;
}

// Numbers as numbers.
Json as_json(const std::string& text) {
  const auto number = parse_count(text, 0, UINT32_MAX);
  return number ? Json(*number) : Json(text);
}

// Those that this process may run on.
std::vector<std::size_t> cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<std::size_t> found;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return found;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) found.push_back(core);
  return found;
}

}  // namespace

Json settings_of(const std::vector<std::string>& words, const nlohmann::json& status) {
  Json settings;
  for (const Setting& setting : kSettings) {
    const auto said = told(words, setting.key);
    settings[setting.name] = as_json(said ? *said : show_value(*find_key(setting.key), Config{}));
    if (setting.group == nullptr || !status.is_object()) continue;
    const auto group = status.find(setting.group);
    if (group == status.end() || !group->is_object()) continue;
    const auto became = group->find(setting.field);
    // A node that does not know yet says nothing, or zero.
    if (became == group->end() || (became->is_string() && became->get<std::string>().empty()) ||
        *became == 0)
      continue;
    settings[setting.name] = *became;
  }
  return settings;
}

double Window::slowest_step_ms(std::size_t count) const {
  const std::span<const double> first = std::span(step_ms).first(std::min(count, step_ms.size()));
  return first.empty() ? 0 : std::ranges::max(first);
}

Window window_of(const std::vector<NodeReading>& begin, const std::vector<NodeReading>& end) {
  Window window;
  const auto nodes = static_cast<double>(begin.size());
  for (std::size_t number = 0; number < begin.size(); ++number) {
    const NodeReading& a = begin[number];
    const NodeReading& b = end[number];
    const double step_s = (b.step_at_s - a.step_at_s) / (b.step - a.step);
    const double status_steps = (b.status_at_s - a.status_at_s) / step_s;
    window.images_per_s += b.batch / step_s;
    window.step_ms.push_back(1e3 * step_s);
    window.cpu_ms += 1e3 * (b.cpu_s - a.cpu_s) / seconds(b.at - a.at) * step_s / nodes;
    window.bytes += (b.bytes_sent - a.bytes_sent) / status_steps / nodes;
    window.exchanges += (b.exchanges - a.exchanges) / status_steps / nodes;
    window.rss_mib = std::max(window.rss_mib, b.rss_bytes / (1 << 20));
  }
  return window;
}

Result<void> SwarmNodes::start_one(std::size_t number) {
  const auto name = fmt::format("node-{}", number + 1);
  const auto dir = options_.dir / name;
  std::vector<std::string> words{"run",         "--dir", dir.string(), "--listen",
                                 "127.0.0.1:0", "--ui",  "none"};
  if (options_.gossip && number > 0) {
    const auto first = nodes_.front().node->dir();
    const auto address = read_whole(first / "address", 512);
    if (!address) return fail(address.error());
    words.insert(words.end(), {"--peer", address->substr(0, address->find('\n')), "--secret-file",
                               (first / "secret").string()});
  }
  words.insert(words.end(), options_.words.begin(), options_.words.end());
  TRY(nodes_[number].node, DemoNode::start(name, dir, words));
  return {};
}

Result<void> SwarmNodes::wait_for(const fs::path& file, std::size_t number) {
  const auto limit = clock_.now() + kSwarmStartLimit;
  std::error_code error;
  while (!fs::exists(file, error)) {
    if (clock_.now() > limit)
      return fail(Errc::timed_out, Doing::starting,
                  fmt::format("node-{} did not start: see its log in {}", number + 1,
                              options_.dir.string()));
    TRY_VOID(turn(kFine));
  }
  return {};
}

Result<void> SwarmNodes::start(std::uint64_t steps) {
  TRY_VOID(turn(Duration{0}));  // it may have been told to stop already
  const TimePoint begin = clock_.now();
  TRY_VOID(start_one(0));
  TRY_VOID(wait_for(nodes_.front().node->dir() / "address", 0));
  listening_s_ = seconds(clock_.now() - begin);
  const auto limit = begin + kSwarmStartLimit;
  const auto has_stepped = [](const NodeReading& seen) { return seen.step >= 1; };
  if (const auto seen = look_until(0, {limit, kFine, "trains no step"}, has_stepped); !seen)
    return fail(seen.error());
  first_step_s_ = seconds(clock_.now() - begin);
  for (std::size_t number = 1; number < nodes_.size(); ++number) TRY_VOID(start_one(number));
  const bool alone = !options_.gossip || nodes_.size() == 1;
  const auto under_way = [&](const NodeReading& seen) {
    return seen.step >= static_cast<double>(steps) && (alone || seen.exchanges >= 1);
  };
  for (std::size_t number = 0; number < nodes_.size(); ++number) {
    const auto seen = look_until(number, {limit, kCoarse, "did not get under way"}, under_way);
    if (!seen) return fail(seen.error());
    if (options_.pinned) pin(number);
  }
  return {};
}

Result<void> SwarmNodes::turn(Duration wait) {
  pollfd waiting{stop_.descriptor(), POLLIN, 0};
  (void)::poll(&waiting, 1, static_cast<int>(wait / std::chrono::milliseconds(1)));
  (void)stop_.take();
  if (stop_.exit_status()) return fail(Errc::cancelled, Doing::stopping, "ended by a signal");
  for (auto& process : nodes_) {
    if (!process.node) continue;
    const bool running = process.node->running();
    process.node->read_lines([&](const std::string& line) {
      if (!line.empty()) process.last_words = line;
    });
    if (!running && !process.ends)
      return fail(
          Errc::io_failed, Doing::training,
          fmt::format("{} ended with exit {}: {}", process.node->name(),
                      process.node->exit_status().value_or(1), printable(process.last_words)));
  }
  return {};
}

std::optional<nlohmann::json> SwarmNodes::status(std::size_t number) {
  const auto answer = ask_node(nodes_[number].node->dir(), StatusRequest{}, kAskPatience);
  if (!answer) return std::nullopt;
  auto json = nlohmann::json::parse(*answer, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

std::optional<NodeReading> SwarmNodes::look(std::size_t number) {
  const auto seen = status(number);
  if (!seen) return std::nullopt;
  if (number == 0) first_status_ = *seen;
  const double status_at_s = status_number(*seen, "node", "uptime_s");
  return NodeReading{.step = status_number(*seen, "progress", "step"),
                     .step_at_s = status_at_s - status_number(*seen, "progress", "last_step_s"),
                     .status_at_s = status_at_s,
                     .at = clock_.now(),
                     .cpu_s = cpu_seconds_of(nodes_[number].node->pid()),
                     .bytes_sent = status_number(*seen, "traffic", "bytes_sent"),
                     .exchanges = status_number(*seen, "traffic", "exchanges"),
                     .rss_bytes = status_number(*seen, "host", "rss_bytes"),
                     .batch = status_number(*seen, "train", "batch")};
}

Result<NodeReading> SwarmNodes::look_until(std::size_t number, const Waiting& waiting,
                                           const std::function<bool(const NodeReading&)>& done) {
  while (true) {
    if (const auto seen = look(number); seen && done(*seen)) return *seen;
    if (clock_.now() > waiting.limit)
      return fail(Errc::timed_out, Doing::training,
                  fmt::format("node-{} {}: see its log in {}", number + 1, waiting.complaint,
                              options_.dir.string()));
    TRY_VOID(turn(waiting.between));
  }
}

Result<std::vector<NodeReading>> SwarmNodes::read(std::size_t count) {
  std::vector<NodeReading> readings;
  for (std::size_t number = 0; number < count; ++number) {
    TRY(readings.emplace_back(),
        look_until(number, {clock_.now() + kStepLimit, kCoarse, "trains no step"},
                   [](const NodeReading& seen) { return seen.step >= 1; }));
  }
  return readings;
}

Result<void> SwarmNodes::wait_steps(const std::vector<NodeReading>& since, std::uint64_t steps) {
  for (std::size_t number = 0; number < since.size(); ++number) {
    const double enough = since[number].step + static_cast<double>(steps);
    const auto limit = clock_.now() + kStepLimit * static_cast<std::int64_t>(steps);
    const auto seen = look_until(number, {limit, kCoarse, "does not get on"},
                                 [&](const NodeReading& at) { return at.step >= enough; });
    if (!seen) return fail(seen.error());
  }
  return {};
}

Result<double> SwarmNodes::longest_pause_s(std::size_t number, Duration time) {
  const auto thread = train_thread_of(nodes_[number].node->pid());
  if (!thread)
    return fail(Errc::not_found, Doing::training,
                fmt::format("node-{} has no thread that trains", number + 1));
  const auto until = clock_.now() + time;
  TimePoint last = clock_.now();
  std::uint64_t ran_before = 0;
  double longest = 0;
  while (clock_.now() < until) {
    // How long it has run so far, in nanoseconds.
    std::ifstream file(*thread / "schedstat");
    std::uint64_t ran = 0;
    file >> ran;
    const TimePoint now = clock_.now();
    longest = std::max(longest, seconds(now - last));
    if (ran != ran_before) last = now;
    ran_before = ran;
    TRY_VOID(turn(kFine));
  }
  return longest;
}

void SwarmNodes::slow(std::size_t number) {
  slowness_ = std::jthread([pid = nodes_[number].node->pid()](const std::stop_token& token) {
    for (int turn = 0; !token.stop_requested(); turn = (turn + 1) % 4) {
      if (turn <= 1) ::kill(pid, turn == 0 ? SIGCONT : SIGSTOP);
      (void)::poll(nullptr, 0, kSlowTickMs);
    }
    ::kill(pid, SIGCONT);
  });
}

void SwarmNodes::stop(std::size_t number) {
  nodes_[number].stopped = true;
  nodes_[number].node->signal(SIGSTOP);
}

void SwarmNodes::kill(std::size_t number) {
  nodes_[number].ends = true;
  nodes_[number].node->signal(SIGKILL);
}

void SwarmNodes::resume() {
  slowness_ = {};
  for (auto& process : nodes_)
    if (std::exchange(process.stopped, false)) process.node->signal(SIGCONT);
}

void SwarmNodes::pin(std::size_t number) const {
  const auto places = cores();
  if (places.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(places[number % places.size()], &set);
  std::error_code error;
  for (const auto& task :
       fs::directory_iterator(fmt::format("/proc/{}/task", nodes_[number].node->pid()), error))
    (void)::sched_setaffinity(std::atoi(task.path().filename().c_str()), sizeof(set), &set);
}

Result<double> SwarmNodes::finish() {
  for (auto& process : nodes_) process.ends = true;
  const TimePoint begin = clock_.now();
  // The answer comes with the end; nobody waits for it here.
  (void)ask_node(nodes_.front().node->dir(), FinishRequest{}, kAskPatience);
  double took = 0;
  const auto certified = [](const Process& process) {
    std::error_code error;
    return fs::exists(process.node->dir() / "final" / "certificate.json", error);
  };
  const auto running = [](const Process& process) { return process.node->running(); };
  while (std::ranges::any_of(nodes_, running)) {
    if (took <= 0 && std::ranges::all_of(nodes_, certified)) took = seconds(clock_.now() - begin);
    if (clock_.now() > begin + kFinishLimit)
      return fail(Errc::timed_out, Doing::agreeing,
                  fmt::format("no final consensus: see the logs in {}", options_.dir.string()));
    TRY_VOID(turn(kFine));
  }
  if (took <= 0) took = seconds(clock_.now() - begin);
  std::vector<DemoEnd> ends;
  for (const auto& process : nodes_) ends.push_back(end_of(*process.node, {}, process.last_words));
  const auto verdict = demo_verdict(ends);
  if (verdict.exit_code != 0)
    return fail(Errc::replicas_differ, Doing::agreeing,
                fmt::format("the replicas differ or nodes failed: {}",
                            verdict.line.empty() ? demo_summary(ends) : verdict.line));
  return took;
}

}  // namespace starling::node::bench
