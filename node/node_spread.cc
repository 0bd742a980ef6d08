// The admin's word and the next secret: what Spread decides, carried out on files and sessions.
#include "node/base/posix_file.h"
#include "node/node.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

namespace starling::node {

namespace {

// What a person does about a secret that could not be changed. What is in a file, and not the disk,
// is named with its remedy by the error.
std::string_view remedy_of(Errc code) {
  const bool is_of_disk = code == Errc::io_failed || code == Errc::disk_full ||
                          code == Errc::permission || code == Errc::not_found;
  return is_of_disk ? "see that DIR and the folder of the secret have space and can be written"
                    : "put the files of the secret right (`starling key show` lists them)";
}

}  // namespace

void Node::feed_spread(Access& access) {
  if (!parts_.membership || !access.secrets) {
    spread_.reset();
    return;
  }
  const TimePoint now = clock_.now();
  const auto& membership = *parts_.membership;
  const bool begins = !spread_ || spread_->admin() != membership.admin;
  if (begins)
    spread_.emplace(SpreadSelf{.admin = membership.admin,
                               .swarm = parts_.swarm,
                               .signer = parts_.identity,
                               .verifier = verifier_,
                               .overlap = config_.swarm.secret_overlap});
  carry_out(spread_->on_files(
      now, rules_.admin->revoked,
      {access.secrets->newest, access.secrets->is_next, access.secrets->previous}));
  if (!begins) return;
  for (const auto& session : transport_.sessions())
    carry_out(spread_->on_session_up(now, session.peer));
}

void Node::hear_access(const NodeId& peer, const transport::Message& message) {
  // Without an admin of our own there is nobody whose word that could be.
  if (spread_) carry_out(spread_->on_message(clock_.now(), peer, message.type, message.body));
}

void Node::tick_spread(TimePoint now) {
  if (!spread_) return;
  if (now >= next_certificate_check_) {
    next_certificate_check_ = now + std::chrono::hours(1);
    check_own_certificate();
  }
  SpreadMembers members;
  for (const auto& member : gossip_.membership().members()) {
    if (member.state == gossip::MemberState::left) continue;
    members.known.insert(member.record.id);
    if (member.state != gossip::MemberState::dead) members.alive.insert(member.record.id);
  }
  carry_out(spread_->on_tick(now, members));
}

void Node::carry_out(SpreadEffects effects) {
  for (auto& effect : effects) {
    if (auto* send = std::get_if<SendAccess>(&effect)) {
      const auto to = send->to;
      const auto sent = transport_.send(
          to, {.type = send->type, .body = std::move(send->body), .attachment = nullptr});
      if (!sent)
        log_.debug("access.not_sent", {{"peer", short_form(to)}, {"why", to_string(sent.error())}});
    } else if (auto* use = std::get_if<UseRevocations>(&effect)) {
      use_revocations(std::move(use->list));
    } else if (auto* keep = std::get_if<KeepNextSecret>(&effect)) {
      tasks_.spawn("keep-next-secret", [this, text = std::move(keep->text)]() mutable {
        return keep_next_secret(std::move(text));
      });
    } else if (auto* promote = std::get_if<PromoteSecret>(&effect)) {
      log_.info("secret.promoting", {{"why", promote->why}});
      tasks_.spawn("promote-secret", [this] { return promote_secret(); });
    } else if (std::holds_alternative<DropPreviousSecret>(effect)) {
      tasks_.spawn("drop-secret", [this] { return drop_previous_secret(); });
    } else if (auto* end = std::get_if<EndSession>(&effect)) {
      transport_.close(end->peer, std::move(end->why));
    } else if (const auto* warning = std::get_if<SpreadWarning>(&effect)) {
      log_.warn(warning->event, {{"what", warning->what}});
    }
  }
}

void Node::use_revocations(transport::Revocations list) {
  log_.info(
      "revocations.taken",
      {{"number", list.number}, {"nodes", list.nodes.size()}, {"serials", list.serials.size()}});
  parts_.events.append(
      "revocations",
      {{"number", list.number}, {"nodes", list.nodes.size()}, {"serials", list.serials.size()}});
  auto rules = rules_;
  rules.admin->revoked = list;
  use_rules(std::move(rules));
  ++lists_to_keep_;
  tasks_.spawn("revocations", [this, list = std::move(list)]() mutable {
    return keep_revocations(std::move(list));
  });
}

transport::Task<> Node::keep_revocations(transport::Revocations list) {
  auto write = [file = parts_.dir.revoked(), list = std::move(list)]() -> Result<void> {
    TRY(const auto text, transport::print_revocations(list));
    return write_whole(file, text);
  };
  const Result<void> written = co_await transport::on_pool(files_, std::move(write));
  assert_io_thread();
  --lists_to_keep_;
  if (!written)
    log_.warn("revocations.not_kept",
              {{"why", to_string(written.error())}, {"did", "obeys the list until it ends"}});
}

// What all changes of the secret's files end with: their new content in force, or a warning.
void Node::after_secret(const Result<void>& changed, std::string_view what) {
  if (changed) return reload_access(Read::always);
  const auto pause = spread_ ? spread_->on_files_failed(clock_.now()) : Duration{};
  log_.warn("secret.not_changed",
            {{"what", what},
             {"why", to_string(changed.error())},
             {"did", fmt::format("goes on with the secrets of before; tries again after {} s",
                                 std::chrono::duration_cast<std::chrono::seconds>(pause).count())},
             {"do", remedy_of(changed.error().code)}});
}

transport::Task<> Node::keep_next_secret(Bytes text) {
  auto write = [this, &text] {
    auto written = parts_.access_files.keep_next(text);
    transport::wipe(text);
    return written;
  };
  const auto written = co_await transport::on_pool(files_, std::move(write));
  assert_io_thread();
  if (written) log_.info("secret.next_kept", {{"file", written->string()}});
  after_secret(written ? Result<void>() : fail(written.error()),
               "the next secret, which the admin ordered");
}

transport::Task<> Node::promote_secret() {
  auto promote = [this]() -> Result<void> {
    auto promoted = parts_.access_files.promote();
    // Done by a person meanwhile, or by a node that has the same files.
    if (!promoted && promoted.error().code != Errc::not_found)
      return fail(std::move(promoted).error());
    return {};
  };
  const Result<void> promoted = co_await transport::on_pool(files_, std::move(promote));
  assert_io_thread();
  after_secret(promoted, "the promotion of the next secret");
}

transport::Task<> Node::drop_previous_secret() {
  auto drop = [this]() -> Result<void> {
    const auto& files = parts_.access_files.secret();
    if (!files) return {};
    if (const int error = remove_durably(files->previous); error != 0 && error != ENOENT)
      return fail(errc_of_errno(error), Doing::writing_file,
                  files->previous.string() + ": cannot be removed durably");
    return {};
  };
  const Result<void> dropped = co_await transport::on_pool(files_, std::move(drop));
  assert_io_thread();
  if (dropped) log_.info("secret.previous_ended", {{"why", "every member holds the new one"}});
  after_secret(dropped, "the end of the previous secret");
}

void Node::fill_access_status() {
  auto& shown = figures_.access;
  shown = {};
  if (!parts_.membership) return;
  const auto& [swarm, admin, chain] = *parts_.membership;
  shown.admin = to_hex(admin.view());
  shown.certificate = certificate_status(chain);
  if (!spread_) return;
  const auto& list = spread_->revocations();
  shown.revocations = list.number;
  shown.revoked_nodes = list.nodes.size();
  shown.revoked_serials = list.serials.size();
  shown.secret_epoch = spread_->epoch();
  shown.rotation = spread_->phase();
  shown.rotation_waits_for = spread_->waiting_for();
}

}  // namespace starling::node
