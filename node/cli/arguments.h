// One verb's row in the table, and what its command line said.
#pragma once

#include "node/base/result.h"
#include "node/cli/verbs.h"
#include "node/config/load.h"

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// Which configuration keys a verb takes as flags.
enum class KeyFlags : std::uint8_t {
  none,
  folder,  // --dir, for verbs that talk to a running node
  all,
};

// A flag of one verb that is no configuration key. Without `value` it is a switch.
struct VerbFlag {
  std::string_view flag;
  std::string_view value;
  std::string_view help;
};

struct Arguments;

// One verb: what help shows and what main calls.
struct Verb {
  std::string_view name;
  std::string_view words;    // what follows the name, in usage lines: "ADDR..."
  std::string_view summary;  // one line
  KeyFlags keys = KeyFlags::none;
  std::span<const VerbFlag> flags;
  std::size_t min_words = 0;
  std::size_t max_words = 0;
  int (*carry_out)(const Arguments& arguments, const Surroundings& surroundings) = nullptr;
};

// What was said.
struct Arguments {
  std::vector<std::string> words;
  // The verb's own flags that were given; a switch has an empty value.
  std::map<std::string, std::string, std::less<>> given;
  // Keys set by flags, in order.
  std::vector<FlagValue> keys;
  // The effective configuration; defaults for verbs that take no keys.
  Config config;

  [[nodiscard]] bool has(std::string_view flag) const { return given.contains(flag); }
};

// Splits the words behind a verb into flags and words, and loads the configuration.
//
// Errors:  bad_argument for an unknown flag (with the nearest one), a missing value or a wrong
//          number of words; the errors of load_config.
[[nodiscard]] Result<Arguments> parse_arguments(const Verb& verb,
                                                std::span<const std::string> words,
                                                const Surroundings& surroundings);

// The number behind a flag of the verb, or what is taken without it.
//
// Errors:  bad_argument, naming flag, value and range.
struct CountFlag {
  std::string_view flag;
  std::uint64_t fallback = 0;
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};
[[nodiscard]] Result<std::uint64_t> count_of(const Arguments& arguments, const CountFlag& flag);

// The word behind a verb's own flag; without the flag the first of `words`.
//
// Errors:  bad_argument, naming flag, value and words.
[[nodiscard]] Result<std::string> word_of(const Arguments& arguments, std::string_view flag,
                                          std::span<const std::string_view> words);

// All verbs, in the order of the help.
[[nodiscard]] std::span<const Verb> all_verbs();
[[nodiscard]] const Verb* find_verb(std::string_view name);
// "unknown verb stauts; did you mean status?"
[[nodiscard]] std::string unknown_verb(std::string_view name);
// Whether the word behind a verb is one of those that may stand there.
//
// Errors:  bad_argument: "no "scna": one of scan, verify; did you mean scan?"
[[nodiscard]] Result<void> check_word(std::string_view word,
                                      std::span<const std::string_view> words);

// The help of the program, and of one verb: from the table of verbs and the table of keys.
[[nodiscard]] std::string help_text();
[[nodiscard]] std::string help_text(const Verb& verb);
// Prints an error the way all verbs do, and gives its exit code.
[[nodiscard]] int report(std::string_view verb, const Error& error, const Terminal& terminal);

}  // namespace starling::node
