// `starling help [VERB]`, `starling completion bash`: from the tables of verbs and keys.
#include "node/cli/exit_code.h"
#include "node/cli/verb_list.h"
#include "node/config/keys.h"
#include "node/printable.h"

#include <fmt/format.h>

#include <ostream>

namespace starling::node {

namespace {

constexpr std::size_t kWidth = 96;
constexpr std::size_t kIndent = 30;

// `left`, then `text` wrapped in a column of its own.
std::string entry(std::string_view left, std::string_view text) {
  std::string out = fmt::format("  {}", left);
  const bool crowded = out.size() + 2 > kIndent;
  if (crowded) out += '\n';
  out.append(crowded ? kIndent : kIndent - out.size(), ' ');
  std::size_t column = kIndent;
  bool first = true;
  while (!text.empty()) {
    const auto end = text.find(' ');
    const auto word = text.substr(0, end);
    if (!first && column + 1 + word.size() > kWidth) {
      out += '\n';
      out.append(kIndent, ' ');
      column = kIndent;
      first = true;
    }
    if (!first) out += ' ';
    column += word.size() + (first ? 0 : 1);
    out += word;
    first = false;
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return out + '\n';
}

std::string key_entry(const KeySpec& key) {
  const Config defaults;
  auto help = std::string(key.help);
  const auto value = show_value(key, defaults);
  if (!value.empty()) help += fmt::format(" Default: {}.", value);
  if (key.scope == Scope::settings) help += " A setting of the swarm.";
  return entry(key.flag.empty() ? fmt::format("--set {}={}", key.name, key.value)
                                : fmt::format("{} {}", key.flag, key.value),
               help);
}

std::string usage_line(const Verb& verb) {
  std::string line = fmt::format("starling {}", verb.name);
  if (!verb.words.empty()) line += fmt::format(" {}", verb.words);
  if (verb.keys == KeyFlags::folder) line += " [--dir DIR]";
  for (const auto& flag : verb.flags)
    line += flag.value.empty() ? fmt::format(" [{}]", flag.flag)
                               : fmt::format(" [{} {}]", flag.flag, flag.value);
  if (verb.keys == KeyFlags::all) line += " [FLAGS]";
  return line;
}

// What a node that runs takes besides keys, and what its end says.
std::string surroundings_of_run() {
  std::string out =
      "\nSIGINT and SIGTERM leave the swarm, a second one ends at once. SIGHUP reads the lists of\n"
      "nodes, the certificate and the secret again at once, and not only when a file changed.\n"
      "SIGUSR1 writes a checkpoint now, SIGQUIT the node's state into the log (all of it into\n"
      "DIR/status.json), SIGUSR2 does nothing. Before the node is up SIGINT and SIGTERM end it\n"
      "with 0, and the others do nothing.\n"
      "\nexit codes:\n";
  for (const auto& [code, restart, meaning] : kExitCodes) {
    const bool again = restart == Restart::yes;
    out += entry(fmt::format("{}", number_of(code)),
                 fmt::format("{}{}", meaning, again ? "; worth a restart" : ""));
  }
  return out;
}

}  // namespace

std::string help_text() {
  std::string out =
      "starling trains one model on many machines without a leader.\n\n"
      "usage: starling VERB [FLAGS]\n\nverbs:\n";
  for (const auto& verb : all_verbs()) out += entry(verb.name, verb.summary);
  out +=
      "\nThe first thing to try:   starling demo\n"
      "A node of your own:       starling run --data DIR\n"
      "Another machine:          starling run --data DIR --peer HOST:7700 --secret-file FILE\n"
      "More about a verb:        starling help VERB\n";
  return out;
}

std::string help_text(const Verb& verb) {
  std::string out = fmt::format("{}\n\nusage: {}\n", verb.summary, usage_line(verb));
  if (!verb.flags.empty()) out += "\nflags of this verb:\n";
  for (const auto& flag : verb.flags)
    out += entry(
        flag.value.empty() ? std::string(flag.flag) : fmt::format("{} {}", flag.flag, flag.value),
        flag.help);
  if (verb.keys == KeyFlags::none) return out;
  out += "\nconfiguration (flags > environment > files > defaults):\n";
  out += entry("--config FILE", "A TOML file; repeat, later ones win.");
  out += entry("--set KEY=VALUE", "Any key, also those without a flag of their own; repeat.");
  std::string_view group;
  for (const auto& key : all_keys()) {
    if (verb.keys == KeyFlags::folder && key.name != "node.dir") continue;
    const auto own = key.name.substr(0, key.name.find('.'));
    if (verb.keys == KeyFlags::all && own != group) out += fmt::format("\n[{}]\n", own);
    group = own;
    out += key_entry(key);
    if (verb.keys != KeyFlags::all) continue;
    for (const auto& alias : flag_aliases())
      if (alias.key == key.name) out += entry(alias.flag, alias.help);
  }
  if (verb.keys == KeyFlags::all)
    out +=
        "\nIn the environment net.listen is STARLING_NET__LISTEN (two underscores); lists are\n"
        "separated by commas. STARLING_NET__LISTEN_FILE names a file that holds the value.\n"
        "Durations: 90s, 5m, 2h.\n";
  if (verb.name == "run") out += surroundings_of_run();
  return out;
}

namespace verbs {

int help(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  if (arguments.words.empty()) {
    terminal.out << help_text();
    return number_of(ExitCode::good);
  }
  const auto* verb = find_verb(arguments.words.front());
  if (verb == nullptr) {
    terminal.err << "starling help: " << unknown_verb(arguments.words.front())
                 << "\nsee `starling help`\n";
    return number_of(ExitCode::usage);
  }
  terminal.out << help_text(*verb);
  return number_of(ExitCode::good);
}

int completion(const Arguments& arguments, const Surroundings& surroundings) {
  const auto& terminal = surroundings.terminal;
  if (arguments.words.front() != "bash")
    return report("completion",
                  {Errc::bad_argument, Doing::parsing_arguments,
                   fmt::format("no script for {}: only for bash",
                               escape_value(arguments.words.front().substr(0, 80)))},
                  terminal);
  std::string names;
  std::string cases;
  for (const auto& verb : all_verbs()) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", verb.name);
    std::string flags = "--help";
    for (const auto& flag : verb.flags) flags += fmt::format(" {}", flag.flag);
    if (verb.keys != KeyFlags::none) flags += " --config --set";
    for (const auto& key : all_keys())
      if (!key.flag.empty() &&
          (verb.keys == KeyFlags::all || (verb.keys == KeyFlags::folder && key.name == "node.dir")))
        flags += fmt::format(" {}", key.flag);
    if (verb.keys == KeyFlags::all)
      for (const auto& alias : flag_aliases()) flags += fmt::format(" {}", alias.flag);
    cases += fmt::format("    {}) words=\"{}\" ;;\n", verb.name, flags);
  }
  terminal.out << fmt::format(
      "_starling() {{\n"
      "  local here=${{COMP_WORDS[COMP_CWORD]}} words=\"{}\"\n"
      "  if [ \"$COMP_CWORD\" -gt 1 ]; then\n"
      "    case ${{COMP_WORDS[1]}} in\n{}    esac\n"
      "  fi\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$here\")\n"
      "}}\n"
      "complete -o default -F _starling starling\n",
      names, cases);
  return number_of(ExitCode::good);
}

}  // namespace verbs

}  // namespace starling::node
