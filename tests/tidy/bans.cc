#include "tests/tidy/rules.h"

#include <algorithm>
#include <regex>
#include <string_view>

namespace starling::tidy {

namespace {

struct Ban {
  std::string_view rule;
  std::vector<std::string_view> hints;   // the pattern needs one of these: finding them is cheap
  std::string pattern;                   // regular expression over code, comments and texts blanked
  std::string_view instead;              // what to write
  std::vector<std::string_view> except;  // beginnings of paths where it is right
};

// clang-format off
const std::vector<Ban>& bans() {
  static const std::vector<Ban> kBans{
      {"detached", {"detach"}, R"(\bdetached\b|\bthread\w*\.detach\(\))", "spawn it in a TaskGroup, or join the thread", {"transport/resolver.cc"}},
      {"sleep", {"sleep"}, R"(\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\()",
       "wait with a deadline on the io thread; in tests use virtual time, or poll() what you wait for", {}},
      {"random", {"rand", "random_device", "mt19937", "default_random"}, R"(\bstd::rand\b|\bsrand\s*\(|\brandom_device\b|\bmt19937|\bdefault_random_engine\b)",
       "take an Rng (node/base/random.h) as a parameter; for keys, libsodium in transport/", {"node/node.cc"}},
      {"wall-clock", {"system_clock", "gettimeofday", "time("}, R"(\bsystem_clock\b|\bgettimeofday\b|\btime\s*\(\s*(nullptr|NULL|0)\s*\))",
       "protocol and training know steady time only (node/base/clock.h); wall time is for node/", {"node/"}},
      {"clock", {"_clock"}, R"(\bsteady_clock::now\b|\bhigh_resolution_clock\b|\bclock_gettime\b)",
       "be told the time (TimePoint now), or ask a Clock (node/base/clock.h)", {"node/base/clock.h", "node/base/cpu_time.h", "node/base/sleep_time.h", "tests/e2e/"}},
      {"mutex", {"mutex>", "condition_variable>"}, R"(#\s*include\s*<(mutex|shared_mutex|condition_variable)>)",
       "include node/base/mutex.h, whose types clang checks", {"node/base/mutex.h"}},
      {"experimental", {"experimental"}, R"(\basio::experimental\b|asio/experimental/)",
       "include transport/task.h, which has as_result and with_deadline", {"transport/task.h"}},
      {"output", {"printf", "puts", "putchar", "std::cout"}, R"(\b(printf|vprintf|puts|putchar)\s*\(|\bfprintf\s*\(\s*stdout|\bstd::cout\b)",
       "log through a Log, or take the stream as a parameter: only a main() owns stdout", {}},
      {"thread-local", {"thread_local"}, R"(\bthread_local\b)", "make it a member of what the thread owns", {}},
      {"async", {"std::async", "std::promise", "std::future"}, R"(\bstd::async\b|\bstd::promise\b|\bstd::future\b)", "on_pool(), a Job effect, or a Slot", {}},
      {"assert", {"assert"}, R"(\bassert\s*\()", "STARLING_CHECK for our bugs, Result for the world's errors", {}},
      {"torch-load", {"load"}, R"(\btorch::(jit::)?load\s*\(|\bpickle_load\b)", "read safetensors (training/safetensors.h): pickles run code", {}},
      {"using-namespace", {"using"}, R"(\busing\s+namespace\s+std\s*;)", "name what you use", {}},
      {"exit", {"exit", "abort", "terminate"}, R"((^|[^\w])(std)?::(exit|_exit|abort|quick_exit|terminate)\s*\()",
       "return a Result; main() decides how the process ends", {"node/main.cc", "node/lifecycle.cc", "node/base/check.cc", "node/cli/demo_nodes.cc", "tests/"}},
      {"io-context-stop", {"stop"}, R"(\bio(_context)?_?\.stop\s*\()",
       "stop the TaskGroups and let run() return by itself", {"node/lifecycle.cc", "tests/"}},
      {"json-dump", {"dump"}, R"((\.|->)dump\s*\(\s*-?\d*\s*\))",
       "json_text() of node/printable.h: without an error handler dump() throws on what is not UTF-8", {"tests/"}},
      {"skipped-test", {"doctest::"}, R"(\bdoctest::(skip|may_fail|should_fail)\b)", "mend the test or delete it", {}},
  };
  return kBans;
}
// clang-format on

bool is_excepted(const Ban& ban, const SourceFile& file, bool has_main) {
  if (ban.rule == "output" && has_main) return true;
  return std::any_of(ban.except.begin(), ban.except.end(),
                     [&](std::string_view start) { return file.path.starts_with(start); });
}

// shared_ptr members, locals and aliases say above who the owners are. Parameters need not: their
// owner says it.
void check_shared_ptr(const SourceFile& file, Findings& findings) {
  static const std::regex owning(
      R"((^|[^(,\s]\s*|^\s*|\b(const|using|static|auto)\s+.*)std::shared_ptr<)");
  static const std::regex parameter(R"([(,]\s*(const\s+)?std::shared_ptr<)");
  for (std::size_t i = 0; i < file.code.size(); ++i) {
    const std::string& code = file.code[i];
    if (code.find("std::shared_ptr<") == std::string::npos) continue;
    if (std::regex_search(code, parameter) || !std::regex_search(code, owning)) continue;
    bool explained = file.lines[i].find("//") != std::string::npos;
    for (std::size_t back = 1; back <= 2 && back <= i; ++back) {
      explained = explained || file.lines[i - back].find("//") != std::string::npos;
    }
    if (explained) continue;
    findings.push_back({file.path, i + 1, "shared-ptr",
                        "a shared_ptr without a comment above that says who the owners are; a "
                        "unique_ptr or a value needs none"});
  }
}

}  // namespace

Findings check_bans(const SourceTree& tree) {
  std::vector<std::regex> patterns;
  for (const Ban& ban : bans()) patterns.emplace_back(ban.pattern);
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!file.is_cpp()) continue;
    const bool has_main = std::any_of(file.code.begin(), file.code.end(), [](const auto& line) {
      return line.starts_with("int main(");
    });
    for (std::size_t b = 0; b < patterns.size(); ++b) {
      const Ban& ban = bans()[b];
      if (is_excepted(ban, file, has_main)) continue;
      for (std::size_t i = 0; i < file.code.size(); ++i) {
        if (!contains_any(file.code[i], ban.hints)) continue;
        std::smatch match;
        if (!std::regex_search(file.code[i], match, patterns[b])) continue;
        findings.push_back({file.path, i + 1, std::string(ban.rule),
                            "'" + match.str() + "': " + std::string(ban.instead)});
      }
    }
    check_shared_ptr(file, findings);
  }
  return findings;
}

}  // namespace starling::tidy
