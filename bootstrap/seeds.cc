#include "bootstrap/seeds.h"

#include <algorithm>
#include <utility>

namespace starling::bootstrap {
namespace {

constexpr std::string_view kDns = "dns:";
constexpr std::size_t kShown = 80;

std::unexpected<Error> bad_seed(std::string_view text, const std::string& remedy) {
  return fail(Errc::bad_config, Doing::reading_config,
              "peer '" + std::string(text.substr(0, kShown)) + "': " + remedy);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Calls `each` with every part between separators, trimmed.
template <class Each>
Result<void> for_parts(std::string_view text, char separator, Each each) {
  while (true) {
    const auto end = text.find(separator);
    TRY_VOID(each(trimmed(text.substr(0, end))));
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
}

Result<void> add(std::vector<Seed>& seeds, Seed seed) {
  if (std::ranges::find(seeds, seed) != seeds.end()) return {};
  if (seeds.size() >= kMaxSeeds)
    return fail(Errc::too_many, Doing::reading_config,
                "more than " + std::to_string(kMaxSeeds) + " peers to try; name fewer of them");
  seeds.push_back(std::move(seed));
  return {};
}

Result<void> add_one(std::vector<Seed>& seeds, std::string_view text) {
  if (text.empty()) return bad_seed(text, "an address is missing; give host:port");
  Seed seed;
  seed.origin = std::string(text);
  if (text.starts_with(kDns)) {
    seed.kind = SeedKind::all_of_name;
    auto endpoint = transport::parse_endpoint(text.substr(kDns.size()), kDefaultPort);
    if (!endpoint || endpoint->port == 0)
      return bad_seed(text, "after 'dns:' stands NAME:PORT, as in dns:starling-headless:7700");
    seed.endpoint = std::move(*endpoint);
    return add(seeds, std::move(seed));
  }
  if (text.starts_with("srv:"))
    return bad_seed(text,
                    "SRV records are not supported; use dns:NAME:PORT for all addresses of a name");
  auto target = transport::parse_dial_target(text, kDefaultPort);
  if (!target)
    return bad_seed(text, target.error().detail +
                              "; give host:port, [v6]:port, id@host:port, dns:NAME:PORT or @file");
  seed.endpoint = std::move(target->endpoint);
  seed.pin = target->pin;
  return add(seeds, std::move(seed));
}

Result<void> add_file(std::vector<Seed>& seeds, std::string_view path, const ReadSeedFile& read) {
  if (path.empty()) return bad_seed("@", "after '@' stands the name of a file with addresses");
  TRY(const auto content, read(std::string(path)));
  if (content.size() > kMaxSeedFileBytes)
    return fail(Errc::too_large, Doing::reading_config,
                "peer file '" + std::string(path.substr(0, kShown)) + "' has " +
                    std::to_string(content.size()) + " bytes where " +
                    std::to_string(kMaxSeedFileBytes) + " are the most");
  return for_parts(content, '\n', [&](std::string_view line) -> Result<void> {
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) return {};
    return for_parts(line, ',', [&](std::string_view part) -> Result<void> {
      if (part.starts_with('@')) return bad_seed(part, "a peer file cannot name another file");
      return add_one(seeds, part);
    });
  });
}

}  // namespace

Result<std::vector<Seed>> parse_seeds(std::string_view text, const ReadSeedFile& read) {
  std::vector<Seed> seeds;
  TRY_VOID(for_parts(text, ',', [&](std::string_view part) {
    if (part.starts_with('@')) return add_file(seeds, part.substr(1), read);
    return add_one(seeds, part);
  }));
  return seeds;
}

}  // namespace starling::bootstrap
