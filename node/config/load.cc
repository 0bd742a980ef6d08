#include "node/config/load.h"

#include "node/config/keys.h"
#include "node/state_dir.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <toml++/toml.h>

namespace starling::node {

namespace {

constexpr std::string_view kPrefix = "STARLING_";
constexpr std::string_view kOfVariable = "env ";
constexpr std::string_view kNoColour = "NO_COLOR";  // no-color.org
constexpr std::size_t kShownValue = 80;

// A value as messages quote it: bounded, and never able to move a cursor.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, kShownValue)) out += (c >= 32 && c != 127) ? c : '?';
  return out + (text.size() > kShownValue ? "...\"" : "\"");
}

std::string unknown_key(std::string_view key) {
  const auto near = nearest_key(key);
  return fmt::format("unknown key {}{}", in_quotes(key),
                     near.empty() ? std::string() : fmt::format("; did you mean {}?", near));
}

// One key with the texts that one place gave it.
struct Setting {
  const KeySpec* key = nullptr;
  std::vector<std::string> texts;
  Layer layer = Layer::fallback;
  std::string where;
};

Result<void> apply(Config& config, Setting setting) {
  const auto& key = *setting.key;
  if (!key.list && setting.texts.size() != 1)
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{}: {} takes one value, not a list", setting.where, key.name));
  if (const auto read = key.read(config, setting.texts); !read) {
    const auto what = key.list ? std::string()
                               : fmt::format(" cannot be {}: it", in_quotes(setting.texts.front()));
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{}: {}{} needs {}", setting.where, key.name, what, read.error()));
  }
  auto& origin = config.origins[std::string(key.name)];
  if (origin.layer != Layer::fallback) origin.shadows.insert(origin.shadows.begin(), origin.where);
  origin.layer = setting.layer;
  origin.where = std::move(setting.where);
  return {};
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto comma = text.find(',');
    auto part = text.substr(0, comma);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    if (!part.empty()) parts.emplace_back(part);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return parts;
}

// The text of a TOML value that a key can read; nothing for tables and dates.
std::optional<std::string> text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return std::to_string(number->get());
  if (const auto* number = node.as_floating_point()) return show_number(number->get());
  if (const auto* word = node.as_boolean()) return std::string(word->get() ? "true" : "false");
  return std::nullopt;
}

// No key has more parts than two and no value is more than a list. The parser makes a table of each
// part and each bracket and goes through them by recursion: a line with 100,000 dots would end the
// process.
constexpr std::size_t kMaxNesting = 16;

// Finds what is nested too deep before the parser does: the parts of one key, and brackets within
// brackets. Strings and comments are passed over where TOML has them.
class NestingCheck {
 public:
  explicit NestingCheck(std::string_view text) : text_(text) {}

