// `starling config show [--origin]`, `default`, `check`.
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/config/keys.h"
#include "node/observe/status.h"
#include "node/printable.h"

#include <fmt/format.h>

#include <algorithm>
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

}  // namespace

int config(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  const auto& what = arguments.words.front();
  const bool origin = arguments.has("--origin");
  if (origin && what != "show")
    return report("config",
                  {Errc::bad_argument, Doing::parsing_arguments,
                   fmt::format("--origin belongs to: config show; config {} does not look at it",
                               printable(what))},
                  terminal);
  if (what == "show") {
    print(arguments.config, terminal.out, false, origin);
    return number_of(ExitCode::good);
  }
  if (what == "default") {
    print(Config{}, terminal.out, true, false);
    return number_of(ExitCode::good);
  }
  if (what == "check") {
    // What is wrong was refused before this verb began; what only means nothing is an error here.
    if (arguments.config.notices.empty()) terminal.out << "the configuration is right\n";
    return number_of(arguments.config.notices.empty() ? ExitCode::good : ExitCode::usage);
  }
  return report("config",
                {Errc::bad_argument, Doing::parsing_arguments,
                 fmt::format("no \"{}\": show, default or check", what)},
                terminal);
}

}  // namespace starling::node::verbs
