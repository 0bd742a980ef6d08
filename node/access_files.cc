#include "node/access_files.h"

#include "node/state_dir.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

namespace starling::node {

namespace fs = std::filesystem;

namespace {

// Whether reading the same file again may succeed: no descriptor was left, or the disk failed.
bool may_pass(Errc code) {
  return code == Errc::io_failed || code == Errc::no_memory || code == Errc::disk_full;
}

std::unexpected<Error> no_secret() {
  return fail(Errc::not_found, Doing::writing_file, "there is no secret here");
}

}  // namespace

AccessFiles::AccessFiles(AccessPaths paths, AllowList allow_list, Duration secret_overlap,
                         NodeId self)
    : paths_(std::move(paths)),
      in_force_(paths_.secret),
      allow_list_(allow_list),
      secret_overlap_(secret_overlap),
      self_(self) {}

AccessFiles::Trace AccessFiles::trace(const fs::path& file) {
  struct stat info{};
  // A link whose target went is another state than no file: it is read, and told.
  if (::stat(file.c_str(), &info) != 0 && ::lstat(file.c_str(), &info) != 0) return {};
  return {.inode = info.st_ino,
          .mode = info.st_mode,
          .owner = info.st_uid,
          .modified_s = info.st_mtim.tv_sec,
          .modified_ns = info.st_mtim.tv_nsec,
          .size = info.st_size};
}

AccessFiles::Traces AccessFiles::traces(WallTime now) const {
  Traces traces;
  traces.files[0] = trace(paths_.allow);
  traces.files[1] = trace(paths_.deny);
  traces.files[5] = trace(paths_.membership);
  traces.files[6] = trace(paths_.revoked);
  if (!paths_.secret) return traces;
  traces.files[2] = trace(paths_.secret->current);
  traces.files[3] = trace(paths_.secret->next);
  traces.files[4] = trace(paths_.secret->previous);
  traces.previous_counts[0] = previous_counts(*paths_.secret, secret_overlap_, now);
  if (!paths_.ordered) return traces;
  traces.files[7] = trace(paths_.ordered->current);
  traces.files[8] = trace(paths_.ordered->next);
  traces.files[9] = trace(paths_.ordered->previous);
  traces.previous_counts[1] = previous_counts(*paths_.ordered, secret_overlap_, now);
  return traces;
}

Result<std::optional<std::string>> AccessFiles::read_guarded(const fs::path& file,
                                                             std::size_t max_bytes,
                                                             bool was_there) {
  auto text = read_whole(file, max_bytes);
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
  return std::optional(std::move(*text));
}

Result<std::optional<std::set<NodeId>>> AccessFiles::read_list(const fs::path& file,
                                                               bool was_there) {
  TRY(const auto text, read_guarded(file, transport::kMaxPeerListBytes, was_there));
  if (!text) return std::nullopt;
  auto ids = transport::parse_peer_list(*text);
  if (!ids)
    return fail(ids.error().code, Doing::reading_config,
                fmt::format("{}: {}", file.string(), ids.error().detail));
  return std::optional(std::move(*ids));
}

Result<std::optional<transport::Membership>> AccessFiles::read_membership() const {
  if (paths_.membership.empty()) return std::nullopt;
  TRY(const auto text,
      read_guarded(paths_.membership, transport::limits::kMaxMembershipText, had_membership_));
  if (!text) return std::nullopt;
  auto membership = transport::parse_membership(*text);
  if (!membership)
    return fail(membership.error().code, Doing::reading_config,
                fmt::format("{}: {}", paths_.membership.string(), membership.error().detail));
  const NodeId& subject = membership->chain.own.node;
  if (subject != self_)
    return fail(Errc::wrong_identity, Doing::reading_config,
                fmt::format("{} is for node {}, and this is node {}: `starling key certify` makes "
                            "one for the id that `starling id` prints here",
                            paths_.membership.string(), short_form(subject), short_form(self_)));
  return std::optional(*membership);
}

Result<transport::Revocations> AccessFiles::read_revoked(
    const transport::Membership& membership) const {
  TRY(const auto text, read_guarded(paths_.revoked, transport::kMaxRevocationsText, had_revoked_));
  if (!text) return transport::Revocations{};
  auto list = transport::parse_revocations(*text);
  if (!list)
    return fail(list.error().code, Doing::reading_config,
                fmt::format("{}: {}", paths_.revoked.string(), list.error().detail));
  if (!transport::signed_by(membership.admin, *list, membership.swarm))
    return fail(Errc::bad_signature, Doing::reading_config,
                fmt::format("{} was not signed by the admin {} of this swarm",
                            paths_.revoked.string(), short_form(membership.admin)));
  return list;
}

Result<Access> AccessFiles::read(WallTime now) {
  // Taken first: a file that changes while it is read is read again.
  read_ = looked_ = traces(now);
  auto access = read_all(now);
  passing_.reset();
  if (!access && may_pass(access.error().code)) passing_ = access.error().detail;
  return access;
}

Result<Access> AccessFiles::read_all(WallTime now) {
  Access access;
  TRY(access.rules.allowed, read_list(paths_.allow, had_allow_));
  TRY(access.membership, read_membership());
  if (!access.rules.allowed && !access.membership && allow_list_ == AllowList::required)
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("swarm.mode = closed needs {}: one node id a line, which `starling id` "
                            "prints on the node that may join; or {}, which `starling key certify` "
                            "makes",
                            paths_.allow.string(), paths_.membership.string()));
  TRY(auto denied, read_list(paths_.deny, had_deny_));
  if (paths_.secret) {
    auto files = *paths_.secret;
    if (paths_.ordered) {
      TRY(files, in_force(*paths_.secret, *paths_.ordered));
    }
    TRY(access.secrets, load_secrets(files, secret_overlap_, now));
    in_force_ = std::move(files);
  }
  if (access.membership) {
    const auto& [swarm, admin, chain] = *access.membership;
    if (access.secrets && access.secrets->key.swarm() != swarm)
      return fail(
          Errc::wrong_swarm, Doing::reading_config,
          fmt::format("{} is for swarm {}, the secret for swarm {}: take another --dir, or remove "
                      "the file that is left of another swarm",
                      paths_.membership.string(), short_form(swarm),
                      short_form(access.secrets->key.swarm())));
    TRY(auto revoked, read_revoked(*access.membership));
    had_revoked_ = revoked.number > 0;
    access.rules.admin = {admin, swarm, std::move(revoked)};
  }
  had_allow_ = access.rules.allowed.has_value();
  had_deny_ = denied.has_value();
  had_membership_ = access.membership.has_value();
  if (denied) access.rules.denied = std::move(*denied);
  return access;
}

