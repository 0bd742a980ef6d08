#include "node/bench/bench.h"

#include "node/cli/exit_code.h"
#include "node/config/keys.h"
#include "node/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace starling::node::bench {

namespace {

std::unexpected<Error> usage(std::string detail) {
  return fail(Errc::bad_argument, Doing::parsing_arguments, std::move(detail));
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

Result<const Bench*> find(std::span<const Bench> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Bench::name);
  if (found != table.end()) return &*found;
  std::vector<std::string> names;
  for (const auto& bench : table) names.emplace_back(bench.name);
  return usage(
      fmt::format("no bench {}; there are {}", escape_value(name.substr(0, 80)), joined(names)));
}

// A key, its value and where that came from. Invites are good for whoever reads them.
std::string given_as(const KeySpec& key, const Config& config) {
  const std::string value =
      key.name == "swarm.invite" ? "..." : escape_value(show_value(key, config));
  return fmt::format("{} ({}, set by {})", key.name, value,
                     printable(config.origins.find(key.name)->second.where));
}

// Whether somebody set it. No figure depends on a node's folder, which a container image sets for
// everything that runs in it; as a flag it was meant for the bench.
bool given_for_figures(const KeySpec& key, const Config& config) {
  const auto origin = config.origins.find(key.name);
  if (origin == config.origins.end()) return false;
  return key.name != "node.dir" || origin->second.layer == Layer::flag;
}

// What is taken and then ignored would make a figure say what it does not: a flag as well as a key
// from the environment or a file.
Result<void> refuse_unused(const Bench& bench, const Arguments& arguments) {
  const auto refuse = [&](std::string_view what) {
    std::vector<std::string> takes{"--json"};
    for (const auto flag : bench.flags) takes.emplace_back(flag);
    for (const auto key : bench.keys) takes.push_back(fmt::format("--set {}=", key));
    return usage(
        fmt::format("bench {} does not look at {}; it takes {}", bench.name, what, joined(takes)));
  };
  for (const auto& [flag, value] : arguments.given)
    if (flag != "--json" && std::ranges::find(bench.flags, flag) == bench.flags.end())
      return refuse(flag);
  for (const auto& key : all_keys())
    if (given_for_figures(key, arguments.config) &&
        std::ranges::find(bench.keys, key.name) == bench.keys.end())
      return refuse(given_as(key, arguments.config));
  return {};
}

bool is_spread(const Json& value) { return value.is_object() && value.contains("median"); }

// A scalar or a spread as a person reads it: "9.81 (9.7 to 10.2)" with the quartiles in brackets.
std::string cell(const Json& value) {
  if (is_spread(value))
    return fmt::format("{} ({} to {})", json_text(value["median"]), json_text(value["q1"]),
                       json_text(value["q3"]));
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

void print_rows(const Json& rows, std::ostream& out) {
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [name, value] : rows.front().items()) lines[0].push_back(name);
  for (const auto& row : rows) {
    auto& line = lines.emplace_back();
    for (const auto& [name, value] : row.items()) line.push_back(cell(value));
  }
  std::vector<std::size_t> widths(lines[0].size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      out << fmt::format("{:<{}}  ", line[i], widths[i]);
    out << '\n';
  }
}

void print(const Json& report, const std::string& path, std::ostream& out) {
  for (const auto& [name, value] : report.items()) {
    const std::string place = path.empty() ? name : path + "." + name;
    if (value.is_object() && !is_spread(value))
      print(value, place, out);
    else if (value.is_array() && !value.empty() && value.front().is_object())
      print_rows(value, out);
    else
      out << fmt::format("{:<28}{}\n", place, cell(value));
  }
}

// What was found, and the exit code where a signal ended it.
struct Ended {
  Result<Json> figures;
  std::optional<int> stopped = std::nullopt;
};

Ended measured_by(const Bench& bench, const Arguments& arguments, const Terminal& terminal) {
  if (bench.measure_until == nullptr) return {bench.measure(arguments, terminal)};
  StopSignals stop;
  auto figures = bench.measure_until(arguments, terminal, stop);
  return {std::move(figures), stop.exit_status()};
}

Result<const Bench*> chosen(std::span<const Bench> table, const Arguments& arguments) {
  TRY(const Bench* bench, find(table, arguments.words.front()));
  TRY_VOID(refuse_unused(*bench, arguments));
  return bench;
}

}  // namespace

int carry_out(std::span<const Bench> table, const Arguments& arguments, const Terminal& terminal) {
  const auto bench = chosen(table, arguments);
  if (!bench) return report("bench", bench.error(), terminal);
  const auto [measured, stopped] = measured_by(**bench, arguments, terminal);
  if (!measured) {
    const int code = report("bench", measured.error(), terminal);
    return stopped.value_or(code);
  }
  Json found{{"schema", 1},
             {"bench", (*bench)->name},
             {"version", STARLING_VERSION},
             {"machine", machine_json()}};
  found.update(*measured);
  if (arguments.has("--json"))
    terminal.out << json_text(found) << '\n';
  else
    print(found, "", terminal.out);
  return number_of(ExitCode::good);
}

}  // namespace starling::node::bench
