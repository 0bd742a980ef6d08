// What a command line did: its exit code and what it printed.
#pragma once

#include "node/cli/verbs.h"

#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starling::node::testing {

using Words = std::vector<std::string>;

struct Said {
  int code = 0;
  std::string out;
  std::string err;
};

inline Said said_by(const Words& words, const VerbHooks& hooks = {},
                    std::vector<std::pair<std::string, std::string>> environment = {}) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = run_command_line(words, {std::move(environment), Terminal{out, err}, hooks});
  return {code, out.str(), err.str()};
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace starling::node::testing