Result<void> AccessFiles::check_newcomer(const Access& access, const SecretFiles& secret,
                                         const SwarmId& swarm) const {
  if (access.membership && access.membership->swarm != swarm)
    return fail(Errc::wrong_swarm, Doing::reading_config,
                fmt::format("{} is for swarm {}, the invite for swarm {}: take another --dir, or "
                            "remove that file, and {} where it is there; the invite was not used",
                            paths_.membership.string(), short_form(access.membership->swarm),
                            short_form(swarm), paths_.revoked.string()));
  TRY_VOID(check_leftovers(secret, swarm));
  if (paths_.ordered) TRY_VOID(check_leftovers(*paths_.ordered, swarm));
  return {};
}

Result<fs::path> AccessFiles::keep_next(ByteView text) const {
  if (!in_force_) return no_secret();
  const auto& ordered = paths_.ordered;
  const bool in_dir = ordered && in_force_->current == ordered->current;
  const fs::path& next = in_dir ? ordered->next : paths_.secret->next;
  const auto written = write_whole(next, text, FileMode::secret);
  if (written) return next;
  if (in_dir || !ordered || written.error().code != Errc::permission) return fail(written.error());
  TRY_VOID(write_whole(ordered->next, text, FileMode::secret));
  return ordered->next;
}

Result<void> AccessFiles::promote() const {
  if (!in_force_) return no_secret();
  const auto& [current, next, previous] = *paths_.secret;
  if (in_force_->current == current && in_force_->next == next) {
    const auto promoted = promote_next(*paths_.secret);
    if (promoted) return {};
    if (!paths_.ordered || promoted.error().code != Errc::permission) return fail(promoted.error());
  }
  TRY_VOID(promote_into(*in_force_, *paths_.ordered));
  return {};
}

std::optional<Result<Access>> AccessFiles::look(WallTime now) {
  const Traces found = traces(now);
  const bool rests = std::exchange(looked_, found) == found;
  const bool changed = found != read_;
  if (!rests || (!changed && !passing_)) return std::nullopt;
  const auto told = changed ? std::nullopt : passing_;
  auto access = read(now);
  if (!access && told && access.error().detail == *told) return std::nullopt;
  return access;
}

}  // namespace starling::node
