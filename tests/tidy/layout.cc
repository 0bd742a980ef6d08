#include "tests/tidy/rules.h"

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <set>
#include <string_view>

namespace starling::tidy {

namespace {

constexpr std::size_t kMaxLines = 500;
constexpr std::size_t kMaxReadmeLines = 60;
constexpr std::array<std::string_view, 6> kVagueFolders{"utils",   "util",   "common",
                                                        "helpers", "helper", "misc"};
constexpr std::array<std::string_view, 5> kTopics{"correctness", "perf", "security", "test",
                                                  "cleanup"};
// Folders of tests with a page of their own; the others mirror a folder that has one.
constexpr std::array<std::string_view, 6> kTestFolders{"tests",     "tests/sim",  "tests/fuzz",
                                                       "tests/e2e", "tests/tidy", "tests/bench"};

void check_blanks(const SourceFile& file, Findings& findings) {
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    if (line.find('\t') != std::string::npos) {
      findings.push_back({file.path, i + 1, "tab", "a tab: indent with blanks"});
    }
    if (!line.empty() && (line.back() == ' ' || line.back() == '\r')) {
      findings.push_back({file.path, i + 1, "trailing-blank", "blanks at the end of the line"});
    }
  }
  if (!file.ends_with_newline) {
    findings.push_back({file.path, file.lines.size(), "last-line", "no line feed at the end"});
  }
}

void check_length(const SourceFile& file, Findings& findings) {
  if (file.is_cpp() && file.lines.size() > kMaxLines) {
    findings.push_back({file.path, 0, "length",
                        std::to_string(file.lines.size()) + " lines, more than " +
                            std::to_string(kMaxLines) + ": it has more than one thing to say"});
  }
  if (file.file_name() == "README.md" && !file.folder().empty() &&
      file.lines.size() > kMaxReadmeLines) {
    findings.push_back({file.path, 0, "length", "a folder's README.md is one screen at most"});
  }
}

void check_header(const SourceFile& file, Findings& findings) {
  if (!file.is_header()) return;
  const bool once =
      std::find(file.lines.begin(), file.lines.end(), "#pragma once") != file.lines.end();
  if (!once) findings.push_back({file.path, 0, "pragma-once", "a header without #pragma once"});
  for (std::size_t i = 0; i < file.code.size(); ++i) {
    // Inside a function it is nobody else's business.
    const std::string& code = file.code[i];
    if (!code.starts_with("using namespace")) continue;
    // Namespaces that hold nothing but literals are made to be opened.
    if (code.find("literals;") != std::string::npos || code.find("::units;") != std::string::npos) {
      continue;
    }
    findings.push_back({file.path, i + 1, "using-namespace",
                        "a header that empties a namespace into all who include it"});
  }
}

void check_todo(const SourceFile& file, Findings& findings) {
  if (!file.is_cpp()) return;
  static const std::regex todo(R"(\b(TODO|FIXME|XXX|HACK)\b(\(([a-z]*)\): \S)?)");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    // Texts may talk about it; a comment means it.
    if (file.code[i] == file.lines[i]) continue;
    const std::size_t comment = file.lines[i].find("//");
    if (comment == std::string::npos) continue;
    if (!contains_any(file.lines[i], {"TODO", "FIXME", "XXX", "HACK"})) continue;
    if (file.code[i].find('"') != std::string::npos) continue;
    const std::string text = file.lines[i].substr(comment);
    std::smatch match;
    if (!std::regex_search(text, match, todo)) continue;
    const std::string topic = match[3].str();
    const bool known = match[1].str() == "TODO" &&
                       std::find(kTopics.begin(), kTopics.end(), topic) != kTopics.end();
    if (!known) {
      findings.push_back({file.path, i + 1, "todo",
                          "write TODO(topic): sentence, with correctness, perf, security, test or "
                          "cleanup as topic"});
    } else if (topic == "correctness" || topic == "security") {
      findings.push_back({file.path, i + 1, "todo", "TODO(" + topic + ") must not reach main"});
    }
  }
}

void check_test_cases(const SourceFile& file, Findings& findings) {
  if (!file.is_cpp() || !file.path.starts_with("tests/")) return;
  static const std::regex name(R"~(^\s*TEST_CASE\("([^"]*)"\))~");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    std::smatch match;
    if (file.lines[i].find("TEST_CASE") == std::string::npos) continue;
    if (!std::regex_search(file.lines[i], match, name)) continue;
    if (match[1].str().find(';') == std::string::npos) continue;
    findings.push_back({file.path, i + 1, "test-name",
                        "a semicolon splits the name into two tests that run nothing and pass"});
  }
  static const std::regex main_macro(R"(#\s*define\s+DOCTEST_CONFIG_IMPLEMENT)");
  if (file.path == "tests/support/main.cc") return;
  for (std::size_t i = 0; i < file.code.size(); ++i) {
    if (file.code[i].find("DOCTEST") == std::string::npos) continue;
    if (!std::regex_search(file.code[i], main_macro)) continue;
    findings.push_back({file.path, i + 1, "test-main", "tests/support/main.cc has the only one"});
  }
}

// Machine paths, and the folder beside the clone that only the CI script may name. The words are
// put together here, so that this file does not contain them.
void check_places(const SourceFile& file, Findings& findings) {
  if (file.path == ".ci/run") return;
  static const std::string shared = std::string("../") + "shared";
  static const std::regex machine(R"((^|["'\s=(])/(work|farm|home/[a-z]+|root)/)");
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    if (file.lines[i].find(shared) != std::string::npos) {
      findings.push_back({file.path, i + 1, "place",
                          "the folder beside the clone is named in .ci/run only; tests read "
                          "STARLING_TEST_DATA"});
    }
    static const std::vector<std::string_view> hints{"work/", "farm/", "home/", "root/"};
    if (contains_any(file.lines[i], hints) && std::regex_search(file.lines[i], machine)) {
      findings.push_back({file.path, i + 1, "place", "a path of one machine"});
    }
  }
}