  // The line of it, from 1; 0 if there is none.
  std::size_t find() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        pass_string(c);
      } else if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
      } else if (c == '.') {
        if (++dots_ >= kMaxNesting) return line_;
      } else if (c == '\n' || c == '=' || c == ',') {
        if (c == '\n') ++line_;
        dots_ = 0;
      } else if (c == '[' || c == '{') {
        dots_ = 0;
        if (++brackets_ > kMaxNesting) return line_;
      } else if (c == ']' || c == '}') {
        dots_ = 0;
        if (brackets_ > 0) --brackets_;
      }
    }
    return 0;
  }

 private:
  // From a string's first quote to its last; one of a single line ends with the line at the latest.
  void pass_string(char quote) {
    const std::string three(3, quote);
    const bool of_lines = text_.substr(at_).starts_with(three);
    for (at_ += of_lines ? 3 : 1; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (of_lines && text_.substr(at_).starts_with(three)) {
        // Up to two quotes may stand before the three that end it.
        at_ += 2;
        for (int more = 0; more < 2 && text_.substr(at_ + 1).starts_with(quote); ++more) ++at_;
        return;
      }
      if (!of_lines && (c == quote || c == '\n')) return;
      if (c == '\\' && quote == '"' && !text_.substr(at_ + 1).starts_with('\n')) ++at_;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::size_t dots_ = 0;
  std::size_t brackets_ = 0;
};

class TomlReader {
 public:
  TomlReader(Config& config, std::string_view name) : config_(config), name_(name) {}

  Result<void> read(const toml::table& table, const std::string& prefix) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      const auto place = place_of(name.source());
      if (const auto* inner = node.as_table(); inner != nullptr && prefix.empty()) {
        if (!known_group(key)) return unknown_table(place, key);
        TRY_VOID(read(*inner, key + "."));
        continue;
      }
      TRY_VOID(read_key(key, node, place));
    }
    return {};
  }

 private:
  Result<void> read_key(const std::string& key, const toml::node& node, const std::string& place) {
    const auto* spec = find_key(key);
    if (spec == nullptr) return unknown(place, key);
    std::vector<std::string> texts;
    if (const auto* array = node.as_array()) {
      for (const auto& item : *array) {
        auto text = text_of(item);
        if (!text) return wrong_kind(place, key);
        texts.push_back(std::move(*text));
      }
    } else {
      auto text = text_of(node);
      if (!text) return wrong_kind(place, key);
      texts.push_back(std::move(*text));
    }
    return apply(config_, {spec, std::move(texts), Layer::file, place});
  }

  [[nodiscard]] std::string place_of(const toml::source_region& source) const {
    return fmt::format("{}:{}:{}", name_, source.begin.line, source.begin.column);
  }
  static bool known_group(std::string_view group) {
    return std::ranges::any_of(all_keys(), [&](const KeySpec& key) {
      return key.name.substr(0, key.name.find('.')) == group;
    });
  }
  static Result<void> unknown(const std::string& place, const std::string& key) {
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{}: {}", place, unknown_key(key)));
  }
  static Result<void> unknown_table(const std::string& place, const std::string& name) {
    std::vector<std::string_view> groups;
    for (const auto& key : all_keys()) {
      const auto group = key.name.substr(0, key.name.find('.'));
      if (groups.empty() || groups.back() != group) groups.push_back(group);
    }
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{}: unknown table [{}]{}", place, in_quotes(name),
                            did_you_mean(name, groups)));
  }
  static Result<void> wrong_kind(const std::string& place, const std::string& key) {
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{}: {} needs a text, a number, true, false or a list of those", place,
                            in_quotes(key)));
  }

  Config& config_;
  std::string_view name_;
};

Result<std::string> read_text(const std::filesystem::path& file) {
  auto text = read_whole(file, kMaxConfigFile);
  if (!text) text.error().doing = Doing::reading_config;
  return text;
}

// "NET__LISTEN" -> "net.listen"; empty if the name does not have that shape.
std::string key_of_variable(std::string_view name) {
  const auto gap = name.find("__");
  if (gap == std::string_view::npos) return {};
  std::string key;
  for (const char c : name.substr(0, gap))
    key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  key += '.';
  for (const char c : name.substr(gap + 2))
    key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return key;
}

Result<void> apply_variable(Config& config, const std::string& name, const std::string& value) {
  const auto key = key_of_variable(std::string_view(name).substr(kPrefix.size()));
  if (key.empty()) return {};
  std::string text = value;
  const auto* spec = find_key(key);
  if (spec == nullptr && key.ends_with("_file")) {
    spec = find_key(std::string_view(key).substr(0, key.size() - 5));
    if (spec != nullptr) {
      TRY(text, read_text(value));
      while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
    }
  }
  if (spec == nullptr) {
    config.notices.push_back(
        fmt::format("the variable {} means nothing: {}", name, unknown_key(key)));
    return {};
  }
  const auto before = config.origins.find(std::string(spec->name));
  // NO_COLOR is no second place for its key: more is said than that.
  const auto other = before == config.origins.end() ? std::string() : before->second.where;
  if (other.starts_with(fmt::format("{}{}", kOfVariable, kPrefix)))
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{} and {} both set {}: drop one of them",
                            other.substr(kOfVariable.size()), name, spec->name));
  auto texts = spec->list ? split_list(text) : std::vector<std::string>{text};
  return apply(
      config, {spec, std::move(texts), Layer::environment, fmt::format("{}{}", kOfVariable, name)});
}

