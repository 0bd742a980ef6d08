#include "node/cli/chaos_plan.h"

#include "node/base/random.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace starling::node {

namespace {

constexpr std::array<std::string_view, 5> kFaultNames{"kill", "stop", "partition", "join", "leave"};
constexpr std::size_t kMaxFaults = 100;
constexpr std::size_t kFewest = 2;

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

}  // namespace

std::string_view name_of(ChaosFault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }

Parsed<std::vector<ChaosFault>> parse_faults(std::string_view text) {
  std::vector<ChaosFault> faults;
  while (true) {
    const auto comma = text.find(',');
    const auto found = std::ranges::find(kFaultNames, text.substr(0, comma));
    if (found == kFaultNames.end() || faults.size() == kMaxFaults)
      return std::unexpected("kill, stop, partition, join and leave, separated by commas");
    faults.push_back(static_cast<ChaosFault>(found - kFaultNames.begin()));
    if (comma == std::string_view::npos) return faults;
    text.remove_prefix(comma + 1);
  }
}

std::vector<PlannedFault> plan_chaos(std::vector<ChaosFault> faults, std::size_t nodes,
                                     std::uint64_t seed) {
  Rng rng(seed);
  std::ranges::shuffle(faults, rng);
  std::vector<std::size_t> here(nodes);
  std::iota(here.begin(), here.end(), std::size_t{1});
  std::size_t next = nodes + 1;
  std::vector<PlannedFault> plan;
  for (const auto fault : faults) {
    PlannedFault planned{fault, {}};
    if (fault == ChaosFault::join) {
      planned.victims.push_back(next);
      here.push_back(next++);
    } else if (fault == ChaosFault::partition) {
      std::ranges::shuffle(here, rng);
      planned.victims.assign(here.begin(),
                             here.begin() + static_cast<std::ptrdiff_t>(here.size() / 2));
      std::ranges::sort(planned.victims);
    } else {
      const auto at = here.begin() + static_cast<std::ptrdiff_t>(rng.below(here.size()));
      planned.victims.push_back(*at);
      if (fault == ChaosFault::leave && here.size() <= kFewest) continue;
      if (fault == ChaosFault::leave) here.erase(at);
    }
    plan.push_back(std::move(planned));
  }
  return plan;
}

std::string chaos_line(const FaultOutcome& outcome) {
  const auto what =
      fmt::format("{} {}", name_of(outcome.planned.fault), victims_text(outcome.planned.victims));
  return fmt::format(
      "{:<22} others trained at {:.0f} %, longest pause {:.1f} s; noticed after {}, by all after "
      "{}; whole again after {}",
      what, outcome.others_percent, outcome.longest_pause_s, seconds_text(outcome.noticed_first_s),
      seconds_text(outcome.noticed_all_s), seconds_text(outcome.whole_s));
}

nlohmann::json to_json(const FaultOutcome& outcome) {
  return {{"fault", std::string(name_of(outcome.planned.fault))},
          {"nodes", outcome.planned.victims},
          {"others_percent", outcome.others_percent},
          {"longest_pause_s", outcome.longest_pause_s},
          {"noticed_first_s", or_null(outcome.noticed_first_s)},
          {"noticed_all_s", or_null(outcome.noticed_all_s)},
          {"whole_s", or_null(outcome.whole_s)}};
}

}  // namespace starling::node
