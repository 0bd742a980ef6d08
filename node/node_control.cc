// What verbs and signals ask of a running node.
#include "node/node.h"
#include "node/observe/status.h"
#include "node/printable.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace starling::node {

namespace {

// How long `join` waits for one of its addresses; a dial and its second try.
constexpr Duration kJoinPatience = std::chrono::seconds(15);

nlohmann::json joined(const transport::SessionInfo& info) {
  return {{"peer", to_hex(info.peer.view())}, {"name", info.name}};
}

// Whether a session is with whom a seed names: by an address that the peer has, or, where the seed
// is a name, by one that the search for peers found behind it.
bool is_with(const transport::SessionInfo& info, const bootstrap::Seed& seed,
             const std::vector<bootstrap::AddressReport>& known) {
  if (seed.pin && *seed.pin != info.peer) return false;
  if (std::ranges::find(info.peer_addresses, seed.endpoint) != info.peer_addresses.end())
    return true;
  if (info.direction == transport::Direction::dialled && info.remote == seed.endpoint) return true;
  return std::ranges::any_of(known, [&](const bootstrap::AddressReport& address) {
    return address.origin == seed.origin && address.peer == info.peer;
  });
}

// What came of the addresses behind a seed, "" while nothing did.
std::string outcome_at(const bootstrap::Seed& seed,
                       const std::vector<bootstrap::AddressReport>& known) {
  std::string all;
  for (const auto& address : known) {
    if (address.origin != seed.origin || !address.last_end) continue;
    all += all.empty() ? " (" : "; ";
    all += address.detail.empty() ? std::string(name_of(*address.last_end)) : address.detail;
  }
  return all.empty() ? all : all + ")";
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
  answer_joins(clock_.now());
  bootstrap_driver_.carry_out(std::move(*effects));
}

void Node::answer_joins(TimePoint now) {
  if (waiting_for_join_.empty()) return;
  const auto known = join_.addresses();
  const auto sessions = transport_.sessions();
  std::erase_if(waiting_for_join_, [&](WaitingJoin& waiting) {
    const auto met = std::ranges::find_if(sessions, [&](const transport::SessionInfo& info) {
      return std::ranges::any_of(
          waiting.seeds, [&](const bootstrap::Seed& seed) { return is_with(info, seed, known); });
    });
    if (met != sessions.end()) {
      waiting.reply.done(joined(*met));
      return true;
    }
    if (now < waiting.until && !waiting.reply.gone()) return false;
    std::string all;
    for (const auto& seed : waiting.seeds)
      all += (all.empty() ? "" : ", ") + seed.origin + outcome_at(seed, known);
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

void Node::answer(const FinishRequest& request, ControlReply reply) {
  if (final_written_)
    return reply.done({{"hash", figures_.final_hash},
                       {"epoch", finished_->certificate.epoch.value},
                       {"participants", figures_.final_participants}});
  if (figures_.phase != Phase::training && figures_.phase != Phase::finishing)
    return reply.fail(Error{
        Errc::refused, Doing::agreeing,
        "this node has no replica to finish with: it is " + std::string(name_of(figures_.phase))});
  const gossip::ModelFacts& model = gossip_.model();
  const auto may_end = check_finish(request, {parts_.swarm, model.fingerprint, model.admin});
  if (!may_end) return reply.fail(may_end.error());
  waiting_for_finish_.push_back(std::move(reply));
  const auto order = request.order ? std::optional(request.order->signature) : std::nullopt;
  gossip_driver_.carry_out(gossip_.finish(clock_.now(), order));
}

void Node::answer(const MergeRequest&, ControlReply reply) {
  auto effects = gossip_.merge(clock_.now());
  if (!effects) return reply.fail(effects.error());
  waiting_for_merge_.push_back(std::move(reply));
  gossip_driver_.carry_out(std::move(*effects));
}

void Node::answer(const EvalRequest&, ControlReply reply) {
  const auto refuse = [&reply](std::string why) {
    reply.fail(Error{Errc::not_found, Doing::evaluating, std::move(why)});
  };
  if (!bridge_ && finished_)
    return refuse("this node trains no more; evaluate its model: starling eval " +
                  (parts_.dir.final_dir() / "model.safetensors").string() + " --data SPEC");
  if (!bridge_) return refuse("this node has no replica yet");
  if (!parts_.data.val) return refuse("the data has no validation part; name one with --val");
  waiting_for_eval_.push_back(std::move(reply));
  evaluate_now();
}

void Node::answer(const LogLevelRequest& request, ControlReply reply) {
  log_.set_level(request.level);
  reply.done({{"level", std::string(name_of(request.level))}});
}

// Whoever sends a signal reads the log: it says what came of it in every case.
void Node::save_at_signal() {
  std::string why;
  if (!bridge_ || figures_.phase != Phase::training)
    why = fmt::format("it has no replica that trains: it is {}", name_of(figures_.phase));
  else if (saving_)
    why = "one is being written already";
  if (!why.empty())
    return log_.warn("checkpoint.not_asked_for",
                     {{"signal", "SIGUSR1"}, {"why", why}, {"did", "nothing"}});
  log_.info("checkpoint.asked_for", {{"signal", "SIGUSR1"}});
  save_checkpoint([](const Result<void>&) {});  // it says itself how it ends
}

// The tables of `starling status` and `neighbours`, line by line; the members of a large swarm are
// too many for a log, so the file has them.
void Node::tell_state() {
  publish_status();
  const nlohmann::json status = to_json(*snapshots_.get());
  const auto file = parts_.dir.last_status();
  log_.info("node.state", {{"signal", "SIGQUIT"}, {"whole", file.string()}});
  std::istringstream lines(status_table(status) + neighbours_table(status));
  for (std::string line; std::getline(lines, line);) log_.info("node.state", {{"line", line}});
  write_later(file, json_text(status) + "\n");
}

}  // namespace starling::node
