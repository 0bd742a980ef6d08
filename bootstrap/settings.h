// What all nodes of a swarm train, as text; its fingerprint; and who adopts whose.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace starling::bootstrap {

// Sorted key = value pairs. A value type: copies are the swarm's truth as far as a node knows it.
// What the keys mean is the node's business; here they are compared.
//
// Rule:    keys are [a-z0-9_.]{1,64}, values printable ASCII of at most 256 characters, at most 64
//          pairs. The canonical text is "key=value\n" in ascending order of the keys.
class Settings {
 public:
  static constexpr std::size_t kMaxKeys = 64;
  static constexpr std::size_t kMaxKeyBytes = 64;
  static constexpr std::size_t kMaxValueBytes = 256;
  static constexpr std::size_t kMaxText = kMaxKeys * (kMaxKeyBytes + kMaxValueBytes + 2);

  Settings() = default;
  // Errors:  bad_argument naming the key that breaks the rule.
  [[nodiscard]] static Result<Settings> from(std::map<std::string, std::string> values);
  // Errors:  bad_message unless the text is exactly canonical.
  [[nodiscard]] static Result<Settings> parse(std::string_view text);

  [[nodiscard]] const std::map<std::string, std::string>& values() const { return values_; }
  [[nodiscard]] std::string text() const;
  // BLAKE2b of a domain and the text.
  [[nodiscard]] Hash fingerprint() const;

  friend bool operator==(const Settings&, const Settings&) = default;

 private:
  std::map<std::string, std::string> values_;
};

// Whether a set of keys can be sent: at most kMaxKeys of valid keys.
[[nodiscard]] bool valid_keys(const std::set<std::string>& keys);

// One side of a comparison, from its Hello.
struct SettingsSide {
  Settings settings;
  std::set<std::string> forced;  // chosen by a person there: never given up
  // Members that train with these settings, the side itself included. Of the other side: as many
  // of those that it states as are seen here, for a number is easily said.
  std::uint64_t alive = 0;
  std::uint64_t samples = 0;  // P
};

enum class SettingsVerdict : std::uint8_t {
  same,
  adopt_theirs,
  they_adopt,
  refused,  // the side that should adopt has forced something else
};

struct SettingsDecision {
  SettingsVerdict verdict = SettingsVerdict::same;
  // For people: "lr 0.8 here, 1.7 there; img 96 here, 224 there". Empty for `same`.
  std::string diff;
  // For people, when refused: which of the differing keys were forced, and where.
  std::string forced;
};

// "key A here, B there; ..." for the keys that differ, at most eight of them, then how many more.
[[nodiscard]] std::string diff(const Settings& here, const Settings& there);

// Who adopts.
//
// Rule:    equal fingerprints: same. Otherwise more alive members win, then larger P, then the
//          smaller fingerprint; the loser adopts, unless a differing key is forced there (rulings
//          23). Both sides come to mirror-image decisions from the same two Hellos, or the one that
//          should adopt waits because it does not see the other's members yet; never do both adopt.
[[nodiscard]] SettingsDecision decide(const SettingsSide& here, const SettingsSide& there);

}  // namespace starling::bootstrap
