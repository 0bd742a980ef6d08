// Who may have a session with this node: the secret and the lists, while their files change.
#include "node/node.h"

#include <nlohmann/json.hpp>

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
  if (access.key && access.key->swarm() != parts_.swarm) {
    log_.warn(
        "access.other_swarm",
        {{"file", "the secret is one of swarm " + short_form(access.key->swarm())},
         {"did", "goes on with the secret and the lists of before; restart to change swarms"}});
    return;
  }
  const auto& rules = access.rules;
  log_.info("access.read",
            {{"allowed", rules.allowed ? std::to_string(rules.allowed->size()) : "everybody"},
             {"denied", rules.denied.size()},
             {"secret_epoch", access.key ? std::to_string(access.key->current()->epoch) : "none"}});
  parts_.events.append(
      "access", {{"allowed", rules.allowed ? nlohmann::json(rules.allowed->size()) : nullptr},
                 {"denied", rules.denied.size()}});
  restricted_ = rules.allowed.has_value();
  // First, so that nobody who is shut out is offered a new key.
  transport_.set_peer_rules(std::move(access.rules));
  if (access.key) transport_.set_key(std::move(*access.key));
}

transport::Task<> Node::give_secret(NodeId newcomer) {
  auto load = [this]() -> Result<std::string> {
    const auto& files = parts_.access_files.secret();
    if (!files) return fail(Errc::not_found, Doing::reading_file, "there is no secret here");
    TRY(const auto secret, transport::SwarmSecret::load(files->current));
    return secret.print();
  };
  auto text = co_await transport::on_pool(files_, std::move(load));
  assert_io_thread();
  auto sent = text ? transport_.send(newcomer, {.type = transport::kSwarmSecretMessage,
                                                .body = to_bytes(as_bytes(*text)),
                                                .attachment = nullptr})
                   : Result<void>(fail(text.error()));
  if (text) transport::wipe(std::as_writable_bytes(std::span(*text)));
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
  auto keep = [this, &secret, &files]() -> Result<Access> {
    TRY_VOID(secret.create(files->current));
    parts_.access_files.set_secret(std::move(*files));
    return parts_.access_files.read(wall_now());
  };
  auto access = co_await transport::on_pool(files_, std::move(keep));
  assert_io_thread();
  if (!access)
    co_return end(
        exit_code_of(access.error().code),
        "the secret that the invite brought cannot be kept: " + to_string(access.error()));
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
