#include "node/cli/chaos_plan.h"

#include "node/base/check.h"
#include "node/base/random.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>

namespace starling::node {

namespace {

constexpr std::array<std::string_view, 5> kFaultNames{"kill", "stop", "partition", "join", "leave"};
constexpr std::size_t kMaxFaults = 100;
constexpr std::size_t kFewest = 2;  // nodes that stay, and that hear each other during a fault

std::string seconds_text(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f} s", *value) : std::string("not seen");
}

nlohmann::json or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

std::string victims_text(const std::vector<std::size_t>& victims) {
  std::string text;
  for (const auto number : victims)
    text += fmt::format("{}{}", text.empty() ? "node-" : ",", number);
  return text;
}

std::size_t count_of(ChaosFault fault, std::span<const ChaosFault> faults) {
  return static_cast<std::size_t>(std::ranges::count(faults, fault));
}

// Whether there is an order in which all of them may happen to so many nodes. The best is all
// joins first and all leaves last; before the joins nothing else may happen to the fewest.
bool can_all_happen(std::span<const ChaosFault> faults, std::size_t here) {
  const auto joins = count_of(ChaosFault::join, faults);
  const auto leaves = count_of(ChaosFault::leave, faults);
  return faults.empty() || ((here > kFewest || joins > 0) && here + joins >= kFewest + leaves);
}

// The first one that may happen to so many nodes and after which all others still can; there is
// one wherever all can happen.
std::vector<ChaosFault>::iterator next_of(std::vector<ChaosFault>& faults, std::size_t here) {
  for (auto at = faults.begin(); at != faults.end(); ++at) {
    if (here <= kFewest && *at != ChaosFault::join) continue;
    const std::size_t then = *at == ChaosFault::join    ? here + 1
                             : *at == ChaosFault::leave ? here - 1
                                                        : here;
    std::vector<ChaosFault> rest(faults.begin(), at);
    rest.insert(rest.end(), at + 1, faults.end());
    if (can_all_happen(rest, then)) return at;
  }
  return faults.end();
}

// Empty where the faults can be carried out; else what they need.
std::string refusal_of(std::span<const ChaosFault> faults, std::size_t nodes) {
  const auto joins = count_of(ChaosFault::join, faults);
  const auto leaves = count_of(ChaosFault::leave, faults);
  if (nodes + joins > kMaxChaosNodes) {
    const auto most =
        nodes < kMaxChaosNodes ? fmt::format("at most {}", kMaxChaosNodes - nodes) : "no";
    return fmt::format(
        "{} nodes with --nodes {}, and {} are the most on one machine: name {} join{}",
        nodes + joins, nodes, kMaxChaosNodes, most,
        joins + kMinChaosNodes <= kMaxChaosNodes
            ? fmt::format(", or begin with --nodes {} or fewer", kMaxChaosNodes - joins)
            : "");
  }
  if (can_all_happen(faults, nodes)) return {};
  const auto enough = kFewest + leaves - joins;  // more than `nodes`, or all could happen
  return fmt::format(
      "two nodes that stay: of --nodes {} and {} that join at most {} may leave; name fewer{}",
      nodes, joins, nodes + joins - kFewest,
      enough + joins <= kMaxChaosNodes ? fmt::format(", or begin with --nodes {} or more", enough)
                                       : "");
}

// The node that it happens to, or one half. `here` has the numbers of all that are there.
std::vector<std::size_t> draw_victims(ChaosFault fault, std::vector<std::size_t>& here, Rng& rng) {
  if (fault == ChaosFault::partition) {
    std::ranges::shuffle(here, rng);
    const auto half = here.begin() + static_cast<std::ptrdiff_t>(here.size() / 2);
    std::vector<std::size_t> victims(here.begin(), half);
    std::ranges::sort(victims);
    return victims;
  }
  const auto at = here.begin() + static_cast<std::ptrdiff_t>(rng.below(here.size()));
  std::vector<std::size_t> victims{*at};
  if (fault == ChaosFault::leave) here.erase(at);
  return victims;
}

}  // namespace

