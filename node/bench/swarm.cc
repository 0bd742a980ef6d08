// `starling bench swarm`: whole nodes on this machine, as `starling run` makes them; what they
// train, send and use, with and without gossip, and while one of them is slow, stopped or dead.
#include "node/bench/bench.h"
#include "node/bench/swarm_nodes.h"
#include "node/cli/demo_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <system_error>

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

struct Windows {
  Repeats images_per_s, step_ms, cpu_ms, bytes, exchanges, rss_mib;

  void add(const Window& window) {
    images_per_s.add(window.images_per_s);
    step_ms.add(window.slowest_step_ms);
    cpu_ms.add(window.cpu_ms);
    bytes.add(window.bytes);
    exchanges.add(window.exchanges);
    rss_mib.add(window.rss_mib);
  }
  [[nodiscard]] Json json() const {
    return {{"images_per_s", images_per_s.json()},
            {"step_ms", step_ms.json()},
            {"cpu_ms", cpu_ms.json()},
            {"bytes_per_step", bytes.json()},
            {"exchanges_per_step", exchanges.json()},
            {"rss_mib", rss_mib.json()}};
  }
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

Result<Json> measure_in(const fs::path& dir, const SwarmBench& options, const Arguments& arguments,
                        const Terminal& terminal) {
  SwarmNodes nodes({.dir = dir,
                    .words = words_of(arguments, options.nodes, terminal),
                    .count = options.nodes,
                    .gossip = options.gossip,
                    .pinned = options.pinned});
  terminal.err << fmt::format("starting {} nodes in {}\n", options.nodes, dir.string())
               << std::flush;
  TRY_VOID(nodes.start(options.warm_up));
  const bool slow = options.fault == "slow";
  if (slow) nodes.slow(options.nodes - 1);
  Windows windows;
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
  Json figures = windows.json();
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

Result<Json> measure_swarm(const Arguments& arguments, const Terminal& terminal) {
  TRY(const auto options, options_of(arguments));
  TRY(const auto dir, choose_swarm_folder(arguments.config, "bench"));
  auto figures = measure_in(dir, options, arguments, terminal);
  if (!figures) return fail(figures.error());  // the folder with the logs stays
  if (!arguments.config.forced("node.dir")) {
    std::error_code error;
    fs::remove_all(dir, error);
  }
  Json report{{"params",
               {{"nodes", options.nodes},
                {"steps", options.steps},
                {"repeats", options.repeats},
                {"warm_up", options.warm_up},
                {"gossip", options.gossip ? "on" : "off"},
                {"fault", options.fault},
                {"pinned", options.pinned}}}};
  report.update(*figures);
  return report;
}

constexpr std::array<std::string_view, 8> kSwarmFlags{
    "--nodes", "--steps", "--repeats", "--warm-up", "--gossip", "--fault", "--pin", "--finish"};
constexpr std::array<std::string_view, 12> kSwarmKeys{
    "node.dir",        "train.model",  "train.img",    "train.batch",
    "train.precision", "train.device", "node.threads", "data.train",
    "data.threads",    "gossip.codec", "gossip.tau",   "swarm.degree"};

}  // namespace

constinit const Bench kSwarmBench{
    "swarm", "Whole nodes on this machine: images a second, CPU and bytes of a step.", kSwarmFlags,
    kSwarmKeys, &measure_swarm};

}  // namespace starling::node::bench
