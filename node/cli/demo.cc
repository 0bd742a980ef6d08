// `starling demo`: several real nodes on loopback, to the final consensus.
#include "node/base/clock.h"
#include "node/cli/demo_nodes.h"
#include "node/cli/demo_report.h"
#include "node/cli/demo_setup.h"
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/config/values.h"
#include "node/control/caller.h"
#include "node/printable.h"
#include "node/state_dir.h"
#include "node/stop_requests.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <ostream>

namespace starling::node {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kDemoNodes = 4;
constexpr std::uint64_t kMaxDemoNodes = 32;
constexpr std::string_view kDefaultUntil = "samples=240000";
constexpr Duration kDemoAskEvery = std::chrono::seconds(2);
constexpr Duration kTellEvery = std::chrono::seconds(10);
constexpr Duration kDemoPatience = std::chrono::seconds(2);
constexpr Duration kLeaveLimit = std::chrono::seconds(20);
constexpr int kDemoPollMs = 200;

// One demo from start to end. Lives for one call of the verb; one thread.
class Demo {
 public:
  Demo(const Arguments& arguments, const Terminal& terminal)
      : arguments_(arguments), terminal_(terminal) {}

  Result<int> run(std::uint64_t count);

 private:
  Result<void> start(std::uint64_t number);
  Result<std::string> wait_for_address();
  // One round: output, signals, ends, and what is due. False when every node has ended.
  bool turn();
  void on_stop_signals();
  void ask_all();
  void tell(std::string_view name, std::string_view line);
  [[nodiscard]] std::vector<DemoEnd> ends() const;

  const Arguments& arguments_;
  const Terminal& terminal_;
  SteadyClock clock_;
  StopSignals signals_;
  StopRequests requests_;
  fs::path dir_;
  std::vector<std::string> words_;  // of every node
  std::vector<std::unique_ptr<DemoNode>> nodes_;
  std::vector<std::string> statuses_;    // the last answer of each node
  std::vector<std::string> last_words_;  // the last line that each node printed
  TimePoint ask_at_;
  TimePoint tell_at_;
  TimePoint kill_at_ = kNever;
};

Result<void> Demo::start(std::uint64_t number) {
  const auto name = fmt::format("node-{}", number);
  std::vector<std::string> words{"run",         "--dir",       (dir_ / name).string(),
                                 "--listen",    "127.0.0.1:0", "--http",
                                 "127.0.0.1:0", "--ui",        "plain"};
  if (number > 1) {
    TRY(const auto address, wait_for_address());
    words.insert(words.end(), {"--peer", address});
    add_secret_of(nodes_.front()->dir(), words);
  }
  words.insert(words.end(), words_.begin(), words_.end());
  TRY(auto node, DemoNode::start(name, dir_ / name, words));
  nodes_.push_back(std::move(node));
  statuses_.emplace_back();
  last_words_.emplace_back();
  return {};
}

Result<std::string> Demo::wait_for_address() {
  const auto file = nodes_.front()->dir() / "address";
  const auto limit = clock_.now() + kStartLimit;
  while (clock_.now() < limit && !signals_.exit_status()) {
    if (const auto text = read_whole(file, 512); text && text->ends_with('\n'))
      return text->substr(0, text->size() - 1);
    if (!turn()) break;
  }
  return fail(signals_.exit_status() ? Errc::cancelled : Errc::timed_out, Doing::starting,
              "the first node did not start");
}

void Demo::tell(std::string_view name, std::string_view line) {
  terminal_.err << fmt::format("{:<7} | {}\n", name, printable(line)) << std::flush;
}

bool Demo::turn() {
  std::vector<pollfd> waiting{{signals_.descriptor(), POLLIN, 0}};
  for (const auto& node : nodes_)
    if (node->output() >= 0) waiting.push_back({node->output(), POLLIN, 0});
  (void)::poll(waiting.data(), waiting.size(), kDemoPollMs);
  on_stop_signals();
  bool running = false;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    auto& node = *nodes_[i];
    const bool alive = node.running();  // before the last read, so that no last line is missed
    node.read_lines([&](const std::string& line) {
      tell(node.name(), line);
      if (!line.empty()) last_words_[i] = line;
    });
    running = running || alive;
  }
  const auto now = clock_.now();
  if (running && now >= ask_at_) {
    ask_all();
    ask_at_ = now + kDemoAskEvery;
    if (now >= tell_at_) {
      if (const auto line = demo_progress_line(statuses_)) tell("demo", *line);
      tell_at_ = now + kTellEvery;
    }
  }
  return running;
}

