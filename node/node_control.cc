// What the verbs ask of a running node.
#include "node/node.h"

#include <asio/ip/address.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

// How long `join` waits for one of its addresses; a dial and its second try.
constexpr Duration kJoinPatience = std::chrono::seconds(15);

nlohmann::json joined(const transport::SessionInfo& info) {
  return {{"peer", to_hex(info.peer.view())}, {"name", info.name}};
}

// Whether a session is with whom a seed names. What a name resolves to is not known here: a session
// that this node dialled, to that port, is taken for it.
bool is_with(const transport::SessionInfo& info, const bootstrap::Seed& seed) {
  if (seed.pin && *seed.pin != info.peer) return false;
  if (std::ranges::find(info.peer_addresses, seed.endpoint) != info.peer_addresses.end())
    return true;
  if (info.direction != transport::Direction::dialled) return false;
  std::error_code is_name;
  (void)asio::ip::make_address(seed.endpoint.host, is_name);
  return is_name ? info.remote.port == seed.endpoint.port : info.remote == seed.endpoint;
}

}  // namespace

void Node::on_request(const ControlRequest& request, ControlReply reply) {
  std::visit(
      [this, &reply](const auto& one) {
        assert_io_thread();
        if constexpr (requires { this->answer(one, reply); }) this->answer(one, std::move(reply));
      },
      request);
}

void Node::answer(const JoinRequest& request, ControlReply reply) {
  std::vector<bootstrap::Seed> seeds;
  for (const auto& address : request.addresses) {
    auto parsed =
        bootstrap::parse_seeds(address, [](const std::string& path) -> Result<std::string> {
          return fail(Errc::bad_argument, Doing::controlling, path + ": files are not read here");
        });
    if (!parsed) return reply.fail(parsed.error());
    seeds.insert(seeds.end(), parsed->begin(), parsed->end());
  }
  auto effects = join_.add_seeds(clock_.now(), seeds);
  if (!effects) return reply.fail(effects.error());
  waiting_for_join_.push_back({std::move(seeds), clock_.now() + kJoinPatience, std::move(reply)});
  for (const auto& session : transport_.sessions()) answer_join(session);
  bootstrap_driver_.carry_out(std::move(*effects));
}

void Node::answer_join(const transport::SessionInfo& info) {
  std::erase_if(waiting_for_join_, [&info](WaitingJoin& waiting) {
    const auto named = [&info](const bootstrap::Seed& seed) { return is_with(info, seed); };
    if (std::ranges::none_of(waiting.seeds, named)) return false;
    waiting.reply.done(joined(info));
    return true;
  });
}

void Node::end_late_joins(TimePoint now) {
  std::erase_if(waiting_for_join_, [now](WaitingJoin& waiting) {
    if (now < waiting.until && !waiting.reply.gone()) return false;
    std::string all;
    for (const auto& seed : waiting.seeds) all += (all.empty() ? "" : ", ") + seed.origin;
    waiting.reply.fail(Error{Errc::timed_out, Doing::connecting,
                             "no session with " + all + " within " +
                                 std::to_string(kJoinPatience / std::chrono::seconds(1)) +
                                 " s; the node goes on trying"});
    return true;
  });
}

void Node::answer(const LeaveRequest& request, ControlReply reply) {
  waiting_for_leave_.push_back(std::move(reply));
  begin_leave(request.timeout.value_or(config_.leave.timeout));
}

void Node::answer(const FinishRequest&, ControlReply reply) {
  if (final_written_)
    return reply.done({{"hash", figures_.final_hash},
                       {"epoch", finished_->certificate.epoch.value},
                       {"participants", figures_.final_participants}});
  if (figures_.phase != Phase::training && figures_.phase != Phase::finishing)
    return reply.fail(Error{
        Errc::refused, Doing::agreeing,
        "this node has no replica to finish with: it is " + std::string(name_of(figures_.phase))});
  waiting_for_finish_.push_back(std::move(reply));
  gossip_driver_.carry_out(gossip_.finish(clock_.now()));
}

void Node::answer(const MergeRequest&, ControlReply reply) {
  auto effects = gossip_.merge(clock_.now());
  if (!effects) return reply.fail(effects.error());
  waiting_for_merge_.push_back(std::move(reply));
  gossip_driver_.carry_out(std::move(*effects));
}

void Node::answer(const EvalRequest&, ControlReply reply) {
  if (!bridge_ || !parts_.data.val)
    return reply.fail(Error{Errc::not_found, Doing::evaluating,
                            bridge_ ? "the data has no validation part; name one with --val"
                                    : "this node has no replica yet"});
  waiting_for_eval_.push_back(std::move(reply));
  evaluate_now();
}

void Node::answer(const LogLevelRequest& request, ControlReply reply) {
  log_.set_level(request.level);
  reply.done({{"level", std::string(name_of(request.level))}});
}

}  // namespace starling::node
