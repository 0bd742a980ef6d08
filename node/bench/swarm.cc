// `starling bench swarm`: whole nodes on this machine, as `starling run` makes them; what they
// train, send and use, with and without gossip, and while one of them is slow, stopped or dead.
#include "node/bench/bench.h"
#include "node/bench/swarm_nodes.h"
#include "node/cli/demo_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <system_error>
#include <utility>

namespace starling::node::bench {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxNodes = 32;
// So long that no window meets its end.
constexpr std::string_view kEndless = "samples=1000000000";
// How long the others are looked at after one was stopped or killed.
constexpr Duration kFaultTime = std::chrono::seconds(10);

constexpr std::array<std::string_view, 4> kFaults{"none", "slow", "stop", "kill"};

struct SwarmBench {
  std::size_t nodes = 0;
  std::uint64_t steps = 0;
  std::uint64_t repeats = 0;
  std::uint64_t warm_up = 0;  // steps
  bool gossip = true;
  std::string fault;
  bool pinned = false;
  bool finish = false;
};

Result<SwarmBench> options_of(const Arguments& arguments) {
  SwarmBench options;
  TRY(options.nodes, count_of(arguments, {"--nodes", 8, 1, kMaxNodes}));
  TRY(options.steps, count_of(arguments, {"--steps", 50, 1, 1'000'000}));
  TRY(options.repeats, count_of(arguments, {"--repeats", 3, 1, 1'000}));
  TRY(options.warm_up, count_of(arguments, {"--warm-up", 5, 1, 1'000'000}));
  constexpr std::array<std::string_view, 2> kSwitch{"on", "off"};
  TRY(const auto gossip, word_of(arguments, "--gossip", kSwitch));
  TRY(options.fault, word_of(arguments, "--fault", kFaults));
  options.gossip = gossip == "on";
  options.pinned = arguments.has("--pin");
  options.finish = arguments.has("--finish");
  if (options.fault != "none" && options.nodes < 2)
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                "--fault is about the others: it needs --nodes 2 or more");
  if (options.finish && (!options.gossip || options.fault != "none"))
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                "--finish needs --gossip on and no --fault: all nodes take part");
  return options;
}

std::vector<std::string> words_of(const Arguments& arguments, std::size_t nodes,
                                  const Terminal& terminal) {
  // Made up, so that every machine has it.
  const bool made_up = !arguments.config.forced("data.train");
  Config config = arguments.config;
  if (made_up) config.data.train = "synthetic";
  auto words = swarm_words(config, nodes, kEndless, terminal);
  const auto set = [&](std::string_view key, std::string_view value) {
    words.push_back("--set");
    words.push_back(fmt::format("{}={}", key, value));
  };
  if (made_up) set("data.train", config.data.train);
  // With an endless budget the rate would be warming up all the time.
  set("train.warmup", "0");
  // Nothing but training and gossip.
  set("eval.every", "0s");
  set("checkpoint.every", "0s");
  set("http.listen", "off");
  return words;
}

// What all windows of the run come to.
class Windows {
 public:
  explicit Windows(std::size_t nodes) : nodes_(nodes) {}

  void add(const Window& window) {
    images_per_s_.add(window.images_per_s);
    step_ms_.add(window.slowest_step_ms(nodes_));
    others_step_ms_.add(window.slowest_step_ms(nodes_ - 1));
    cpu_ms_.add(window.cpu_ms);
    bytes_.add(window.bytes);
    exchanges_.add(window.exchanges);
    rss_mib_.add(window.rss_mib);
  }
  [[nodiscard]] Json json() const {
    Json figures{{"images_per_s", images_per_s_.json()}, {"step_ms", step_ms_.json()}};
    // Of all but the last node, to which faults happen: the same ones with a fault and without.
    if (nodes_ > 1) figures["others_step_ms"] = others_step_ms_.json();
    figures["cpu_ms"] = cpu_ms_.json();
    figures["bytes_per_step"] = bytes_.json();
    figures["exchanges_per_step"] = exchanges_.json();
    figures["rss_mib"] = rss_mib_.json();
    return figures;
  }

 private:
  std::size_t nodes_;
  Repeats images_per_s_, step_ms_, others_step_ms_, cpu_ms_, bytes_, exchanges_, rss_mib_;
};

// What happens to the last node, and the longest pause of the first one meanwhile.
Result<Json> carry_out_fault(const SwarmBench& options, SwarmNodes& nodes) {
  const std::size_t last = options.nodes - 1;
  if (options.fault == "stop") nodes.stop(last);
  if (options.fault == "kill") nodes.kill(last);
  TRY(const double pause_s, nodes.longest_pause_s(0, kFaultTime));
  nodes.resume();
  return Json(rounded(1e3 * pause_s));
}

Result<Json> windows_of(const SwarmBench& options, SwarmNodes& nodes, const Terminal& terminal) {
  const bool slow = options.fault == "slow";
  if (slow) nodes.slow(options.nodes - 1);
  Windows windows(options.nodes);
  for (std::uint64_t repeat = 0; repeat < options.repeats; ++repeat) {
    // A node that is stopped or killed is one of all until then.
    const std::size_t watched = slow ? options.nodes - 1 : options.nodes;
    TRY(const auto begin, nodes.read(watched));
    TRY_VOID(nodes.wait_steps(begin, options.steps));
    TRY(const auto end, nodes.read(watched));
    const auto window = window_of(begin, end);
    windows.add(window);
    terminal.err << fmt::format("{} of {}: {:.1f} images/s\n", repeat + 1, options.repeats,
                                window.images_per_s)
                 << std::flush;
  }
  return windows.json();
}

Json params_of(const SwarmBench& options) {
  return {{"nodes", options.nodes},
          {"steps", options.steps},
          {"repeats", options.repeats},
          {"warm_up", options.warm_up},
          {"gossip", options.gossip ? "on" : "off"},
          {"fault", options.fault},
          {"pinned", options.pinned}};
}

Result<Json> measure_in(SwarmNodes& nodes, const SwarmBench& options,
                        const std::vector<std::string>& words, const Terminal& terminal) {
  TRY_VOID(nodes.start(options.warm_up));
  TRY(const Json windows, windows_of(options, nodes, terminal));
  Json figures{{"params", params_of(options)}};
  figures["params"].update(settings_of(words, nodes.first_status()));
  figures.update(windows);
  figures["listening_ms"] = rounded(1e3 * nodes.listening_s());
  figures["first_step_ms"] = rounded(1e3 * nodes.first_step_s());
  if (options.fault == "stop" || options.fault == "kill") {
    TRY(figures["longest_pause_ms"], carry_out_fault(options, nodes));
  }
  if (options.finish) {
    TRY(const double took_s, nodes.finish());
    figures["consensus_ms"] = rounded(1e3 * took_s);
  }
  return figures;
}

Result<Json> measure_swarm(const Arguments& arguments, const Terminal& terminal,
                           StopSignals& stop) {
  TRY(const auto options, options_of(arguments));
  TRY(const auto dir, choose_swarm_folder(arguments.config, "bench"));
  const auto words = words_of(arguments, options.nodes, terminal);
  std::optional<SwarmNodes> nodes(std::in_place,
                                  SwarmNodes::Options{.dir = dir,
                                                      .words = words,
                                                      .count = options.nodes,
                                                      .gossip = options.gossip,
                                                      .pinned = options.pinned},
                                  stop);
  terminal.err << fmt::format("starting {} nodes in {}\n", options.nodes, dir.string())
               << std::flush;
  auto figures = measure_in(*nodes, options, words, terminal);
  nodes.reset();  // a node that still runs writes into the folder
  // After a failure the logs stay.
  const bool keep = !figures && figures.error().code != Errc::cancelled;
  if (!keep && !arguments.config.forced("node.dir")) {
    std::error_code error;
    fs::remove_all(dir, error);
  }
  return figures;
}

constexpr std::array<std::string_view, 8> kSwarmFlags{
    "--nodes", "--steps", "--repeats", "--warm-up", "--gossip", "--fault", "--pin", "--finish"};
constexpr std::array<std::string_view, 12> kSwarmKeys{
    "node.dir",        "train.model",  "train.img",    "train.batch",
    "train.precision", "train.device", "node.threads", "data.train",
    "data.threads",    "gossip.codec", "gossip.tau",   "swarm.degree"};

}  // namespace

constinit const Bench kSwarmBench{
    "swarm",     "Whole nodes on this machine: images a second, CPU and bytes of a step.",
    kSwarmFlags, kSwarmKeys,
    nullptr,     &measure_swarm};

}  // namespace starling::node::bench
