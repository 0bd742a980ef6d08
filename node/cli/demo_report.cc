#include "node/cli/demo_report.h"

#include "node/cli/exit_code.h"
#include "node/wall_time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

namespace starling::node {

namespace {

using Json = nlohmann::json;

std::string show_megabytes(double bytes) {
  return bytes >= 1e6 ? fmt::format("{:.2f} MB", bytes / 1e6)
                      : fmt::format("{:.1f} kB", bytes / 1e3);
}

}  // namespace

double status_number(const Json& status, const char* group, const char* field) {
  if (!status.is_object()) return 0;
  const auto part = status.find(group);
  if (part == status.end() || !part->is_object()) return 0;
  const auto value = part->find(field);
  return value != part->end() && value->is_number() ? value->get<double>() : 0;
}

std::optional<std::string> demo_progress_line(const std::vector<std::string>& statuses) {
  double share = 0;
  double samples = 0;
  double budget = 0;
  double speed = 0;
  double left = -1;
  double disagreement = 0;
  std::size_t answered = 0;
  std::string steps;
  for (const auto& text : statuses) {
    const auto status = Json::parse(text, nullptr, false);
    if (!status.is_object()) {
      steps += (steps.empty() ? "" : "/") + std::string("-");
      continue;
    }
    ++answered;
    share = std::max(share, status_number(status, "progress", "share"));
    samples = std::max(samples, status_number(status, "progress", "swarm_samples"));
    budget = std::max(budget, status_number(status, "progress", "budget_samples"));
    left = std::max(left, status_number(status, "progress", "left_s"));
    speed += status_number(status, "train", "images_per_second");
    if (const auto found = status.find("disagreement_ratio");
        found != status.end() && found->is_number())
      disagreement = std::max(disagreement, found->get<double>());
    steps += fmt::format("{}{:.0f}", steps.empty() ? "" : "/",
                         status_number(status, "progress", "step"));
  }
  if (answered == 0) return std::nullopt;
  std::string line = fmt::format("progress {:.1f}%  samples {:.0f}", share * 100, samples);
  if (budget > 0) line += fmt::format(" of {:.0f}", budget);
  line += fmt::format("  img/s {:.0f}  steps {}", speed, steps);
  if (disagreement > 0) line += fmt::format("  disagreement {:.1e}", disagreement);
  if (left > 0) line += fmt::format("  left {}", show_left(left));
  return line;
}

std::string demo_summary(const std::vector<DemoEnd>& ends) {
  std::string out = fmt::format("{:<8} {:>5} {:>8} {:>9} {:>9} {:>12} {:>14}\n", "node", "exit",
                                "steps", "samples", "accuracy", "sent", "sent a step");
  double parameters = 0;
  double sent = 0;
  double steps = 0;
  for (const auto& end : ends) {
    const auto status = Json::parse(end.status, nullptr, false);
    const double own_steps = status_number(status, "progress", "step");
    const double own_sent = status_number(status, "traffic", "bytes_sent");
    const double accuracy = status_number(status, "eval", "accuracy_ratio");
    parameters = std::max(parameters, status_number(status, "model", "parameters"));
    sent += own_sent;
    steps += own_steps;
    out += fmt::format("{:<8} {:>5} {:>8.0f} {:>9.0f} {:>9} {:>12} {:>14}\n", end.name,
                       end.exit_status, own_steps, status_number(status, "progress", "samples"),
                       accuracy > 0 ? fmt::format("{:.1f} %", accuracy * 100) : "-",
                       show_megabytes(own_sent),
                       own_steps > 0 ? show_megabytes(own_sent / own_steps) : "-");
    if (!end.reason.empty()) out += fmt::format("         {}\n", end.reason);
  }
  const auto n = static_cast<double>(ends.size());
  const double all_reduce = n > 0 ? 2 * (n - 1) / n * 4 * parameters : 0;
  if (steps > 0 && sent > 0 && all_reduce > 0)
    out += fmt::format(
        "each node sent {} a step; data-parallel training (ring all-reduce, fp32) sends {}: "
        "{:.0f}x\n",
        show_megabytes(sent / steps), show_megabytes(all_reduce), all_reduce / (sent / steps));
  return out;
}

DemoVerdict demo_verdict(const std::vector<DemoEnd>& ends) {
  std::map<std::string, std::size_t> groups;
  int failed = 0;
  for (const auto& end : ends) {
    if (end.exit_status == 0 && !end.hash.empty()) ++groups[end.hash];
    if (end.exit_status != 0 && failed == 0) failed = end.exit_status;
  }
  if (groups.empty()) {
    const int code = failed != 0 ? failed : number_of(ExitCode::replicas_differ);
    return {"", code};
  }
  const auto largest = std::ranges::max_element(
      groups, [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool all = largest->second == ends.size();
  const int code = all                                ? 0
                   : groups.size() > 1 || failed == 0 ? number_of(ExitCode::replicas_differ)
                                                      : failed;
  return {fmt::format("final consensus: {}/{} replicas identical  blake2b {}", largest->second,
                      ends.size(), largest->first),
          code};
}

}  // namespace starling::node
