// starling_crowd: what membership costs a node in swarms of growing size; one line for each size,
// or one JSON object with --json.
#include "node/base/clock.h"
#include "tests/sim/arguments.h"
#include "tests/sim/crowd.h"
#include "tests/sim/graph.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string_view>
#include <vector>

namespace {

using namespace starling;
using namespace starling::sim;

struct Arguments {
  std::vector<std::size_t> sizes;
  CrowdOptions crowd;
  std::size_t views = 4'000'000;  // members known by whole nodes, all views together
  bool json = false;
  bool broadcast = false;  // one line each, held against the bars of F-3
};

constexpr std::string_view kUsage =
    "usage: starling_crowd [--nodes N[,N...]] [--views N] [--seed N] [--seconds S] [--joins N] "
    "[--mute N] "
    "[--idle] [--broadcast] [--json]\n";

bool parse_sizes(std::string_view text, std::vector<std::size_t>& sizes) {
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto size = parse_number(text.substr(0, comma));
    if (!size || *size < 3 || *size > 16'000) return false;
    sizes.push_back(*size);
    text = comma == std::string_view::npos ? std::string_view{} : text.substr(comma + 1);
  }
  return !sizes.empty();
}

bool take(Arguments& arguments, std::string_view flag, std::string_view text) {
  if (flag == "--nodes") return parse_sizes(text, arguments.sizes);
  const auto value = parse_number(text);
  if (!value) return false;
  if (flag == "--seed") {
    arguments.crowd.seed = *value;
  } else if (flag == "--views") {
    arguments.views = *value;
  } else if (flag == "--joins") {
    arguments.crowd.joins = *value;
  } else if (flag == "--mute" && *value > 1) {
    arguments.crowd.mute_every = *value;
  } else if (flag == "--seconds" && *value > 0) {
    arguments.crowd.measure = std::chrono::seconds(*value);
  } else {
    return false;
  }
  return true;
}

std::optional<Arguments> parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--idle") {
      arguments.crowd.samples_per_second = 0;
    } else if (flag == "--json") {
      arguments.json = true;
    } else if (flag == "--broadcast") {
      arguments.broadcast = true;
    } else {
      ++i;
      if (i >= argc || !take(arguments, flag, argv[i])) return std::nullopt;
    }
  }
  if (arguments.sizes.empty()) arguments.sizes = {32, 100, 320, 1'000};
  return arguments;
}

void print_json(const CrowdFigures& figures, bool idle, const Graph& graph, double wall) {
  std::printf(
      "{\"nodes\": %zu, \"idle\": %s, \"whole\": %zu, \"sessions\": %.2f, \"messages\": %.2f, "
      "\"relay_messages\": "
      "%.2f, \"bytes\": %.0f, \"kinds\": {",
      figures.nodes, idle ? "true" : "false", figures.whole, figures.sessions,
      figures.whole_rate.messages, figures.relay_messages, figures.whole_rate.bytes);
  const char* separator = "";
  for (const auto& [kind, rate] : figures.kinds) {
    std::printf("%s\"%s\": {\"messages\": %.3f, \"bytes\": %.1f}", separator,
                std::string(kind).c_str(), rate.messages, rate.bytes);
    separator = ", ";
  }
  std::printf(
      "}, \"reports_per_edge\": %.2f, \"report_redundancy\": %.3f, \"known_p50\": %.3f, "
      "\"known_p95\": %.3f, \"news_redundancy\": %.3f, \"last_hop\": %u, \"missed\": %zu, "
      "\"accused\": %zu, \"diameter\": %zu, \"eigenvalue\": %.4f, \"events\": %llu, "
      "\"virtual_seconds\": %.0f, \"wall\": %.1f}\n",
      figures.reports_per_edge, figures.report_redundancy, figures.known_p50, figures.known_p95,
      figures.news_redundancy, figures.last_hop, figures.missed, figures.accused, diameter(graph),
      second_eigenvalue(graph), static_cast<unsigned long long>(figures.events),
      figures.virtual_seconds, wall);
}

void print_line(const CrowdFigures& figures, const Graph& graph, double wall) {
  std::printf(
      "crowd: %zu nodes (%zu whole)  %.1f messages a node and second (relays %.1f)  %.0f bytes  "
      "%.1f reports an edge and second, each %.2f times too often  news known to all after "
      "p50 %.3f s p95 %.3f s, %u hops, %.2f copies too many, %zu missed  %zu accused  diameter %zu "
      " "
      "second eigenvalue %.3f  %.1f s wall\n",
      figures.nodes, figures.whole, figures.whole_rate.messages, figures.relay_messages,
      figures.whole_rate.bytes, figures.reports_per_edge, figures.report_redundancy,
      figures.known_p50, figures.known_p95, figures.last_hop, figures.news_redundancy,
      figures.missed, figures.accused, diameter(graph), second_eigenvalue(graph), wall);
  for (const auto& [kind, rate] : figures.kinds)
    std::printf("  %-16s %8.3f messages  %10.1f bytes a node and second\n",
                std::string(kind).c_str(), rate.messages, rate.bytes);
}

// A broadcast: nobody is missed, and it neither wanders nor comes again and again.
bool holds_the_bars(const CrowdFigures& figures) {
  constexpr std::uint32_t kHops = 15;
  constexpr double kRedundancy = 0.2;
  return figures.last_hop < kHops && figures.news_redundancy < kRedundancy &&
         figures.report_redundancy < kRedundancy;
}

void print_broadcast(const CrowdFigures& figures) {
  std::printf(
      "crowd: %zu nodes (%zu whole)  news: %zu missed, last hop %u, redundancy %.3f  reports: "
      "redundancy %.3f  %.0f bytes a node and second\n",
      figures.nodes, figures.whole, figures.missed, figures.last_hop, figures.news_redundancy,
      figures.report_redundancy, figures.whole_rate.bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = parse(argc, argv);
  if (!arguments) {
    std::cerr << kUsage;
    return 2;
  }
  const SteadyClock clock;
  bool held = true;
  for (const std::size_t nodes : arguments->sizes) {
    const TimePoint began = clock.now();
    CrowdOptions options = arguments->crowd;
    options.nodes = nodes;
    options.whole = std::clamp<std::size_t>(arguments->views / nodes, 1, nodes);
    const CrowdFigures figures = Crowd(options).run();
    held = held && figures.missed == 0 && figures.accused == 0 &&
           (!arguments->broadcast || holds_the_bars(figures));
    if (arguments->broadcast) {
      print_broadcast(figures);
      std::fflush(stdout);
      continue;
    }
    const Graph graph = neighbour_graph(nodes, options.seed);
    const double wall = seconds(clock.now() - began);
    const bool idle = options.samples_per_second == 0;
    arguments->json ? print_json(figures, idle, graph, wall) : print_line(figures, graph, wall);
    std::fflush(stdout);
  }
  return held ? 0 : 1;
}
