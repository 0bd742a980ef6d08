// The list of fault points and their uses.
#include "tests/tidy/rules.h"

#include <map>
#include <string>
#include <string_view>

namespace starling::tidy {

namespace {

constexpr std::string_view kList = "node/base/fault_points.h";
constexpr std::string_view kRule = "fault-point";

// Calls `found` with every literal that follows `before` in a line.
template <class Found>
void each_literal(const std::string& line, std::string_view before, Found found) {
  for (auto at = line.find(before); at != std::string::npos; at = line.find(before, at + 1)) {
    const auto start = at + before.size();
    const auto end = line.find('"', start);
    if (end != std::string::npos) found(line.substr(start, end - start));
  }
}

}  // namespace

Findings check_fault_points(const SourceTree& tree) {
  struct Use {
    std::size_t line = 0;
    std::size_t count = 0;
  };
  std::map<std::string, Use> listed;
  for (const SourceFile& file : tree)
    if (file.path == kList)
      for (std::size_t i = 0; i < file.lines.size(); ++i)
        each_literal(file.lines[i], "PointSpec{\"",
                     [&](const std::string& name) { listed[name] = {i + 1, 0}; });
  Findings findings;
  for (const SourceFile& file : tree) {
    // Tests arm points and ask for them; fault.h explains them.
    if (!file.is_cpp() || file.path.starts_with("tests/") || file.path == "node/base/fault.h")
      continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i)
      for (const std::string_view call : {"fault::maybe(\"", "fault::pass(\""})
        each_literal(file.lines[i], call, [&](const std::string& name) {
          const auto known = listed.find(name);
          if (known == listed.end())
            findings.push_back({file.path, i + 1, std::string(kRule),
                                name + " is not in the list: add it to " + std::string(kList)});
          else if (++known->second.count == 2)
            findings.push_back({file.path, i + 1, std::string(kRule),
                                name + " is used twice: give each place a name of its own"});
        });
  }
  for (const auto& [name, use] : listed)
    if (use.count == 0)
      findings.push_back({std::string(kList), use.line, std::string(kRule),
                          name + " is used nowhere: remove it or put it into the code"});
  return findings;
}

}  // namespace starling::tidy