// What a comment calls the test of a thing is there.
void check_tested(const SourceTree& tree, Findings& findings) {
  static const std::regex tested(R"(^\s*// Tested:)");
  static const std::regex test(R"(tests/[\w/.-]*\.\w+)");
  std::set<std::string> paths;
  for (const SourceFile& file : tree) paths.insert(file.path);
  for (const SourceFile& file : tree) {
    if (!file.is_cpp()) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      if (line.find("Tested:") == std::string::npos || !std::regex_search(line, tested)) continue;
      for (std::sregex_iterator at(line.begin(), line.end(), test), end; at != end; ++at) {
        if (paths.contains(at->str())) continue;
        findings.push_back({file.path, i + 1, "tested", at->str() + " does not exist"});
      }
    }
  }
}

void check_folders(const SourceTree& tree, Findings& findings) {
  std::set<std::string> code_folders;
  std::map<std::string, const SourceFile*> pages;  // by their folder
  for (const SourceFile& file : tree) {
    if (file.file_name() == "README.md") pages[file.folder()] = &file;
    const std::string folder = file.folder();
    if (folder.empty()) continue;
    if (file.is_cpp() || file.path.ends_with(".capnp")) code_folders.insert(folder);
    if (folder == "deploy") code_folders.insert(folder);
    std::string_view rest = folder;
    while (!rest.empty()) {
      const std::string_view part = rest.substr(0, rest.find('/'));
      rest.remove_prefix(std::min(rest.size(), part.size() + 1));
      if (std::find(kVagueFolders.begin(), kVagueFolders.end(), part) == kVagueFolders.end()) {
        continue;
      }
      findings.push_back({file.path, 0, "vague-folder",
                          "'" + std::string(part) + "' names nothing: find out what it holds"});
    }
  }
  for (const std::string& folder : code_folders) {
    const bool test = folder == "tests" || folder.starts_with("tests/");
    const bool own_page =
        !test || std::find(kTestFolders.begin(), kTestFolders.end(), folder) != kTestFolders.end();
    if (!own_page || pages.contains(folder)) continue;
    // A small room may be described where one enters, in the page of the folder above.
    const std::size_t slash = folder.rfind('/');
    if (slash != std::string::npos) {
      const auto above = pages.find(folder.substr(0, slash));
      const std::string name = folder.substr(slash + 1) + "/";
      if (above != pages.end() &&
          std::any_of(above->second->lines.begin(), above->second->lines.end(),
                      [&](const auto& line) { return line.find(name) != std::string::npos; })) {
        continue;
      }
    }
    findings.push_back({folder, 0, "readme",
                        "no README.md (nor a word about it in the one above): what it is for, what "
                        "it must not do, which file to read "
                        "first, which thread it lives on"});
  }
}

struct Word {
  std::vector<std::string_view> hints;  // the pattern needs one of these
  std::string pattern;
  std::string_view instead;
  std::vector<std::string_view> only_in;  // beginnings of paths; empty: everywhere
};

const std::vector<Word>& words() {
  static const std::vector<std::string_view> kPeers{"transport/", "gossip/", "bootstrap/",
                                                    "training/"};
  static const std::vector<Word> kWords{
      {{"orker"}, R"(\b[wW]orkers?\b|\bworker_)", "node for a machine, thread for a thread", {}},
      {{"lave", "master", "oordinator"},
       R"(\b[sS]laves?\b|\bmaster[ _-]node\b|\b[cC]oordinator\b)",
       "every node is alike",
       {}},
      {{"world_size", "_rank"},
       R"(\bworld_size\b|\b(local|global|my|own|peer)_rank\b)",
       "nothing is numbered through: NodeId, and the members of a view",
       {}},
      {{"lient", "erver"},
       R"(\b[cC]lients?\b|\b[sS]ervers?\b)",
       "node, peer, sponsor, dialler, listener",
       kPeers},
  };
  return kWords;
}

}  // namespace

Findings check_words(const SourceTree& tree) {
  Findings findings;
  std::vector<std::regex> patterns;
  for (const Word& word : words()) patterns.emplace_back(word.pattern);
  for (const SourceFile& file : tree) {
    if (!file.is_cpp() && !file.path.ends_with(".capnp")) continue;
    // The comparative study calls its baselines by their own names; the rules name what they ban.
    if (file.path.find("baselines/") != std::string::npos) continue;
    if (file.path.starts_with("tests/tidy/")) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      for (std::size_t w = 0; w < patterns.size(); ++w) {
        const auto& only = words()[w].only_in;
        const bool applies =
            only.empty() || std::any_of(only.begin(), only.end(), [&](std::string_view start) {
              return file.path.starts_with(start);
            });
        std::smatch match;
        if (!applies || !contains_any(file.lines[i], words()[w].hints)) continue;
        if (!std::regex_search(file.lines[i], match, patterns[w])) continue;
        findings.push_back({file.path, i + 1, "word",
                            "'" + match.str() + "': say " + std::string(words()[w].instead)});
      }
    }
  }
  return findings;
}

Findings check_layout(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    check_blanks(file, findings);
    check_length(file, findings);
    check_header(file, findings);
    check_todo(file, findings);
    check_test_cases(file, findings);
    check_places(file, findings);
  }
  check_folders(tree, findings);
  check_tested(tree, findings);
  return findings;
}

}  // namespace starling::tidy
