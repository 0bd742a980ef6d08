#include "node/secret_files.h"

#include "node/base/fault.h"
#include "node/base/posix_file.h"
#include "node/state_dir.h"
#include "transport/secure_memory.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

namespace fs = std::filesystem;
using transport::SwarmSecret;

// The secret in a file that need not be there.
Result<std::optional<SwarmSecret>> load_if_there(const fs::path& file, const SwarmId& swarm) {
  auto secret = SwarmSecret::load(file);
  if (!secret && secret.error().code == Errc::not_found) return std::nullopt;
  if (!secret) return fail(std::move(secret).error());
  if (secret->swarm() != swarm)
    return fail(Errc::wrong_swarm, Doing::reading_file,
                fmt::format("{} belongs to swarm {}, this node to {}: remove it (`starling key "
                            "rotate` makes the next secret of a swarm)",
                            file.string(), short_form(secret->swarm()), short_form(swarm)));
  return std::optional<SwarmSecret>(std::move(*secret));
}

bool same_secret(const SwarmSecret& one, const SwarmSecret& other) {
  return one.epoch() == other.epoch() && std::ranges::equal(one.bytes(), other.bytes());
}

Result<void> write_secret(const fs::path& file, const SwarmSecret& secret) {
  auto text = secret.print();
  const auto written = write_whole(file, text, FileMode::secret);
  transport::wipe(std::as_writable_bytes(std::span(text)));
  return written;
}

}  // namespace

SecretFiles SecretFiles::beside(const fs::path& current) {
  return {current, current.string() + ".next", current.string() + ".previous"};
}

SecretFiles SecretFiles::ordered_in(const fs::path& dir) { return beside(dir / "secret.ordered"); }

Result<SecretFiles> in_force(const SecretFiles& given, const SecretFiles& ordered) {
  TRY(const SwarmSecret current, SwarmSecret::load(given.current));
  const auto epoch_of = [&](const fs::path& file) -> Result<std::uint64_t> {
    TRY(const auto secret, load_if_there(file, current.swarm()));
    return secret ? secret->epoch() : 0;
  };
  TRY(const std::uint64_t kept, epoch_of(ordered.current));
  const bool later = kept > current.epoch();
  const SecretFiles& other = later ? given : ordered;
  SecretFiles files = later ? ordered : given;
  TRY(const std::uint64_t own_next, epoch_of(files.next));
  TRY(const std::uint64_t other_next, epoch_of(other.next));
  if (other_next > std::max({own_next, kept, current.epoch()})) files.next = other.next;
  return files;
}

Result<void> begin_rotation(const SecretFiles& files, const transport::AdminKey* admin,
                            std::uint64_t revocations) {
  TRY(const SwarmSecret current, SwarmSecret::load(files.current));
  if (admin != nullptr && admin->swarm != current.swarm())
    return fail(
        Errc::wrong_swarm, Doing::signing,
        fmt::format("the admin key is of swarm {}, {} of swarm {}", short_form(admin->swarm),
                    files.current.string(), short_form(current.swarm())));
  const auto next = admin == nullptr ? current.rotated() : current.rotated(admin->key, revocations);
  const auto created = next.create(files.next);
  if (!created && created.error().code == Errc::already_exists)
    return fail(
        Errc::already_exists, Doing::writing_file,
        fmt::format("{} is there already, so a rotation is under way: copy it to the other "
                    "nodes and promote it (`starling key promote`), or remove it everywhere",
                    files.next.string()));
  return created;
}

Result<std::uint64_t> promote_next(const SecretFiles& files) {
  TRY(const SwarmSecret current, SwarmSecret::load(files.current));
  TRY(const auto next, load_if_there(files.next, current.swarm()));
  if (!next)
    return fail(Errc::not_found, Doing::reading_file,
                fmt::format("{}: there is no next secret; `starling key rotate` on one node makes "
                            "it, the others get a copy",
                            files.next.string()));
  if (same_secret(*next, current)) {
    if (const int error = remove_durably(files.next); error != 0 && error != ENOENT)
      return fail(errc_of_errno(error), Doing::writing_file,
                  fmt::format("{}: a copy of the secret in force, and cannot be removed: {}",
                              files.next.string(), std::generic_category().message(error)));
    return current.epoch();
  }
  if (next->epoch() <= current.epoch())
    return fail(
        Errc::bad_argument, Doing::reading_file,
        fmt::format("{} is of epoch {}, the secret in force of epoch {}: it is not the next "
                    "one; remove it",
                    files.next.string(), next->epoch(), current.epoch()));
  TRY_VOID(write_secret(files.previous, current));
  const bool refused = fault::maybe("secret.before_rename");
  if (refused || ::rename(files.next.c_str(), files.current.c_str()) != 0) {
    const int error = refused ? EIO : errno;
    return fail(errc_of_errno(error), Doing::writing_file,
                fmt::format("{}: cannot become {}: {}", files.next.string(), files.current.string(),
                            std::generic_category().message(error)));
  }
  const auto folder = files.current.has_parent_path() ? files.current.parent_path() : fs::path(".");
  if (const int error = flush_folder(folder); error != 0)
    return fail(errc_of_errno(error), Doing::writing_file, folder.string() + ": cannot be flushed");
  return next->epoch();
}

Result<std::uint64_t> promote_into(const SecretFiles& files, const SecretFiles& ordered) {
  const std::array copies{std::pair{&files.current, &ordered.current},
                          std::pair{&files.next, &ordered.next}};
  for (const auto& [from, to] : copies) {
    if (*from == *to) continue;
    TRY(const SwarmSecret secret, SwarmSecret::load(*from));
    TRY_VOID(write_secret(*to, secret));
  }
  return promote_next(ordered);
}

bool previous_counts(const SecretFiles& files, Duration overlap, WallTime now) {
  struct stat info{};
  if (::stat(files.previous.c_str(), &info) != 0) return false;
  const WallTime written{std::chrono::seconds(info.st_mtim.tv_sec)};
  return now - written < overlap;
}

Result<SecretsAtHand> load_secrets(const SecretFiles& files, Duration overlap, WallTime now) {
  TRY(SwarmSecret current, SwarmSecret::load(files.current));
  auto key = transport::SwarmKey::of(current);
  const SwarmId swarm = current.swarm();
  TRY(auto next, load_if_there(files.next, swarm));
  std::optional<std::string> ignored;
  if (next && next->epoch() <= current.epoch()) {
    ignored = fmt::format(
        "{} is of epoch {}, and {}, the secret in force, of epoch {}: it is no next one",
        files.next.string(), next->epoch(), files.current.string(), current.epoch());
    next.reset();
  }
  if (next) key.also_accept(*next);
  std::optional<SwarmSecret> previous;
  // It has an age where it is there; a link to a disk that is not mounted has none.
  if (auto dead = dead_link(files.previous); !dead.empty())
    return fail(Errc::permission, Doing::reading_file, std::move(dead));
  if (previous_counts(files, overlap, now)) {
    TRY(previous, load_if_there(files.previous, swarm));
    if (previous) key.also_accept(*previous);
  }
  const bool is_next = next.has_value();
  return SecretsAtHand{std::move(key), std::move(is_next ? *next : current), is_next,
                       previous.has_value(), std::move(ignored)};
}

Result<void> check_leftovers(const SecretFiles& files, const SwarmId& swarm) {
  for (const auto* file : {&files.current, &files.next, &files.previous})
    if (const auto left = load_if_there(*file, swarm); !left) return fail(left.error());
  return {};
}

}  // namespace starling::node
