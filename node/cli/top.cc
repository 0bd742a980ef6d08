// `starling top`: the live screen of the running node.
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/control/caller.h"
#include "node/terminal/live.h"

#include <string_view>

namespace starling::node::verbs {

int top(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& dir = arguments.config.node.dir;
  // A folder without a node gets no screen.
  if (const auto first = ask_node(dir, StatusRequest{}, std::chrono::seconds(10)); !first)
    return report("top", first.error(), surroundings.terminal);
  const auto screen = terminal::Curses::open(terminal::Interrupt::quits);
  if (!screen) return report("top", screen.error(), surroundings.terminal);
  terminal::show_node(**screen, dir, [](std::string_view) { return false; });
  return number_of(ExitCode::good);
}

}  // namespace starling::node::verbs
