#include "tests/tidy/rules.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

namespace starling::tidy {

Findings check_all(const SourceTree& tree) {
  Findings all;
  for (const auto check :
       {check_layering, check_bans, check_words, check_layout, check_fault_points}) {
    Findings some = check(tree);
    all.insert(all.end(), std::make_move_iterator(some.begin()),
               std::make_move_iterator(some.end()));
  }
  std::sort(all.begin(), all.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.path, a.line, a.rule) < std::tie(b.path, b.line, b.rule);
  });
  return all;
}

std::string to_string(const Finding& finding) {
  std::string text = finding.path;
  if (finding.line > 0) text += ":" + std::to_string(finding.line);
  return text + " " + finding.rule + ": " + finding.message;
}

std::vector<Exception> parse_exceptions(const SourceFile& file) {
  std::vector<Exception> exceptions;
  for (const std::string& line : file.lines) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream in(line);
    Exception exception;
    if (!(in >> exception.count >> exception.rule >> exception.path)) {
      exception = {.path = "?", .rule = line, .count = 1};
    }
    exceptions.push_back(std::move(exception));
  }
  return exceptions;
}

Findings apply_exceptions(const Findings& findings, const std::vector<Exception>& exceptions) {
  std::map<std::pair<std::string, std::string>, std::size_t> permitted;
  for (const Exception& e : exceptions) permitted[{e.path, e.rule}] += e.count;
  Findings left;
  for (const Finding& finding : findings) {
    const auto found = permitted.find({finding.path, finding.rule});
    if (found == permitted.end() || found->second == 0) {
      left.push_back(finding);
    } else {
      --found->second;
    }
  }
  for (const auto& [key, count] : permitted) {
    if (count == 0) continue;
    left.push_back(
        {key.first, 0, key.second,
         std::to_string(count) + " fewer than tests/tidy/exceptions.txt permits: lower it there"});
  }
  return left;
}

}  // namespace starling::tidy
