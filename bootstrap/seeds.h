// Where to look for peers: what --peer, a file, an invite or the configuration say.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "transport/endpoint.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::bootstrap {

// Where a node listens unless it is told otherwise.
inline constexpr std::uint16_t kDefaultPort = 7700;
inline constexpr std::size_t kMaxSeeds = 256;
inline constexpr std::size_t kMaxSeedFileBytes = std::size_t{64} << 10;

enum class SeedKind : std::uint8_t {
  address,     // one endpoint; a name is resolved by whoever dials
  all_of_name  // dns:NAME:PORT: every address of the name is a seed of its own
};

struct Seed {
  SeedKind kind = SeedKind::address;
  transport::Endpoint endpoint;
  std::optional<NodeId> pin;  // from id@host:port: another identity is refused there
  std::string origin;         // the text it came from, for people

  friend bool operator==(const Seed& a, const Seed& b) {
    return a.kind == b.kind && a.endpoint == b.endpoint && a.pin == b.pin;
  }
};

// The content of a file named by '@file'; at most kMaxSeedFileBytes.
using ReadSeedFile = std::function<Result<std::string>(const std::string& path)>;

// The seeds of one --peer value: a comma list of host:port, id@host:port, dns:NAME:PORT and @file.
// A file has one such value on each line; '#' begins a comment; files do not name further files.
//
// Rule:    in the order of the text, without duplicates. dns:NAME takes kDefaultPort.
// Errors:  bad_config naming the value and what would be right; too_many above kMaxSeeds; what
//          `read` returns for a file.
[[nodiscard]] Result<std::vector<Seed>> parse_seeds(std::string_view text,
                                                    const ReadSeedFile& read);

}  // namespace starling::bootstrap
