#include "node/cli/arguments.h"

#include "node/cli/exit_code.h"
#include "node/config/keys.h"
#include "node/config/values.h"
#include "node/printable.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <ostream>

namespace starling::node {

namespace {

std::unexpected<Error> usage(std::string detail) {
  return fail(Errc::bad_argument, Doing::parsing_arguments, std::move(detail));
}

std::string quote(std::string_view text) { return escape_value(text.substr(0, 80)); }

// CLI11 with the flags of one verb; says what came, in the order in which it came.
class FlagParser {
 public:
  explicit FlagParser(const Verb& verb) : verb_(verb) {
    app_.set_help_flag();
    app_.allow_extras();
    if (verb.keys != KeyFlags::none) {
      add_value("--config", {});
      add_value("--set", {});
    }
    for (const auto& key : all_keys())
      if (!key.flag.empty() && takes(key)) add_value(key.flag, key.name);
    if (verb.keys == KeyFlags::all)
      for (const auto& alias : flag_aliases()) add_switch(alias.flag, &alias);
    for (const auto& flag : verb.flags) {
      if (flag.value.empty())
        add_switch(flag.flag, nullptr);
      else
        add_value(flag.flag, {});
    }
  }

  // Errors:  bad_argument.
  Result<void> parse(std::span<const std::string> words) {
    // CLI11 takes what it does not know for a flag's value where it begins with a dash; the shell's
    // way to say "the rest are words" is understood by it already.
    std::vector<std::string> reversed(words.rbegin(), words.rend());
    try {
      app_.parse(std::move(reversed));
    } catch (const CLI::ParseError& error) {
      return usage(printable(error.what()));
    }
    return {};
  }

  Result<Arguments> arguments(ConfigSources& sources) {
    Arguments out;
    for (const auto& word : app_.remaining()) {
      if (word.size() > 1 && word.front() == '-') return unknown_flag(word);
      out.words.push_back(word);
    }
    std::map<const CLI::Option*, std::size_t> seen;
    for (const auto* option : app_.parse_order()) {
      const auto flag = std::ranges::find(flags_, option, &Flag::option);
      if (flag == flags_.end()) continue;
      const auto index = seen[option]++;
      const std::string value =
          index < option->results().size() ? option->results()[index] : std::string();
      TRY_VOID(take(*flag, value, out, sources));
    }
    return out;
  }

 private:
  struct Flag {
    std::string name;
    std::string key;                   // the key it sets; empty for the verb's own flags
    const FlagAlias* alias = nullptr;  // the value it stands for
    const CLI::Option* option = nullptr;
  };

  [[nodiscard]] bool takes(const KeySpec& key) const {
    return verb_.keys == KeyFlags::all ||
           (verb_.keys == KeyFlags::folder && key.name == "node.dir");
  }

  void add_value(std::string_view name, std::string_view key) {
    auto& target = values_.emplace_back();
    auto* option = app_.add_option(std::string(name), target);
    option->allow_extra_args(false)->expected(1)->multi_option_policy(
        CLI::MultiOptionPolicy::TakeAll);
    flags_.push_back({std::string(name), std::string(key), nullptr, option});
  }
  void add_switch(std::string_view name, const FlagAlias* alias) {
    const auto* option = app_.add_flag(std::string(name));
    flags_.push_back(
        {std::string(name), alias != nullptr ? std::string(alias->key) : "", alias, option});
  }

  static Result<void> take(const Flag& flag, const std::string& value, Arguments& out,
                           ConfigSources& sources) {
    if (flag.name == "--config") {
      sources.files.emplace_back(value);
    } else if (flag.name == "--set") {
      const auto equals = value.find('=');
      if (equals == std::string::npos || equals == 0)
        return usage(fmt::format("--set {} needs the form key=value", quote(value)));
      const auto key = value.substr(0, equals);
      out.keys.push_back({key, "--set " + printable(key), value.substr(equals + 1)});
    } else if (flag.alias != nullptr) {
      out.keys.push_back({flag.key, flag.name, std::string(flag.alias->value)});
    } else if (!flag.key.empty()) {
      out.keys.push_back({flag.key, flag.name, value});
    } else {
      out.given[flag.name] = value;
    }
    return {};
  }

  [[nodiscard]] std::unexpected<Error> unknown_flag(const std::string& word) const {
    const auto name = word.substr(0, word.find('='));
    if (name == "--secret")
      return usage(
          "--secret is not a flag: everybody on this machine can read a command line. Put the "
          "secret into a file with mode 0600 and give --secret-file FILE");
    std::vector<std::string_view> names{"--help"};
    for (const auto& flag : flags_) names.push_back(flag.name);
    auto hint = did_you_mean(name, names);
    if (hint.empty()) hint = key_without_flag(name);
    return usage(fmt::format("unknown flag {}{}", quote(name), hint));
  }

