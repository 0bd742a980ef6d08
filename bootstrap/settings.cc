#include "bootstrap/settings.h"

#include "node/base/hash.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace starling::bootstrap {
namespace {

constexpr std::string_view kDomain = "starling/settings/1\n";
constexpr std::size_t kShownKeys = 8;

bool valid_key(std::string_view key) {
  return !key.empty() && key.size() <= Settings::kMaxKeyBytes &&
         std::ranges::all_of(key, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
         });
}

bool valid_value(std::string_view value) {
  return value.size() <= Settings::kMaxValueBytes &&
         std::ranges::all_of(value, [](char c) { return c >= ' ' && c <= '~'; });
}

struct Difference {
  std::string key;
  std::string here;
  std::string there;
};

std::vector<Difference> differences(const Settings& here, const Settings& there) {
  std::set<std::string> keys;
  for (const auto& [key, value] : here.values()) keys.insert(key);
  for (const auto& [key, value] : there.values()) keys.insert(key);
  const auto value_of = [](const Settings& settings, const std::string& key) {
    const auto at = settings.values().find(key);
    return at == settings.values().end() ? std::string("(none)") : at->second;
  };
  std::vector<Difference> found;
  for (const auto& key : keys) {
    Difference difference{key, value_of(here, key), value_of(there, key)};
    if (difference.here != difference.there) found.push_back(std::move(difference));
  }
  return found;
}

std::string forced_among(const std::vector<Difference>& differing,
                         const std::set<std::string>& forced) {
  std::string text;
  for (const auto& difference : differing)
    if (forced.contains(difference.key)) text += (text.empty() ? "" : ", ") + difference.key;
  return text;
}

}  // namespace

Result<Settings> Settings::from(std::map<std::string, std::string> values) {
  const auto refuse = [](const std::string& why) {
    return fail(Errc::bad_argument, Doing::joining, why);
  };
  if (values.size() > kMaxKeys)
    return refuse(std::to_string(values.size()) + " settings where " + std::to_string(kMaxKeys) +
                  " are the most");
  for (const auto& [key, value] : values) {
    if (!valid_key(key)) return refuse("'" + key.substr(0, 80) + "' is no name of a setting");
    if (!valid_value(value)) return refuse("the value of '" + key + "' cannot be a setting");
  }
  Settings settings;
  settings.values_ = std::move(values);
  return settings;
}

Result<Settings> Settings::parse(std::string_view text) {
  const auto refuse = [](const std::string& why) {
    return fail(Errc::bad_message, Doing::reading_message, "settings: " + why);
  };
  if (text.size() > kMaxText) return refuse(std::to_string(text.size()) + " bytes are too many");
  std::map<std::string, std::string> values;
  std::string_view previous;
  while (!text.empty()) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return refuse("the last line has no end");
    const auto line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) return refuse("a line without '='");
    const auto key = line.substr(0, equals);
    if (!values.empty() && key <= previous) return refuse("keys out of order");
    previous = key;
    values.emplace(key, line.substr(equals + 1));
    if (values.size() > kMaxKeys) return refuse("too many keys");
  }
  auto settings = from(std::move(values));
  if (!settings) return refuse(settings.error().detail);
  return settings;
}

std::string Settings::text() const {
  std::string text;
  for (const auto& [key, value] : values_) {
    text += key;
    text += '=';
    text += value;
    text += '\n';
  }
  return text;
}

Hash Settings::fingerprint() const { return Hasher().add(kDomain).add(text()).finish(); }

bool valid_keys(const std::set<std::string>& keys) {
  return keys.size() <= Settings::kMaxKeys &&
         std::ranges::all_of(keys, [](const std::string& key) { return valid_key(key); });
}

std::string diff(const Settings& here, const Settings& there) {
  const auto found = differences(here, there);
  std::string text;
  for (std::size_t i = 0; i < std::min(found.size(), kShownKeys); ++i) {
    if (i > 0) text += "; ";
    text += found[i].key + " " + found[i].here + " here, " + found[i].there + " there";
  }
  if (found.size() > kShownKeys)
    text += "; and " + std::to_string(found.size() - kShownKeys) + " more";
  return text;
}

SettingsDecision decide(const SettingsSide& here, const SettingsSide& there) {
  SettingsDecision decision;
  const Hash own = here.settings.fingerprint();
  const Hash other = there.settings.fingerprint();
  if (own == other) return decision;
  decision.diff = diff(here.settings, there.settings);
  // The larger tuple wins; of two fingerprints the smaller one does, so they change places.
  const bool we_win =
      std::tie(here.alive, here.samples, other) > std::tie(there.alive, there.samples, own);
  const auto differing = differences(here.settings, there.settings);
  const auto forced = forced_among(differing, we_win ? there.forced : here.forced);
  if (!forced.empty()) {
    decision.verdict = SettingsVerdict::refused;
    decision.forced = forced + (we_win ? " forced there" : " forced here");
    return decision;
  }
  decision.verdict = we_win ? SettingsVerdict::they_adopt : SettingsVerdict::adopt_theirs;
  return decision;
}

}  // namespace starling::bootstrap
