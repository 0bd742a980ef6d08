// `starling chaos`: a local swarm of real nodes, faults on a schedule, and what training made of
// them.
#include "node/base/clock.h"
#include "node/cli/byte_proxies.h"
#include "node/cli/chaos_plan.h"
#include "node/cli/chaos_swarm.h"
#include "node/cli/demo_report.h"
#include "node/cli/demo_setup.h"
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/observe/status.h"
#include "node/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ostream>
#include <utility>

namespace starling::node {

namespace {

constexpr std::uint64_t kChaosNodes = 5;
constexpr std::uint64_t kMinChaosNodes = 3;
constexpr std::uint64_t kMaxChaosNodes = 16;
// So long that no fault meets its end.
constexpr std::string_view kEndless = "samples=1000000000";
constexpr std::string_view kAllFaults = "kill,stop,partition,join,leave";
constexpr Duration kDefaultEach = std::chrono::seconds(10);
constexpr Duration kWholeLimit = std::chrono::seconds(90);
constexpr Duration kFinishLimit = std::chrono::minutes(5);

struct ChaosOptions {
  std::uint64_t nodes = kChaosNodes;
  std::vector<ChaosFault> faults;
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
                       .noticed_first_s = std::nullopt,
                       .noticed_all_s = std::nullopt,
                       .longest_pause_s = swarm_.longest_pause(others),
                       .whole_s = std::nullopt};
  if (before > 0) outcome.others_percent = 100 * swarm_.steps_a_second(others) / before;
  const std::string_view as = planned.fault == ChaosFault::join    ? "alive"
                              : planned.fault == ChaosFault::leave ? "left"
                                                                   : "dead";
  outcome.noticed_first_s = swarm_.noticed(planned.victims, others, as, ChaosSwarm::Who::first);
  outcome.noticed_all_s = swarm_.noticed(planned.victims, others, as, ChaosSwarm::Who::all);

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
  for (const auto& planned : plan_chaos(options_.faults, options_.nodes, options_.seed)) {
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
  const auto faults = given("--faults", kAllFaults);
  if (auto parsed = parse_faults(faults)) {
    options.faults = std::move(*parsed);
  } else {
    return wrong("--faults", faults, parsed.error());
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
  return options;
}

Result<int> run_chaos(const Arguments& arguments, const Terminal& terminal) {
  TRY(auto options, read_options(arguments));
  TRY_VOID(refuse_decided(arguments.config, "chaos"));
  TRY(const auto dir, choose_swarm_folder(arguments.config, "chaos"));
  auto words = swarm_words(arguments.config, options.nodes, kEndless, terminal);
  // With an endless budget the rate would be warming up all the time.
  if (!arguments.config.forced("train.warmup")) {
    words.emplace_back("--set");
    words.emplace_back("train.warmup=0");
  }
  const auto joins = static_cast<std::size_t>(std::ranges::count(options.faults, ChaosFault::join));
  TRY(const auto swarm, ChaosSwarm::make(dir, std::move(words), options.nodes + joins));
  terminal.err << fmt::format(
      "{} nodes, schedule {}, folder {}\nThey share this machine: where one is gone, the others "
      "have its share of the processor.\n",
      options.nodes, options.seed, dir.string());
  return Chaos(std::move(options), terminal, *swarm).run();
}

}  // namespace

namespace verbs {

int chaos(const Arguments& arguments, const Surroundings& surroundings) {
  const auto ended = run_chaos(arguments, surroundings.terminal);
  if (ended) return *ended;
  if (ended.error().code == Errc::cancelled) return number_of(ExitCode::second_interrupt);
  return report("chaos", ended.error(), surroundings.terminal);
}

}  // namespace verbs

}  // namespace starling::node