  // "--max-bad": a key that has no flag of its own.
  [[nodiscard]] std::string key_without_flag(std::string_view name) const {
    if (verb_.keys != KeyFlags::all || !name.starts_with("--")) return {};
    std::string wanted(name.substr(2));
    std::ranges::replace(wanted, '-', '_');
    for (const auto& key : all_keys())
      if (key.flag.empty() && (key.name == wanted || key.name.ends_with("." + wanted)))
        return fmt::format("; did you mean --set {}={}?", key.name, key.value);
    return {};
  }

  const Verb& verb_;
  CLI::App app_;
  std::deque<std::vector<std::string>> values_;  // stable addresses for CLI11
  std::vector<Flag> flags_;
};

// "--data" as the last word, or before another flag.
std::optional<std::string> flag_without_value(const Verb& verb,
                                              std::span<const std::string> words) {
  const auto takes_value = [&](std::string_view word) {
    if (verb.keys != KeyFlags::none && (word == "--config" || word == "--set")) return true;
    for (const auto& key : all_keys())
      if (!key.flag.empty() && key.flag == word) return true;
    return std::ranges::any_of(
        verb.flags, [&](const VerbFlag& flag) { return flag.flag == word && !flag.value.empty(); });
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!takes_value(words[i])) continue;
    if (i + 1 == words.size()) return words[i];
    ++i;
  }
  return std::nullopt;
}

}  // namespace

Result<Arguments> parse_arguments(const Verb& verb, std::span<const std::string> words,
                                  const Surroundings& surroundings) {
  if (const auto lonely = flag_without_value(verb, words))
    return usage(fmt::format("{} needs a value", *lonely));
  FlagParser parser(verb);
  TRY_VOID(parser.parse(words));
  ConfigSources sources;
  TRY(auto arguments, parser.arguments(sources));
  const auto count = arguments.words.size();
  if (count < verb.min_words)
    return usage(fmt::format("needs {}: starling {} {}", verb.words, verb.name, verb.words));
  if (count > verb.max_words)
    return usage(verb.max_words == 0
                     ? fmt::format("takes no words beside its flags, but there is {}",
                                   quote(arguments.words.front()))
                     : fmt::format("takes at most {} {}, not {}", verb.max_words,
                                   verb.max_words == 1 ? "word" : "words", count));
  if (verb.keys == KeyFlags::none) return arguments;
  sources.environment = surroundings.environment;
  sources.flags = arguments.keys;
  sources.default_dir = default_state_dir(surroundings.environment);
  TRY(arguments.config, load_config(sources));
  return arguments;
}

int report(std::string_view verb, const Error& error, const Terminal& terminal) {
  const auto code = exit_code_of(error);
  terminal.err << "starling " << verb << ": " << printable(error.detail) << '\n';
  if (error.code == Errc::bad_argument)
    terminal.err << "see `starling help" << (verb.empty() ? "" : " ") << verb << "`\n";
  return number_of(code);
}

Result<void> check_word(std::string_view word, std::span<const std::string_view> words) {
  if (std::ranges::find(words, word) != words.end()) return {};
  return fail(Errc::bad_argument, Doing::parsing_arguments,
              fmt::format("no {}: one of {}{}", quote(word), fmt::join(words, ", "),
                          did_you_mean(word, words)));
}

Result<std::uint64_t> count_of(const Arguments& arguments, const CountFlag& flag) {
  const auto given = arguments.given.find(flag.flag);
  if (given == arguments.given.end()) return flag.fallback;
  const auto value = parse_count(given->second, flag.low, flag.high);
  if (!value)
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                fmt::format("{} {} is not {}", flag.flag, escape_value(given->second.substr(0, 80)),
                            value.error()));
  return *value;
}

Result<std::string> word_of(const Arguments& arguments, std::string_view flag,
                            std::span<const std::string_view> words) {
  const auto given = arguments.given.find(flag);
  if (given == arguments.given.end()) return std::string(words.front());
  if (std::ranges::find(words, given->second) != words.end()) return given->second;
  return fail(
      Errc::bad_argument, Doing::parsing_arguments,
      fmt::format("{} {} needs one of {}{}", flag, escape_value(given->second.substr(0, 80)),
                  fmt::join(words, ", "), did_you_mean(given->second, words)));
}

}  // namespace starling::node
