// `starling chaos`: a local swarm of real nodes, faults on a schedule, and what training made of
// them.
#include "node/base/clock.h"
#include "node/cli/byte_proxies.h"
#include "node/cli/chaos_plan.h"
#include "node/cli/chaos_swarm.h"
#include "node/cli/demo_nodes.h"
#include "node/cli/demo_report.h"
#include "node/cli/demo_setup.h"
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/observe/status.h"
#include "node/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

constexpr std::uint64_t kChaosNodes = 5;
// So long that no fault meets its end.
constexpr std::string_view kEndless = "samples=1000000000";
constexpr std::string_view kAllFaults = "kill,stop,partition,join,leave";
constexpr std::string_view kFaultsOfTheMost = "kill,stop,partition,leave";  // no room to join
constexpr std::size_t kShownOfFaults = 60;
constexpr Duration kDefaultEach = std::chrono::seconds(10);
constexpr Duration kWholeLimit = std::chrono::seconds(90);
constexpr Duration kFinishLimit = std::chrono::minutes(5);

struct ChaosOptions {
  std::uint64_t nodes = kChaosNodes;
  std::vector<PlannedFault> plan;
  Duration each = kDefaultEach;
  std::uint64_t seed = 1;
  bool json = false;
};

// One run of the verb; one thread.
class Chaos {
 public:
  Chaos(ChaosOptions options, const Terminal& terminal, ChaosSwarm& swarm)
      : options_(std::move(options)), terminal_(terminal), swarm_(swarm) {}

  Result<int> run();

 private:
  Result<FaultOutcome> carry_out(const PlannedFault& planned);
  Result<void> begin(const PlannedFault& planned);
  Result<void> end(const PlannedFault& planned);
  Result<int> finish(const std::vector<FaultOutcome>& outcomes);
  void say(const std::string& line) { terminal_.err << line << '\n' << std::flush; }

  ChaosOptions options_;
  const Terminal& terminal_;
  ChaosSwarm& swarm_;
  SteadyClock clock_;
};

Result<void> Chaos::begin(const PlannedFault& planned) {
  const std::size_t first = planned.victims.front();
  switch (planned.fault) {
    case ChaosFault::kill:
      swarm_.kill(first);
      return {};
    case ChaosFault::stop:
      swarm_.stop(first);
      return {};
    case ChaosFault::partition:
      swarm_.split(planned.victims);
      return {};
    case ChaosFault::join:
      return swarm_.start(first);
    case ChaosFault::leave:
      swarm_.leave(first);
      return {};
  }
  return {};
}

Result<void> Chaos::end(const PlannedFault& planned) {
  const std::size_t first = planned.victims.front();
  if (planned.fault == ChaosFault::kill) return swarm_.start(first);
  if (planned.fault == ChaosFault::stop) swarm_.resume(first);
  if (planned.fault == ChaosFault::partition) swarm_.mend();
  return {};
}

Result<FaultOutcome> Chaos::carry_out(const PlannedFault& planned) {
  const bool whole_halves = planned.fault == ChaosFault::partition;
  const auto others =
      swarm_.here_without(whole_halves ? std::vector<std::size_t>{} : planned.victims);
  swarm_.mark();
  TRY_VOID(swarm_.watch(options_.each));
  const auto before = swarm_.steps_a_second(others);

  swarm_.mark();
  TRY_VOID(begin(planned));
  TRY_VOID(swarm_.watch(options_.each));
  FaultOutcome outcome{.planned = planned,
                       .others_percent = 0,
                       .noticed = noticed(planned, others, swarm_.sightings()),
                       .longest_pause_s = swarm_.longest_pause(others),
                       .whole_s = std::nullopt};
  if (before > 0) outcome.others_percent = 100 * swarm_.steps_a_second(others) / before;

  const TimePoint ended = clock_.now();
  TRY_VOID(end(planned));
  TRY(const bool whole, swarm_.wait_whole(kWholeLimit));
  if (whole) outcome.whole_s = seconds(clock_.now() - ended);
  return outcome;
}

Result<int> Chaos::finish(const std::vector<FaultOutcome>& outcomes) {
  say("asking for the final consensus");
  TRY(const auto ends, swarm_.finish(kFinishLimit));
  auto verdict = demo_verdict(ends);
  const bool all_whole =
      std::ranges::all_of(outcomes, [](const auto& one) { return one.whole_s.has_value(); });
  if (verdict.exit_code == 0 && !all_whole) verdict.exit_code = number_of(ExitCode::internal);
  if (!options_.json) {
    terminal_.out << verdict.line << (verdict.line.empty() ? "" : "\n") << std::flush;
    if (verdict.line.empty()) say("starling chaos: no node reached the final consensus");
    return verdict.exit_code;
  }
  nlohmann::json faults = nlohmann::json::array();
  for (const auto& outcome : outcomes) faults.push_back(to_json(outcome));
  const auto identical = std::ranges::count_if(
      ends, [&](const auto& one) { return !one.hash.empty() && verdict.line.ends_with(one.hash); });
  terminal_.out << json_text(
                       {{"schema", 1},
                        {"seed", options_.seed},
                        {"nodes", options_.nodes},
                        {"faults", faults},
                        {"consensus",
                         {{"identical", identical}, {"of", ends.size()}, {"line", verdict.line}}},
                        {"exit", verdict.exit_code}})
                << '\n'
                << std::flush;
  return verdict.exit_code;
}

