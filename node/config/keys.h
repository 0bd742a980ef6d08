// The table of configuration keys: the one place where a key is named, explained, read and shown.
#pragma once

#include "node/config/config.h"
#include "node/config/values.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// Whose business a key is.
enum class Scope : std::uint8_t {
  local,     // this node's own
  settings,  // part of what all nodes of a swarm train (rulings 23); adopted unless forced
};

// One key.
struct KeySpec {
  std::string_view name;   // "net.listen"
  std::string_view flag;   // "--listen", or empty: then `--set net.listen=...`
  std::string_view value;  // what help shows for the value: "HOST:PORT"
  Scope scope;
  // Meaning, unit, reason of the default, cost of raising it.
  std::string_view help;
  // Reads a value; lists take any number of texts, everything else exactly one.
  Parsed<void> (*read)(Config& config, std::span<const std::string> texts);
  // The present value as texts that `read` takes; empty for an empty list.
  std::vector<std::string> (*show)(const Config& config);
  bool list = false;
};

// All keys, grouped by their struct, in the order of the help.
[[nodiscard]] std::span<const KeySpec> all_keys();
// Null for an unknown key.
[[nodiscard]] const KeySpec* find_key(std::string_view name);
[[nodiscard]] std::string_view nearest_key(std::string_view name);

// A flag that stands for one value of a key ("--open" is swarm.mode=open).
struct FlagAlias {
  std::string_view flag;
  std::string_view key;
  std::string_view value;
  std::string_view help;
};
[[nodiscard]] std::span<const FlagAlias> flag_aliases();

// The value as one text for people: lists joined by commas, "auto" for what the program chooses.
[[nodiscard]] std::string show_value(const KeySpec& key, const Config& config);

}  // namespace starling::node
