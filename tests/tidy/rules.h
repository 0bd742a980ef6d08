// The rules of the house that a machine can check. Each returns what breaks it, with the place and
// what to do instead.
#pragma once

#include "tests/tidy/source_tree.h"

#include <cstddef>
#include <string>
#include <vector>

namespace starling::tidy {

// One broken rule at one place.
struct Finding {
  std::string path;
  std::size_t line = 0;  // counted from 1; 0 means the whole file or folder
  std::string rule;      // a short name, for the list of exceptions
  std::string message;
};

using Findings = std::vector<Finding>;

// The direction of dependencies: which folder may include which, and which outside headers it must
// not see (layering.cc holds the table).
[[nodiscard]] Findings check_layering(const SourceTree& tree);

// Constructs that have a better one in this project: threads, clocks, output, randomness (bans.cc
// holds the table).
[[nodiscard]] Findings check_bans(const SourceTree& tree);

// One word for each thing: the words that the dictionary in README.md replaces.
[[nodiscard]] Findings check_words(const SourceTree& tree);

// Every fault point in the list is used, and once; none is used that is not in it.
[[nodiscard]] Findings check_fault_points(const SourceTree& tree);

// Length of files, blanks, line ends, READMEs, names of folders and of test cases, TODOs, and
// whether the tests that comments name exist.
[[nodiscard]] Findings check_layout(const SourceTree& tree);

// All of them, in order of path and line.
[[nodiscard]] Findings check_all(const SourceTree& tree);

// "path:line rule: message".
[[nodiscard]] std::string to_string(const Finding& finding);

// A permitted number of findings of one rule in one file.
struct Exception {
  std::string path;
  std::string rule;
  std::size_t count = 0;
};

// The list from its text: lines "count rule path", comments with #. A line that cannot be read is
// an exception for the path "?" that nothing matches.
[[nodiscard]] std::vector<Exception> parse_exceptions(const SourceFile& file);

// What is left of `findings` when exceptions are taken off; an exception that permits more than
// there is counts as a finding itself, so that the list only shrinks.
[[nodiscard]] Findings apply_exceptions(const Findings& findings,
                                        const std::vector<Exception>& exceptions);

}  // namespace starling::tidy
