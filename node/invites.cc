#include "node/invites.h"

#include "node/base/posix_file.h"
#include "transport/private_file.h"
#include "transport/secure_memory.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

namespace fs = std::filesystem;
using transport::Invite;
using transport::KeyId;

}  // namespace

Invites::Invites(fs::path folder, asio::thread_pool& files, Log& log)
    : folder_(std::move(folder)), files_(files), log_(log) {}

fs::path Invites::file_of(const KeyId& id) const { return folder_ / to_hex(id); }

void Invites::load(WallTime now) {
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    // What a process left that was killed while it wrote one (transport/private_file.h).
    if (at->path().filename().native().starts_with(".")) continue;
    load_file(at->path(), now);
  }
  const std::string dead = error ? dead_link(folder_) : std::string();
  if (!error || (error == std::errc::no_such_file_or_directory && dead.empty())) return;
  log_.warn("invite.unreadable",
            {{"folder", folder_.string()},
             {"why", dead.empty() ? error.message() : dead},
             {"did", open_.empty() ? "knows none of the invites in it; newcomers with one are "
                                     "refused"
                                   : fmt::format("knows only {} of the invites in it; newcomers "
                                                 "with another one are refused",
                                                 open_.size())},
             {"remedy",
              "make it a folder that this program may read, and start again; or remove it and make "
              "new invites (`starling invite`)"}});
}

void Invites::load_file(const fs::path& file, WallTime now) {
  const auto skip = [&](const std::string& why) {
    log_.warn("invite.unreadable",
              {{"file", file.string()}, {"why", why}, {"did", "left it alone"}});
  };
  if (open_.size() >= kMaxOpenInvites) return skip("there are too many");
  auto text =
      transport::read_private_file(file, transport::kMaxInviteText, transport::Ownership::own);
  if (!text) return skip(to_string(text.error()));
  const auto invite = transport::parse_invite(*text);
  transport::wipe(std::as_writable_bytes(std::span(*text)));
  if (!invite) return skip(invite.error().detail);
  const auto id = transport::id_of_key(invite->key);
  if (file != file_of(id)) return skip("its name is not its key's");
  if (invite->expires_s <= seconds_of(now)) {
    (void)remove_durably(file);  // it opens nothing either way
    return;
  }
  open_[id] = {invite->key, invite->expires_s};
}

std::vector<fs::path> Invites::sweep(WallTime now) {
  std::vector<fs::path> expired;
  for (const auto& [id, open] : open_)
    if (open.expires_s <= seconds_of(now)) expired.push_back(file_of(id));
  std::erase_if(open_,
                [&](const auto& entry) { return entry.second.expires_s <= seconds_of(now); });
  return expired;
}

transport::Task<Result<std::string>> Invites::issue(SwarmId swarm,
                                                    std::vector<transport::Endpoint> own_addresses,
                                                    WallTime expires) {
  assert_io_thread();
  auto expired = sweep(wall_now());
  if (open_.size() >= kMaxOpenInvites)
    co_return fail(
        Errc::too_many, Doing::controlling,
        fmt::format("{} invites are open; remove the files of those that nobody will use "
                    "from {}",
                    open_.size(), folder_.string()));
  std::erase_if(own_addresses, [](const auto& endpoint) {
    return endpoint.host.size() > transport::limits::kMaxAdvertisedHost;
  });
  if (own_addresses.empty())
    co_return fail(Errc::bad_config, Doing::controlling,
                   "no address of this node fits an invite: name a shorter one with --advertise");
  Invite invite;
  invite.swarm = swarm;
  invite.issuer = std::move(own_addresses);
  invite.key = transport::make_invite_key();
  invite.expires_s = seconds_of(expires);
  const auto id = transport::id_of_key(invite.key);
  auto text = transport::print_invite(invite);
  auto write = [folder = folder_, file = file_of(id), text,
                expired = std::move(expired)]() -> Result<void> {
    for (const auto& old : expired) (void)remove_durably(old);
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
      return fail(errc_of_errno(errno), Doing::writing_file,
                  folder.string() + ": " + std::generic_category().message(errno));
    return transport::create_private_file(file, text);
  };
  const Result<void> written = co_await transport::on_pool(files_, std::move(write));
  assert_io_thread();
  if (!written) co_return fail(written.error());
  open_[id] = {invite.key, invite.expires_s};
  co_return text;
}

std::optional<transport::noise::Key> Invites::find(const KeyId& id) {
  const auto found = open_.find(id);
  if (found == open_.end() || found->second.expires_s <= seconds_of(wall_now()))
    return std::nullopt;
  return found->second.key;
}

transport::Task<bool> Invites::redeem(KeyId id) {
  assert_io_thread();
  if (open_.erase(id) == 0) co_return false;
  auto remove = [file = file_of(id)] { return remove_durably(file) == 0; };
  const bool removed = co_await transport::on_pool(files_, std::move(remove));
  assert_io_thread();
  if (removed)
    log_.info("invite.used", {{"invite", to_hex(id)}});
  else
    log_.warn("invite.not_counted", {{"invite", to_hex(id)},
                                     {"why", "its file was removed, or cannot be"},
                                     {"did", "let nobody in with it"}});
  co_return removed;
}

}  // namespace starling::node