Result<void> apply_flags(Config& config, const std::vector<FlagValue>& flags) {
  std::vector<Setting> settings;
  for (const auto& flag : flags) {
    const auto* spec = find_key(flag.key);
    if (spec == nullptr)
      return fail(Errc::bad_config, Doing::parsing_arguments,
                  fmt::format("{}: {}", flag.flag, unknown_key(flag.key)));
    const auto same = std::ranges::find(settings, spec, &Setting::key);
    auto texts = spec->list ? split_list(flag.text) : std::vector<std::string>{flag.text};
    if (same == settings.end()) {
      settings.push_back({spec, std::move(texts), Layer::flag, flag.flag});
    } else if (spec->list) {
      same->texts.insert(same->texts.end(), texts.begin(), texts.end());
    } else {  // the last one wins, as people expect who append to a script's command
      same->texts = std::move(texts);
      same->where = flag.flag;
    }
  }
  for (auto& setting : settings) TRY_VOID(apply(config, std::move(setting)));
  return {};
}

bool loopback(std::string_view address) {
  const auto host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

std::string where_of(const Config& config, std::string_view key) {
  const auto found = config.origins.find(key);
  return found == config.origins.end() ? "default" : found->second.where;
}

// What no single key can know.
Result<void> check_together(const Config& config) {
  const auto contradiction = [](std::string text) {
    return fail(Errc::bad_config, Doing::reading_config, std::move(text));
  };
  const auto& swarm = config.swarm;
  if (swarm.mode == SwarmMode::open && (!swarm.secret_file.empty() || !swarm.invite.empty()))
    return contradiction(fmt::format(
        "an open swarm has no secret: drop {} or {}", where_of(config, "swarm.mode"),
        where_of(config, swarm.secret_file.empty() ? "swarm.invite" : "swarm.secret_file")));
  if (!swarm.secret_file.empty() && !swarm.invite.empty())
    return contradiction(fmt::format("an invite brings the secret along: drop {} or {}",
                                     where_of(config, "swarm.secret_file"),
                                     where_of(config, "swarm.invite")));
  if (config.net.advertise.size() > 4)
    return contradiction(fmt::format("net.advertise has {} addresses, at most 4 are told to peers",
                                     config.net.advertise.size()));
  const auto& http = config.http;
  if (http.listen != "off" && !loopback(http.listen) && http.token_file.empty() && !http.exposed)
    return contradiction(fmt::format(
        "http.listen {} ({}) can be reached from other machines: set http.token_file, or "
        "http.exposed=true to show metrics to everyone",
        in_quotes(http.listen), where_of(config, "http.listen")));
  return {};
}

}  // namespace

Result<void> apply_toml(Config& config, std::string_view text, std::string_view name) {
  if (const auto line = NestingCheck(text).find(); line > 0)
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{}:{}: nested too deep: a key has at most {} parts, and at most {} "
                            "brackets are open at once; keys have two, as `starling config "
                            "default` shows them",
                            name, line, kMaxNesting, kMaxNesting));
  try {
    const toml::table document = toml::parse(text);
    return TomlReader(config, name).read(document, "");
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("{}:{}:{}: {}", name, at.line, at.column, error.description()));
  }
}

Result<Config> load_config(const ConfigSources& sources) {
  Config config;
  config.node.dir = sources.default_dir;
  for (const auto& file : sources.files) {
    TRY(const auto text, read_text(file));
    TRY_VOID(apply_toml(config, text, file.string()));
  }
  for (const auto& [name, value] : sources.environment)
    if (name == kNoColour && !value.empty())
      TRY_VOID(apply(config, {find_key("log.color"),
                              {"never"},
                              Layer::environment,
                              fmt::format("{}{}", kOfVariable, kNoColour)}));
  for (const auto& [name, value] : sources.environment)
    if (name.starts_with(kPrefix)) TRY_VOID(apply_variable(config, name, value));
  TRY_VOID(apply_flags(config, sources.flags));
  TRY_VOID(check_together(config));
  return config;
}

std::string default_state_dir(const std::vector<std::pair<std::string, std::string>>& environment) {
  const auto value_of = [&](std::string_view name) {
    const auto found = std::ranges::find(environment, name,
                                         [](const auto& p) -> std::string_view { return p.first; });
    return found == environment.end() ? std::string() : found->second;
  };
  // A relative path is no path here, as the XDG specification demands.
  if (const auto state = value_of("XDG_STATE_HOME"); state.starts_with('/'))
    return state + "/starling";
  if (const auto home = value_of("HOME"); home.starts_with('/'))
    return home + "/.local/state/starling";
  return "/var/lib/starling";
}

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

}  // namespace starling::node
