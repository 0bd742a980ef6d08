// `starling config show [--origin]`, `default`, `check [FILE]`.
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/config/keys.h"
#include "node/observe/status.h"
#include "node/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <ostream>

namespace starling::node::verbs {

namespace {

// Whether TOML reads it back as the same digits: it has no numbers from 2^63 on, and none that
// begin with a zero, as a node's name may.
bool is_toml_number(const std::string& text) {
  constexpr std::size_t kDigits = 18;  // below 2^63, whatever they are
  return !text.empty() && text.size() <= kDigits && (text.front() != '0' || text.size() == 1) &&
         std::ranges::all_of(
             text, [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
}

// A text as TOML writes it: numbers and words of the language bare, everything else quoted.
std::string toml_value(const std::string& text) {
  if (is_toml_number(text) || text == "true" || text == "false") return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 32 || c == 127)
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + '"';
}

std::string toml_of(const KeySpec& key, const Config& config) {
  const auto texts = shown_values(key, config);
  if (!key.list) return toml_value(texts.front());
  std::string out = "[";
  for (const auto& text : texts) out += (out.size() > 1 ? ", " : "") + toml_value(text);
  return out + "]";
}

std::string origin_of(const KeySpec& key, const Config& config) {
  const auto found = config.origins.find(key.name);
  if (found == config.origins.end()) return "default";
  auto text = printable(found->second.where);
  for (const auto& shadow : found->second.shadows)
    text += fmt::format("{}{}", &shadow == &found->second.shadows.front() ? " (shadows " : ", ",
                        printable(shadow));
  return found->second.shadows.empty() ? text : text + ")";
}

// The whole table as a TOML file; `comment` gives the text behind or above a value.
void print(const Config& config, std::ostream& out, bool with_help, bool with_origin) {
  std::string_view group;
  for (const auto& key : all_keys()) {
    const auto own = key.name.substr(0, key.name.find('.'));
    if (own != group) out << (group.empty() ? "" : "\n") << '[' << own << "]\n";
    group = own;
    if (with_help) out << "# " << key.help << '\n';
    const auto line = fmt::format("{} = {}", key.name.substr(own.size() + 1), toml_of(key, config));
    // A key without a value cannot be set to "nothing": show it as a comment.
    const auto texts = key.show(config);
    const bool empty = !key.list && texts.front().empty();
    out << (empty ? "# " : "") << line;
    if (with_origin) out << "   # " << origin_of(key, config);
    out << '\n';
  }
}

// What is wrong in the places that every verb reads was refused before this one began; what only
// means nothing is an error here.
int check(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  auto notices = arguments.config.notices;
  if (arguments.words.size() > 1) {
    const auto named = load_config({.files = {arguments.words[1]},
                                    .environment = surroundings.environment,
                                    .flags = arguments.keys,
                                    .default_dir = default_state_dir(surroundings.environment)});
    if (!named) {
      (void)report("config", named.error(), terminal);
      return number_of(ExitCode::usage);  // a file that is missing is a wrong word, too
    }
    notices = named->notices;
  }
  if (notices.empty()) terminal.out << "the configuration is right\n";
  return number_of(notices.empty() ? ExitCode::good : ExitCode::usage);
}

}  // namespace

int config(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  const auto& what = arguments.words.front();
  constexpr std::array<std::string_view, 3> kWords{"show", "default", "check"};
  if (const auto known = check_word(what, kWords); !known)
    return report("config", known.error(), terminal);
  if (what != "check" && arguments.words.size() > 1)
    return report(
        "config",
        {Errc::bad_argument, Doing::parsing_arguments,
         fmt::format("config {} takes no further words; a file is named with --config", what)},
        terminal);
  const bool origin = arguments.has("--origin");
  if (origin && what != "show")
    return report(
        "config",
        {Errc::bad_argument, Doing::parsing_arguments,
         fmt::format("--origin belongs to: config show; config {} does not look at it", what)},
        terminal);
  if (what == "show") {
    print(arguments.config, terminal.out, false, origin);
    return number_of(ExitCode::good);
  }
  if (what == "default") {
    print(Config{}, terminal.out, true, false);
    return number_of(ExitCode::good);
  }
  return check(arguments, surroundings);
}

}  // namespace starling::node::verbs
