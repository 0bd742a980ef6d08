// The repository's text files as the rules of the house see them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace starling::tidy {

// One text file. A value.
struct SourceFile {
  std::string path;                // relative to the root, with slashes
  std::vector<std::string> lines;  // without line feeds
  // The same lines with comments and the contents of literals blanked out: what the compiler reads.
  // Filled for C++ files only.
  std::vector<std::string> code;
  bool ends_with_newline = true;

  [[nodiscard]] bool is_cpp() const;
  [[nodiscard]] bool is_header() const;
  // The folder that the file lies in, "" at the root.
  [[nodiscard]] std::string folder() const;
  [[nodiscard]] std::string file_name() const;
};

using SourceTree = std::vector<SourceFile>;

// A file from its content.
[[nodiscard]] SourceFile parse_source(std::string path, std::string_view content);

// All text files below `root`, in bytewise order of their paths. Build folders, fetched
// dependencies, version control and stored fuzz inputs are left out.
[[nodiscard]] SourceTree read_tree(const std::filesystem::path& root);

// Whether `line` has one of `hints` in it.
[[nodiscard]] bool contains_any(const std::string& line,
                                const std::vector<std::string_view>& hints);

}  // namespace starling::tidy
