#include "node/access_files.h"

#include "node/state_dir.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

namespace starling::node {

namespace fs = std::filesystem;

AccessFiles::AccessFiles(AccessPaths paths, AllowList allow_list, Duration secret_overlap)
    : paths_(std::move(paths)), allow_list_(allow_list), secret_overlap_(secret_overlap) {}

AccessFiles::Trace AccessFiles::trace(const fs::path& file) {
  struct stat info{};
  if (::stat(file.c_str(), &info) != 0) return {};
  return {.inode = info.st_ino,
          .modified_s = info.st_mtim.tv_sec,
          .modified_ns = info.st_mtim.tv_nsec,
          .size = info.st_size};
}

AccessFiles::Traces AccessFiles::traces(WallTime now) const {
  Traces traces;
  traces.files[0] = trace(paths_.allow);
  traces.files[1] = trace(paths_.deny);
  if (!paths_.secret) return traces;
  traces.files[2] = trace(paths_.secret->current);
  traces.files[3] = trace(paths_.secret->next);
  traces.files[4] = trace(paths_.secret->previous);
  traces.previous_counts = previous_counts(*paths_.secret, secret_overlap_, now);
  return traces;
}

Result<std::optional<std::set<NodeId>>> AccessFiles::read_list(const fs::path& file,
                                                               bool was_there) {
  const auto text = read_whole(file, transport::kMaxPeerListBytes);
  if (!text && text.error().code == Errc::not_found) {
    if (!was_there) return std::nullopt;
    return fail(Errc::not_found, Doing::reading_config,
                file.string() + " is gone: put it back, or restart the node to be without it");
  }
  if (!text) return fail(text.error());
  struct stat info{};
  if (::stat(file.c_str(), &info) != 0 || (info.st_mode & 0022U) != 0)
    return fail(
        Errc::permission, Doing::reading_config,
        fmt::format("{} can be changed by others: chmod 644 {}", file.string(), file.string()));
  auto ids = transport::parse_peer_list(*text);
  if (!ids)
    return fail(ids.error().code, Doing::reading_config,
                fmt::format("{}: {}", file.string(), ids.error().detail));
  return std::optional(std::move(*ids));
}

Result<Access> AccessFiles::read(WallTime now) {
  // Taken first: a file that changes while it is read is read again.
  seen_ = traces(now);
  Access access;
  TRY(access.rules.allowed, read_list(paths_.allow, had_allow_));
  if (!access.rules.allowed && allow_list_ == AllowList::required)
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("swarm.mode = closed needs {}: one node id a line, which `starling id` "
                            "prints on the node that may join",
                            paths_.allow.string()));
  TRY(auto denied, read_list(paths_.deny, had_deny_));
  if (paths_.secret) {
    TRY(access.key, load_keys(*paths_.secret, secret_overlap_, now));
  }
  had_allow_ = access.rules.allowed.has_value();
  had_deny_ = denied.has_value();
  if (denied) access.rules.denied = std::move(*denied);
  return access;
}

std::optional<Result<Access>> AccessFiles::look(WallTime now) {
  if (traces(now) == seen_) return std::nullopt;
  return read(now);
}

}  // namespace starling::node
