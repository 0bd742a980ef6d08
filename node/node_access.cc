// Who may have a session with this node: the secret and the lists, while their files change.
#include "node/certifier.h"
#include "node/node.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <utility>

namespace starling::node {

void Node::reload_access(Read when) {
  // One at a time: a disk that hangs holds one thread of files_, not a growing queue.
  if (std::exchange(reading_access_, true)) return;
  tasks_.spawn("access", [this, when] { return read_access(when); });
}

transport::Task<> Node::read_access(Read when) {
  auto read = [this, when]() -> std::optional<Result<Access>> {
    if (when == Read::always) return parts_.access_files.read(wall_now());
    return parts_.access_files.look(wall_now());
  };
  auto access = co_await transport::on_pool(files_, std::move(read));
  assert_io_thread();
  reading_access_ = false;
  if (!access) co_return;
  if (!*access) {
    log_.warn("access.unreadable", {{"why", to_string(access->error())},
                                    {"did", "goes on with what the files said before"}});
    co_return;
  }
  apply_access(std::move(**access));
}

void Node::apply_access(Access access) {
  if (access.secrets && access.secrets->key.swarm() != parts_.swarm) {
    log_.warn(
        "access.other_swarm",
        {{"file", "the secret is one of swarm " + short_form(access.secrets->key.swarm())},
         {"did", "goes on with the secret and the lists of before; restart to change swarms"}});
    return;
  }
  auto& rules = access.rules;
  // A list that came meanwhile is still on its way to the disk.
  if (spread_ && rules.admin && lists_to_keep_ > 0 &&
      spread_->revocations().replaces(rules.admin->revoked))
    rules.admin->revoked = spread_->revocations();
  const auto epoch =
      access.secrets ? std::to_string(access.secrets->key.current()->epoch) : std::string("none");
  const auto list = rules.admin ? rules.admin->revoked.number : 0;
  log_.info("access.read",
            {{"allowed", rules.allowed ? std::to_string(rules.allowed->size()) : "everybody"},
             {"denied", rules.denied.size()},
             {"admin", rules.admin ? short_form(rules.admin->admin) : "none"},
             {"revocations", list},
             {"secret_epoch", epoch}});
  parts_.events.append(
      "access", {{"allowed", rules.allowed ? nlohmann::json(rules.allowed->size()) : nullptr},
                 {"denied", rules.denied.size()},
                 {"revocations", list},
                 {"secret_epoch", epoch}});
  if (access.secrets && access.secrets->ignored)
    log_.warn("secret.next_ignored",
              {{"what", *access.secrets->ignored},
               {"did", "goes on with the secret in force"},
               {"do", "remove the first of the two (`starling key rotate` makes a next one)"}});
  parts_.membership = access.membership;
  if (parts_.membership) gossip_.set_admin(parts_.membership->admin);
  transport_.set_certificate(parts_.membership ? std::optional(parts_.membership->chain)
                                               : std::nullopt);
  // First, so that nobody who is shut out is offered a new key.
  use_rules(std::move(rules));
  if (access.secrets) transport_.set_key(std::move(access.secrets->key));
  feed_spread(access);
}

void Node::use_rules(transport::PeerRules rules) {
  rules_ = std::move(rules);
  restricted_ = rules_.allowed.has_value() && !rules_.admin;
  if (rules_.admin && std::exchange(figures_.mode, "closed") != "closed" && bridge_ && !building_)
    tell_run(1);
  next_certificate_check_ = {};
  figures_.troubles.certificate.clear();  // until that check
  transport_.set_peer_rules(rules_);
}

// Others refuse a node whose certificate is not valid, so its owner has to hear of it here.
void Node::check_own_certificate() {
  figures_.troubles.certificate.clear();
  if (!parts_.membership || !rules_.admin) return;
  constexpr std::uint64_t kDay = 24 * 3600;
  const auto& [swarm, admin, chain] = *parts_.membership;
  const auto now_s = seconds_of(wall_now());
  // Whoever issues them for hours knows it.
  const std::uint64_t until_s = chain.own.until_s;
  const std::uint64_t late = (until_s - std::min<std::uint64_t>(chain.own.from_s, until_s)) / 3;
  const auto until = show_seconds(WallTime(std::chrono::seconds(chain.own.until_s)));
  metrics_.set(Metric::certificate_expiry, static_cast<double>(chain.own.until_s));
  constexpr std::string_view kRenew = "ask the admin for a new one (`starling key certify`)";
  const auto warn = [this](const std::string& what, std::string_view does, std::string_view remedy,
                           bool degrades = true) {
    log_.warn("certificate.not_valid", {{"what", what}, {"did", does}, {"do", remedy}});
    if (degrades) figures_.troubles.certificate = fmt::format("{}: {}", what, remedy);
  };
  constexpr std::string_view kAlone = "goes on; others give it no session";
  if (const auto revoked = rules_.admin->revoked.fault_in(parts_.identity.id(), &chain))
    warn("this node " + *revoked, kAlone, kRenew);
  else if (const auto fault = transport::fault_in(chain, admin, swarm, now_s))
    warn("this node's certificate " + *fault, kAlone,
         now_s < chain.own.from_s ? "set the clock of this machine, which is behind" : kRenew);
  else if (until_s < now_s + std::min(7 * kDay, late))
    warn("this node's certificate is valid until " + until, "goes on", kRenew,
         until_s < now_s + kDay);
}

transport::Task<> Node::give_secret(NodeId newcomer) {
  struct Gift {
    Bytes secret;
    std::optional<transport::Membership> membership;  // where the swarm has an admin
  };
  auto load = [this, newcomer, own = parts_.membership]() -> Result<Gift> {
    const auto& files = parts_.access_files.secret();
    if (!files) return fail(Errc::not_found, Doing::reading_file, "there is no secret here");
    TRY(const auto secret, transport::SwarmSecret::load(files->current));
    Gift gift;
    if (own) {
      TRY(gift.membership, certify_newcomer(*own, parts_.identity, newcomer, parts_.dir.serials(),
                                            seconds_of(wall_now())));
    }
    auto text = secret.print();
    gift.secret = to_bytes(as_bytes(text));
    transport::wipe(std::as_writable_bytes(std::span(text)));
    return gift;
  };
  auto loaded = co_await transport::on_pool(files_, std::move(load));
  assert_io_thread();
  Result<void> sent;
  if (!loaded) sent = fail(loaded.error());
  if (sent && loaded->membership) {
    // In this session it has shown none: without, its revocation would not end the session.
    transport_.set_certificate_of(newcomer, loaded->membership->chain);
    const auto text = transport::print_membership(*loaded->membership);
    sent = transport_.send(newcomer, {.type = transport::kMembershipMessage,
                                      .body = to_bytes(as_bytes(text)),
                                      .attachment = nullptr});
  }
  if (sent)
    sent = transport_.send(newcomer, {.type = transport::kSwarmSecretMessage,
                                      .body = std::move(loaded->secret),
                                      .attachment = nullptr});
  if (sent) {
    log_.info("invite.secret_given", {{"to", short_form(newcomer)}});
    co_return;
  }
  log_.warn("invite.secret_not_given", {{"to", short_form(newcomer)},
                                        {"why", to_string(sent.error())},
                                        {"did", "ended the session; the invite is used"}});
  transport_.close(newcomer, {Errc::refused, Doing::handshaking,
                              "the secret cannot be given now: ask for another invite"});
}

void Node::take_membership(const NodeId& from, const transport::Message& message) {
  const auto membership = transport::parse_membership(as_text(message.body));
  if (parts_.secret_to_get && membership && membership->swarm == parts_.swarm &&
      membership->chain.own.node == parts_.identity.id()) {
    membership_to_keep_ = as_text(message.body);
    return;
  }
  transport_.close(from, {Errc::bad_message, Doing::reading_message,
                          "a certificate that nobody asked for, or for another node or swarm"});
}

void Node::take_secret(const NodeId& from, transport::Message message) {
  auto secret = transport::SwarmSecret::parse(as_text(message.body));
  transport::wipe(message.body);
  if (parts_.secret_to_get && secret && secret->swarm() == parts_.swarm) {
    // Owners: this handler and the task that it spawns; a function object needs a copy.
    auto shared = std::make_shared<transport::SwarmSecret>(std::move(*secret));
    tasks_.spawn("keep-secret", [this, shared] { return keep_secret(std::move(*shared)); });
    return;
  }
  transport_.close(from, {Errc::bad_message, Doing::reading_message,
                          "a secret that nobody asked for, or of another swarm"});
}

transport::Task<> Node::keep_secret(transport::SwarmSecret secret) {
  auto files = std::exchange(parts_.secret_to_get, std::nullopt);
  if (!files) co_return;
  const auto file = files->current;
  bool kept = false;
  auto keep = [this, &secret, &files, &kept]() -> Result<Access> {
    // The certificate first: with a secret and without it the node would be in another mode.
    if (!membership_to_keep_.empty())
      TRY_VOID(write_whole(parts_.dir.membership(), membership_to_keep_));
    TRY_VOID(secret.create(files->current));
    kept = true;
    parts_.access_files.set_secret(std::move(*files));
    return parts_.access_files.read(wall_now());
  };
  auto access = co_await transport::on_pool(files_, std::move(keep));
  assert_io_thread();
  if (!access)
    co_return end(exit_code_of(access.error().code),
                  (kept ? "the secret that the invite brought is in " + file.string() +
                              ", which needs no invite any more; what is beside it has to be put "
                              "right before the next start: "
                        : std::string("the secret that the invite brought cannot be kept: ")) +
                      to_string(access.error()));
  log_.info("invite.secret_kept", {{"file", file.string()}});
  apply_access(std::move(*access));
}

void Node::answer(const InviteRequest& request, ControlReply reply) {
  const auto refuse = [&reply](std::string why) {
    reply.fail(Error{Errc::refused, Doing::controlling, std::move(why)});
  };
  if (config_.swarm.mode == SwarmMode::open)
    return refuse("an open swarm needs no invite: its name and an address are enough");
  if (parts_.secret_to_get) return refuse("this node is a newcomer itself and has no secret yet");
  if (parts_.membership)
    if (const auto why = why_no_inviter(*parts_.membership, seconds_of(wall_now())))
      return refuse(*why);
  if (restricted_)
    return refuse("only nodes in " + parts_.dir.allow_list().string() +
                  " may join: put the newcomer's line (`starling id` prints it there) into that "
                  "file on every "
                  "node, and copy the secret");
  tasks_.spawn("invite", [this, ttl = request.ttl, reply] { return issue_invite(ttl, reply); });
}

transport::Task<> Node::issue_invite(Duration ttl, ControlReply reply) {
  assert_io_thread();
  const auto expires = wall_now() + std::chrono::duration_cast<std::chrono::milliseconds>(ttl);
  auto issuing = invites_.issue(parts_.swarm, advertised_, expires);
  const auto text = co_await std::move(issuing);
  assert_io_thread();
  if (!text) co_return reply.fail(text.error());
  log_.info("invite.made", {{"expires", show_seconds(expires)}});
  reply.done({{"invite", *text}, {"expires", show_seconds(expires)}});
}

}  // namespace starling::node