void Demo::on_stop_signals() {
  while (signals_.take()) {
    const StopWish wish = requests_.on_signal(clock_.now());
    if (wish == StopWish::same_again) continue;
    kill_at_ = std::min(kill_at_, clock_.now() + kLeaveLimit);
    if (wish == StopWish::leave) tell("demo", "stopping the nodes; once more ends them at once");
    for (const auto& node : nodes_) node->signal(wish == StopWish::end ? SIGKILL : SIGTERM);
  }
  if (clock_.now() < kill_at_) return;
  kill_at_ = kNever;
  for (const auto& node : nodes_) node->signal(SIGKILL);
}

void Demo::ask_all() {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i]->exit_status()) continue;
    if (auto answer = ask_node(nodes_[i]->dir(), StatusRequest{}, kDemoPatience))
      statuses_[i] = std::move(*answer);
  }
}

std::vector<DemoEnd> Demo::ends() const {
  std::vector<DemoEnd> all;
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    all.push_back(end_of(*nodes_[i], statuses_[i], last_words_[i]));
  return all;
}

Result<int> Demo::run(std::uint64_t count) {
  TRY_VOID(refuse_decided(arguments_.config, "demo"));
  TRY(dir_, choose_swarm_folder(arguments_.config, "demo"));
  words_ = swarm_words(arguments_.config, count, kDefaultUntil, terminal_);
  terminal_.err << fmt::format("{} nodes, folder {}\n", count, dir_.string());
  tell_at_ = clock_.now() + kTellEvery;
  ask_at_ = clock_.now() + kDemoAskEvery;
  for (std::uint64_t k = 1; k <= count && !signals_.exit_status(); ++k) {
    const auto started = start(k);
    if (started || signals_.exit_status()) continue;  // a node that was stopped did not fail
    // A node that ended says best itself why the demo cannot go on.
    if (const auto status = nodes_.empty() ? std::nullopt : nodes_.front()->exit_status()) {
      terminal_.err << fmt::format("starling demo: {} ended with exit {}: {}\n",
                                   nodes_.front()->name(), *status, printable(last_words_.front()));
      return *status != 0 ? *status : number_of(ExitCode::internal);
    }
    return fail(started.error());
  }
  while (turn()) {
  }
  const auto all = ends();
  terminal_.err << '\n' << demo_summary(all) << std::flush;
  if (const auto status = signals_.exit_status()) return *status;
  const auto verdict = demo_verdict(all);
  if (!verdict.line.empty()) terminal_.out << verdict.line << '\n' << std::flush;
  if (verdict.line.empty())
    terminal_.err << "starling demo: no node reached the final consensus\n";
  else
    terminal_.err << fmt::format("model: {}\n",
                                 (dir_ / "node-1" / "final" / "model.safetensors").string());
  return verdict.exit_code;
}

}  // namespace

namespace verbs {

int demo(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  std::uint64_t count = kDemoNodes;
  if (const auto given = arguments.given.find("--nodes"); given != arguments.given.end()) {
    const auto parsed = parse_count(given->second, 1, kMaxDemoNodes);
    if (!parsed)
      return report(
          "demo",
          {Errc::bad_argument, Doing::parsing_arguments,
           fmt::format("--nodes {} needs {}", escape_value(given->second), parsed.error())},
          terminal);
    count = *parsed;
  }
  const auto ended = Demo(arguments, terminal).run(count);
  return ended ? *ended : report("demo", ended.error(), terminal);
}

}  // namespace verbs

}  // namespace starling::node
