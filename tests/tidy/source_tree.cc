#include "tests/tidy/source_tree.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <utility>

namespace starling::tidy {

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kSkippedFolders{".git", ".deps", "build", "__pycache__"};
constexpr std::array<std::string_view, 16> kTextExtensions{
    ".h",    ".cc",  ".cu",   ".capnp", ".md", ".cmake", ".txt", ".py",
    ".yaml", ".yml", ".json", ".toml",  ".sh", ".html",  ".css", ".js"};

// Blanks out comments and the contents of string and character literals, line by line; raw strings
// and block comments may run over several lines.
class Blanker {
 public:
  std::string blank(const std::string& line) {
    std::string out(line.size(), ' ');
    for (std::size_t i = 0; i < line.size();) i = step(line, i, out);
    return out;
  }

 private:
  // Handles what begins at `i`; where to go on.
  std::size_t step(const std::string& line, std::size_t i, std::string& out) {
    if (!end_mark_.empty()) return skip_to_mark(line, i);
    const std::string_view rest = std::string_view(line).substr(i);
    if (rest.starts_with("//")) return line.size();
    if (rest.starts_with("/*")) {
      end_mark_ = "*/";
      return i + 2;
    }
    if (rest.starts_with("R\"") && (i == 0 || !is_word(line[i - 1]))) {
      const std::size_t open = line.find('(', i);
      if (open == std::string::npos) return line.size();
      end_mark_ = ")" + line.substr(i + 2, open - i - 2) + "\"";
      return open + 1;
    }
    // An apostrophe after a digit or letter separates digits.
    const bool literal = line[i] == '"' || (line[i] == '\'' && (i == 0 || !is_word(line[i - 1])));
    if (literal) return skip_literal(line, i, out);
    out[i] = line[i];
    return i + 1;
  }

  static std::size_t skip_literal(const std::string& line, std::size_t i, std::string& out) {
    const char quote = line[i];
    // The name of an included file is no literal.
    if (quote == '"' && out.find("#include") != std::string::npos) {
      std::copy(line.begin() + static_cast<std::ptrdiff_t>(i), line.end(),
                out.begin() + static_cast<std::ptrdiff_t>(i));
      return line.size();
    }
    out[i] = quote;
    for (++i; i < line.size() && line[i] != quote; ++i) {
      if (line[i] == '\\') ++i;
    }
    if (i < line.size()) out[i] = quote;
    return i + 1;
  }

  std::size_t skip_to_mark(const std::string& line, std::size_t i) {
    const std::size_t found = line.find(end_mark_, i);
    if (found == std::string::npos) return line.size();
    const std::size_t after = found + end_mark_.size();
    end_mark_.clear();
    return after;
  }

  static bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }

  std::string end_mark_;  // what ends the comment or raw string that a line began in
};

bool is_text(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (std::find(kTextExtensions.begin(), kTextExtensions.end(), extension) !=
      kTextExtensions.end()) {
    return true;
  }
  // Scripts have no extension: they begin with #!.
  if (!extension.empty()) return path.filename() == "Containerfile";
  std::ifstream in(path, std::ios::binary);
  std::array<char, 2> start{};
  in.read(start.data(), start.size());
  return (start[0] == '#' && start[1] == '!') || path.filename() == "Containerfile";
}

}  // namespace

bool SourceFile::is_cpp() const {
  return path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".cu");
}

bool SourceFile::is_header() const { return path.ends_with(".h"); }

std::string SourceFile::folder() const {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string SourceFile::file_name() const { return path.substr(path.rfind('/') + 1); }

SourceFile parse_source(std::string path, std::string_view content) {
  SourceFile file{.path = std::move(path), .lines = {}, .code = {}, .ends_with_newline = true};
  file.ends_with_newline = content.empty() || content.back() == '\n';
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    file.lines.emplace_back(content.substr(0, end));
    content.remove_prefix(std::min(end + 1, content.size()));
  }
  if (!file.is_cpp()) return file;
  Blanker blanker;
  for (const std::string& line : file.lines) file.code.push_back(blanker.blank(line));
  return file;
}

SourceTree read_tree(const fs::path& root) {
  SourceTree tree;
  for (fs::recursive_directory_iterator entry(root), end; entry != end; ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory()) {
      const bool skipped =
          std::find(kSkippedFolders.begin(), kSkippedFolders.end(), name) != kSkippedFolders.end();
      if (skipped || entry->path().string().ends_with("tests/fuzz/corpus")) {
        entry.disable_recursion_pending();
      }
      continue;
    }
    if (!entry->is_regular_file() || !is_text(entry->path())) continue;
    std::ifstream in(entry->path(), std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    tree.push_back(parse_source(entry->path().lexically_relative(root).generic_string(), content));
  }
  std::sort(tree.begin(), tree.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return tree;
}

bool contains_any(const std::string& line, const std::vector<std::string_view>& hints) {
  return std::any_of(hints.begin(), hints.end(),
                     [&](std::string_view hint) { return line.find(hint) != std::string::npos; });
}

}  // namespace starling::tidy