Result<int> Chaos::run() {
  for (std::size_t number = 1; number <= options_.nodes; ++number) TRY_VOID(swarm_.start(number));
  TRY(const bool whole, swarm_.wait_whole(kStartLimit));
  if (!whole)
    return fail(Errc::timed_out, Doing::starting,
                "the nodes did not become one swarm; their logs are in the folder");
  std::vector<FaultOutcome> outcomes;
  for (const auto& planned : options_.plan) {
    TRY(outcomes.emplace_back(), carry_out(planned));
    auto& out = options_.json ? terminal_.err : terminal_.out;
    out << chaos_line(outcomes.back()) << '\n' << std::flush;
  }
  return finish(outcomes);
}

Result<ChaosOptions> read_options(const Arguments& arguments) {
  ChaosOptions options;
  options.json = arguments.has("--json");
  const auto wrong = [](std::string_view flag, const std::string& given, const std::string& needs) {
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                fmt::format("{} {} needs {}", flag, escape_value(given), needs));
  };
  const auto given = [&](std::string_view flag, std::string_view otherwise) {
    const auto at = arguments.given.find(flag);
    return at == arguments.given.end() ? std::string(otherwise) : at->second;
  };
  const auto nodes = given("--nodes", std::to_string(kChaosNodes));
  if (const auto parsed = parse_count(nodes, kMinChaosNodes, kMaxChaosNodes)) {
    options.nodes = *parsed;
  } else {
    return wrong("--nodes", nodes, parsed.error());
  }
  const auto each = given("--each", show_duration(kDefaultEach));
  const auto parsed_each = parse_duration(each);
  if (!parsed_each || *parsed_each < std::chrono::seconds(3) ||
      *parsed_each > std::chrono::hours(1))
    return wrong("--each", each, "a duration from 3s to 1h");
  options.each = *parsed_each;
  const auto seed = given("--schedule", "1");
  if (const auto parsed = parse_count(seed, 0, ~std::uint64_t{0})) {
    options.seed = *parsed;
  } else {
    return wrong("--schedule", seed, parsed.error());
  }
  const auto faults =
      given("--faults", options.nodes < kMaxChaosNodes ? kAllFaults : kFaultsOfTheMost);
  const auto shown =
      faults.size() <= kShownOfFaults ? faults : faults.substr(0, kShownOfFaults) + "...";
  auto named = parse_faults(faults);
  if (!named) return wrong("--faults", shown, named.error());
  auto plan = plan_chaos(std::move(*named), options.nodes, options.seed);
  if (!plan) return wrong("--faults", shown, plan.error());
  options.plan = std::move(*plan);
  return options;
}

// What every node is told; `most` share the machine.
std::vector<std::string> words_of(const Config& config, std::size_t most,
                                  const Terminal& terminal) {
  auto words = swarm_words(config, most, kEndless, terminal);
  // With an endless budget the rate would be warming up all the time.
  if (!config.forced("train.warmup")) {
    words.emplace_back("--set");
    words.emplace_back("train.warmup=0");
  }
  return words;
}

// The nodes in a folder, from their start to their end.
Result<int> run_in(const std::filesystem::path& dir, ChaosOptions options,
                   const Arguments& arguments, const Terminal& terminal, StopSignals& signals) {
  const auto joins = std::ranges::count(options.plan, ChaosFault::join, &PlannedFault::fault);
  const auto most = static_cast<std::size_t>(options.nodes) + static_cast<std::size_t>(joins);
  auto words = words_of(arguments.config, most, terminal);
  TRY(const auto swarm, ChaosSwarm::make(dir, std::move(words), most, signals));
  return Chaos(std::move(options), terminal, *swarm).run();
}

Result<int> run_chaos(const Arguments& arguments, const Terminal& terminal) {
  TRY(auto options, read_options(arguments));
  TRY_VOID(refuse_decided(arguments.config, "chaos"));
  StopSignals signals;  // before the folder, so that none is left behind
  TRY(const auto dir, choose_swarm_folder(arguments.config, "chaos"));
  const bool is_ours = !arguments.config.forced("node.dir");
  terminal.err << fmt::format(
      "{} nodes, schedule {}, folder {}{}\nThey share this machine: where one is gone, the others "
      "have its share of the processor.\n",
      options.nodes, options.seed, dir.string(),
      is_ours ? " (removed at the end unless something fails; --dir keeps it)" : "");
  if (options.nodes == kMaxChaosNodes && !arguments.has("--faults"))
    terminal.err << fmt::format("{} nodes are the most: none joins\n", kMaxChaosNodes);
  auto ended = run_in(dir, std::move(options), arguments, terminal, signals);
  const auto stopped = signals.exit_status();
  if (stopped) {
    terminal.err << "starling chaos: stopped by a signal, and its nodes with it\n" << std::flush;
    ended = *stopped;
  }
  std::error_code ignored;
  if (is_ours && (stopped || (ended && *ended == number_of(ExitCode::good))))
    std::filesystem::remove_all(dir, ignored);
  return ended;
}

}  // namespace

namespace verbs {

int chaos(const Arguments& arguments, const Surroundings& surroundings) {
  const auto ended = run_chaos(arguments, surroundings.terminal);
  return ended ? *ended : report("chaos", ended.error(), surroundings.terminal);
}

}  // namespace verbs

}  // namespace starling::node
