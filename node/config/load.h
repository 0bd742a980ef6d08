// Reads the configuration from its layers: flags > environment > files > defaults.
#pragma once

#include "node/base/result.h"
#include "node/config/config.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// A configuration file is a page of text; a bigger one is a mistake.
inline constexpr std::size_t kMaxConfigFile = std::size_t{1} << 20;

// One key set by a flag, in the order of the command line. `flag` is what messages show.
struct FlagValue {
  std::string key;
  std::string flag;
  std::string text;
};

// Where the layers come from. The caller collects them, so that tests need no process of their own.
struct ConfigSources {
  std::vector<std::filesystem::path> files;                      // in order: later wins
  std::vector<std::pair<std::string, std::string>> environment;  // all variables, name and value
  std::vector<FlagValue> flags;
  // Result of default_state_dir(), for node.dir.
  std::string default_dir;
};

// The effective configuration.
//
// Rule:    the strongest layer that sets a key decides it whole (lists are replaced, not joined);
//          several flags of one list add up. Environment names are STARLING_PART__KEY; names
//          without a double underscore are somebody else's (Kubernetes makes such names for every
//          service) and are ignored; one with it that names no key is a notice. A name that ends in
//          _FILE and would name a key without that ending reads the value from that file.
// Errors:  bad_config for an unknown key (with file, line, column and the nearest key), a value
//          that is not allowed (with the key, the value and what is right), a file that is not
//          TOML, and keys that contradict each other; not_found, too_large, io_failed for a file
//          that cannot be read.
// Thread:  any; reads the files that it is given, nothing else.
[[nodiscard]] Result<Config> load_config(const ConfigSources& sources);

// Applies one TOML document to a configuration; `name` is what messages call it.
//
// Errors:  bad_config as above.
// Tested:  tests/fuzz/node/config_fuzz.cc.
[[nodiscard]] Result<void> apply_toml(Config& config, std::string_view text, std::string_view name);

// $XDG_STATE_HOME/starling, or ~/.local/state/starling, or /var/lib/starling without a home.
[[nodiscard]] std::string default_state_dir(
    const std::vector<std::pair<std::string, std::string>>& environment);

// The variables of this process.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> process_environment();

}  // namespace starling::node
