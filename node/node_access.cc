// Who may have a session with this node: the secret and the lists, while their files change.
#include "node/node.h"

#include <nlohmann/json.hpp>

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
  // First, so that nobody who is shut out is offered a new key.
  transport_.set_peer_rules(std::move(access.rules));
  if (access.key) transport_.set_key(std::move(*access.key));
}

}  // namespace starling::node