std::string_view name_of(ChaosFault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }

Parsed<std::vector<ChaosFault>> parse_faults(std::string_view text) {
  const auto named = static_cast<std::size_t>(std::ranges::count(text, ',')) + 1;
  if (named > kMaxFaults)
    return std::unexpected(fmt::format("at most {} faults, not {}", kMaxFaults, named));
  std::vector<ChaosFault> faults;
  while (true) {
    const auto comma = text.find(',');
    const auto found = std::ranges::find(kFaultNames, text.substr(0, comma));
    if (found == kFaultNames.end())
      return std::unexpected("kill, stop, partition, join and leave, separated by commas");
    faults.push_back(static_cast<ChaosFault>(found - kFaultNames.begin()));
    if (comma == std::string_view::npos) return faults;
    text.remove_prefix(comma + 1);
  }
}

Parsed<std::vector<PlannedFault>> plan_chaos(std::vector<ChaosFault> faults, std::size_t nodes,
                                             std::uint64_t seed) {
  if (auto refusal = refusal_of(faults, nodes); !refusal.empty())
    return std::unexpected(std::move(refusal));
  Rng rng(seed);
  std::ranges::shuffle(faults, rng);
  std::vector<std::size_t> here(nodes);
  std::iota(here.begin(), here.end(), std::size_t{1});
  std::size_t next = nodes + 1;
  std::vector<PlannedFault> plan;
  while (!faults.empty()) {
    const auto at = next_of(faults, here.size());
    STARLING_CHECK(at != faults.end());
    const ChaosFault fault = *at;
    faults.erase(at);
    if (fault == ChaosFault::join) {
      plan.push_back({fault, {next}});
      here.push_back(next++);
    } else {
      plan.push_back({fault, draw_victims(fault, here, rng)});
    }
  }
  return plan;
}

Noticed noticed(const PlannedFault& planned, std::span<const std::size_t> watchers,
                std::span<const Sighting> sightings) {
  const bool joins = planned.fault == ChaosFault::join;
  const std::string_view as = joins                                ? "alive"
                              : planned.fault == ChaosFault::leave ? "left"
                                                                   : "dead";
  const auto is_victim = [&](std::size_t number) {
    return std::ranges::find(planned.victims, number) != planned.victims.end();
  };
  const auto earlier = [](std::optional<double>& time, double at_s) {
    time = std::min(time.value_or(at_s), at_s);
  };
  Noticed when;
  std::optional<double> last;
  bool by_all = true;
  for (const auto watcher : watchers) {
    std::optional<double> known_s;
    for (const auto& one : sightings) {
      if (one.watcher != watcher || is_victim(one.subject) == is_victim(watcher)) continue;
      if ((one.state == "alive") == joins) earlier(when.first_s, one.at_s);
      if (one.state == as) earlier(known_s, one.at_s);
    }
    by_all = by_all && known_s.has_value();
    if (known_s) last = std::max(last.value_or(*known_s), *known_s);
  }
  if (by_all) when.all_s = last;
  return when;
}

std::string chaos_line(const FaultOutcome& outcome) {
  const auto what =
      fmt::format("{} {}", name_of(outcome.planned.fault), victims_text(outcome.planned.victims));
  return fmt::format(
      "{:<22} others trained at {:.0f} %, longest pause {:.1f} s; noticed after {}, by all after "
      "{}; whole again after {}",
      what, outcome.others_percent, outcome.longest_pause_s, seconds_text(outcome.noticed.first_s),
      seconds_text(outcome.noticed.all_s), seconds_text(outcome.whole_s));
}

nlohmann::json to_json(const FaultOutcome& outcome) {
  return {{"fault", std::string(name_of(outcome.planned.fault))},
          {"nodes", outcome.planned.victims},
          {"others_percent", outcome.others_percent},
          {"longest_pause_s", outcome.longest_pause_s},
          {"noticed_first_s", or_null(outcome.noticed.first_s)},
          {"noticed_all_s", or_null(outcome.noticed.all_s)},
          {"whole_s", or_null(outcome.whole_s)}};
}

}  // namespace starling::node
