// `starling status`, `members`, `neighbours`: ask the running node, print what it says.
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/control/caller.h"
#include "node/observe/status.h"

#include <nlohmann/json.hpp>

#include <ostream>

namespace starling::node::verbs {

namespace {

constexpr Duration kViewPatience = std::chrono::seconds(10);

// Prints the answer as it came, or as a table.
int show_view(const Arguments& arguments, const Surroundings& surroundings,
              const ControlRequest& request, std::string (*table)(const nlohmann::json&)) {
  const auto& terminal = surroundings.terminal;
  const auto answer = ask_node(arguments.config.node.dir, request, kViewPatience);
  if (!answer) return report(verb_of(request), answer.error(), terminal);
  if (arguments.has("--json"))
    terminal.out << *answer << '\n';
  else
    terminal.out << table(nlohmann::json::parse(*answer, nullptr, false));
  return number_of(ExitCode::good);
}

}  // namespace

int status(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  const auto answer = ask_node(arguments.config.node.dir, StatusRequest{}, kViewPatience);
  if (!answer) {
    if (!arguments.has("--quiet")) (void)report("status", answer.error(), terminal);
    return number_of(ExitCode::internal);  // "not healthy" is 1, whatever the reason
  }
  const auto status = nlohmann::json::parse(*answer, nullptr, false);
  if (arguments.has("--json"))
    terminal.out << *answer << '\n';
  else if (!arguments.has("--quiet"))
    terminal.out << status_table(status);
  const bool healthy = status.is_object() && status.value("healthy", false);
  return number_of(healthy ? ExitCode::good : ExitCode::internal);
}

int members(const Arguments& arguments, const Surroundings& surroundings) {
  return show_view(arguments, surroundings, MembersRequest{}, &members_table);
}

int neighbours(const Arguments& arguments, const Surroundings& surroundings) {
  return show_view(arguments, surroundings, NeighboursRequest{}, &neighbours_table);
}

}  // namespace starling::node::verbs
