// Transport to gossip and bootstrap, and what gossip wants to have done or told.
#include "bootstrap/message_codec.h"
#include "node/node.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace starling::node {

namespace {

bool is_bootstrap(std::uint16_t type) {
  return static_cast<transport::Room>(type >> 8) == transport::Room::bootstrap;
}

void tell_awaiting(const gossip::Awaiting& awaiting, LogBackend& log, EventLog& events) {
  const double limit = seconds(awaiting.longest);
  log.warn("final.awaits_company",
           {{"members", awaiting.members},
            {"limit_s", limit},
            {"why", "this node was restarted, and has met none of those who were in this run"},
            {"did", "trains on until it meets one of them or the time is up, then ends the run"}});
  events.append("final_awaits_company", {{"members", awaiting.members}, {"limit_s", limit}});
}

void tell_counted_short(const gossip::CountedShort& told, const std::string& name, LogBackend& log,
                        EventLog& events) {
  log.warn("member.counted_short",
           {{"name", name},
            {"id", short_form(told.id)},
            {"says_per_s", told.said},
            {"counts_per_s", told.counted},
            {"why", "it says to be faster than gossip.max_rate_ratio times the median member"},
            {"did", "leaves the rest out of the swarm's progress; averages with it as before"},
            {"do", "if the machine is so fast: a larger gossip.max_rate_ratio on this node"}});
  events.append("member_counted_short", {{"id", to_hex(told.id.view())},
                                         {"name", name},
                                         {"said_per_s", told.said},
                                         {"counted_per_s", told.counted}});
}

}  // namespace

void Node::on_session_up(const transport::SessionInfo& info) {
  if (info.direction == transport::Direction::dialled) {
    parts_.address_book.on_worked(info.peer, info.remote);
    book_changed_ = true;
  }
  const bool accepted = info.direction == transport::Direction::accepted;
  if (accepted) figures_.reachable = "yes";  // whatever a dial-back said
  if (info.invited && accepted)
    tasks_.spawn("give-secret", [this, peer = info.peer] { return give_secret(peer); });
  if (spread_) carry_out(spread_->on_session_up(clock_.now(), info.peer));
  gossip_driver_.on_session_up(info);
  bootstrap_driver_.on_session_up(info);
  answer_joins(clock_.now());
}

void Node::on_session_down(const NodeId& peer, const Error& why) {
  count_failure(why);
  if (fault_of(why.code) == Fault::peer && why.code != Errc::closed && why.code != Errc::timed_out)
    log_.warn("session.ended", {{"peer", short_form(peer)},
                                {"why", to_string(why)},
                                {"did", "closed this session; nothing else changes"}});
  if (spread_) spread_->on_session_down(peer);
  bootstrap_driver_.on_session_down(peer);
  gossip_driver_.on_session_down(peer, why);
}

// A session that ends because one side stops is no failure.
void Node::count_failure(const Error& why) {
  if (fault_of(why.code) != Fault::stopping && why.code != Errc::closed)
    metrics_.add(Metric::gossip_errors, 1, {name_of(why.code)});
}

void Node::on_message(const NodeId& peer, transport::Message message) {
  if (message.type == transport::kSwarmSecretMessage) return take_secret(peer, std::move(message));
  if (message.type == transport::kMembershipMessage) return take_membership(peer, message);
  if (message.room() == transport::Room::session) return hear_access(peer, message);
  if (is_bootstrap(message.type)) {
    const bool greeting =
        message.type == static_cast<std::uint16_t>(bootstrap::BootstrapType::hello);
    gossip_driver_.on_heard(peer, greeting ? gossip::Traffic::upkeep : gossip::Traffic::use);
    return bootstrap_driver_.on_message(peer, message);
  }
  gossip_driver_.on_message(peer, message);
}

bool Node::admit(const NodeId& peer, std::uint16_t type, ByteView, std::size_t attachment_bytes) {
  if (is_bootstrap(type)) return join_.admits(peer, type, attachment_bytes);
  return gossip_.admits(peer, type, attachment_bytes);
}

void Node::on_refused(const NodeId& peer, std::uint16_t type, ByteView body) {
  if (!is_bootstrap(type)) gossip_driver_.on_refused(peer, type, body);
}

void Node::on_dial_failed(const transport::Endpoint& target, const Error& why) {
  log_.debug("dial.failed", {{"address", transport::to_string(target)}, {"why", to_string(why)}});
  count_failure(why);
  bootstrap_driver_.on_dial_failed(target, why);
  gossip_driver_.on_dial_failed(target, why);
}

void Node::on_effect(gossip::GossipEffect effect) {
  const TimePoint now = clock_.now();
  if (auto* job = std::get_if<gossip::CodecJob>(&effect)) {
    if (bridge_) bridge_->run(std::move(*job));
  } else if (auto* consensus_job = std::get_if<gossip::consensus::ConsensusJob>(&effect)) {
    run_consensus_job(std::move(*consensus_job));
  } else if (const auto* persist = std::get_if<gossip::PersistIncarnation>(&effect)) {
    persist_incarnation(persist->ceiling);
  } else if (std::holds_alternative<gossip::PauseTraining>(effect)) {
    pause_training();
  } else if (const auto* take = std::get_if<gossip::TakeContribution>(&effect)) {
    take_contribution(take->kind);
  } else if (const auto* behind = std::get_if<gossip::FarBehind>(&effect)) {
    log_.warn("exchange.far_behind",
              {{"age_steps", behind->lag.own_age},
               {"neighbours_median", behind->lag.median_age},
               {"did", "takes a neighbour's replica; identity and counter stay"}});
    bootstrap_driver_.carry_out(join_.rejoin(now));
  } else if (std::holds_alternative<gossip::Left>(effect)) {
    left_told_ = true;
    end_if_left();
  } else if (const auto* finished = std::get_if<gossip::consensus::Finished>(&effect)) {
    on_finished(*finished);
  } else if (const auto* failed = std::get_if<gossip::ConsensusFailed>(&effect)) {
    if (failed->kind == gossip::consensus::RunKind::merge) {
      on_merge_failed(failed->error);
    } else {
      on_consensus_failed(failed->error);
    }
  } else if (const auto* merged = std::get_if<gossip::consensus::Merged>(&effect)) {
    on_merged(*merged);
  } else if (std::holds_alternative<gossip::MayExit>(effect)) {
    may_exit_ = true;
    end_if_finished();
  } else if (const auto* change = std::get_if<gossip::MemberChange>(&effect)) {
    note(*change);
  } else if (const auto* event = std::get_if<gossip::ExchangeEvent>(&effect)) {
    note(*event);
  } else if (const auto* shown = std::get_if<gossip::NotTaken>(&effect)) {
    note(*shown);
  } else if (const auto* awaiting = std::get_if<gossip::Awaiting>(&effect)) {
    tell_awaiting(*awaiting, log_, parts_.events);
  } else if (const auto* notice = std::get_if<gossip::Notice>(&effect)) {
    note(*notice);
  } else if (const auto* told = std::get_if<gossip::CountedShort>(&effect)) {
    const auto member = gossip_.membership().find(told->id);
    tell_counted_short(*told, member ? member->record.name : std::string(), log_, parts_.events);
  }
}

void Node::persist_incarnation(Incarnation ceiling) {
  tasks_.spawn("incarnation", [this, ceiling] { return write_incarnation(ceiling); });
}

transport::Task<> Node::write_incarnation(Incarnation ceiling) {
  auto write = [this, ceiling] { return parts_.dir.write_incarnation_ceiling(ceiling); };
  const Result<void> written = co_await transport::on_pool(files_, std::move(write));
  assert_io_thread();
  if (!written) {
    log_.warn("incarnation.not_written", {{"why", to_string(written.error())},
                                          {"did", "goes on with the present incarnation"}});
    co_return;
  }
  gossip_driver_.carry_out(gossip_.on_incarnations_persisted(clock_.now(), ceiling));
}

void Node::note(const gossip::MemberChange& change) {
  const std::string text = gossip::describe(change);
  const std::string after =
      change.after ? std::string(gossip::name_of(*change.after)) : "forgotten";
  const auto member = gossip_.membership().find(change.id);
  const std::string name = member ? member->record.name : std::string();
  // A node that was only ever dialled finds the swarm again after a restart too.
  if (member && change.after == gossip::MemberState::alive)
    book_changed_ = parts_.address_book.on_told(member->record) || book_changed_;
  if (change.after == gossip::MemberState::suspect || change.after == gossip::MemberState::dead)
    figures_.member_reasons[change.id] = text;
  else
    figures_.member_reasons.erase(change.id);
  log_.info("member." + after, {{"name", name}, {"id", short_form(change.id)}, {"how", text}});
  parts_.events.append(
      "member",
      {{"id", to_hex(change.id.view())}, {"name", name}, {"state", after}, {"how", text}});
}

void Node::note(const gossip::ExchangeEvent& event) {
  if (const auto* exchanged = std::get_if<gossip::Exchanged>(&event)) {
    figures_.exchanges += 1;
    figures_.delta_bytes_sent += exchanged->bytes_sent;
    figures_.delta_bytes_received += exchanged->bytes_received;
    if (exchanged->scale < 1 || exchanged->channels_clipped > 0)
      metrics_.add(Metric::gossip_clipped, 1);
    log_.debug("exchange", {{"what", gossip::to_string(event)}});
    return;
  }
  if (const auto* opened = std::get_if<gossip::EdgeOpened>(&event)) {
    parts_.events.append("edge_opened", {{"peer", to_hex(opened->peer.view())},
                                         {"generation", opened->generation.value},
                                         {"mode", std::string(gossip::name_of(opened->mode))}});
  } else if (const auto* reset = std::get_if<gossip::EdgeWasReset>(&event)) {
    metrics_.add(Metric::gossip_edge_resets, 1);
    log_.warn("edge.reset",
              {{"peer", short_form(reset->peer)},
               {"reason", gossip::name_of(reset->reason)},
               {"did", "a snapshot sets the reference again; the replica is untouched"}});
  } else if (const auto* refused = std::get_if<gossip::PayloadRefused>(&event)) {
    metrics_.add(Metric::gossip_refused, 1);
    log_.warn("payload.refused", {{"peer", short_form(refused->peer)},
                                  {"why", to_string(refused->error)},
                                  {"offences", refused->offences},
                                  {"did", "nothing of it was added"}});
  } else if (const auto* closed = std::get_if<gossip::EdgeWasClosed>(&event);
             closed != nullptr && closed->reason == gossip::CloseReason::misbehaved) {
    note_dropped(*closed);
  }
  log_.debug("edge", {{"what", gossip::to_string(event)}});
}

void Node::note_dropped(const gossip::EdgeWasClosed& closed) {
  const std::string peer = short_form(closed.peer);
  if (closed.by == gossip::By::them) {
    log_.warn("node.dropped",
              {{"peer", peer},
               {"why", "it says that what this node sent did not decode three times"},
               {"do", "look for broken memory or another version of starling here"}});
    return;
  }
  metrics_.add(Metric::gossip_dropped, 1);
  log_.warn("neighbour.dropped", {{"peer", peer},
                                  {"why", "too many of its payloads did not decode"},
                                  {"did", "no edge with it for a while"}});
  parts_.events.append("neighbour_dropped", {{"peer", to_hex(closed.peer.view())}});
}

void Node::note(const gossip::NotTaken& shown) {
  const std::string hash = to_hex(shown.certificate.hash.view());
  const std::size_t participants = shown.certificate.participants.size();
  log_.warn(
      "final.not_taken",
      {{"hash", hash},
       {"participants", participants},
       {"why", shown.others == 0
                   ? std::string("this node has a certificate of other participants")
                   : std::to_string(shown.others) + " members train on, more than took part in it"},
       {"did", shown.others == 0 ? "keeps its own; joiners follow the larger one"
                                 : "trains on; takes it when they no longer are more"}});
  parts_.events.append("final_not_taken", {{"hash", hash},
                                           {"epoch", shown.certificate.epoch.value},
                                           {"participants", participants},
                                           {"others", shown.others}});
}

void Node::note(gossip::Notice notice) {
  switch (notice) {
    case gossip::Notice::isolated:
      // After the end the others are gone because they are done.
      figures_.troubles.isolated = !finished_;
      if (!finished_)
        log_.warn("node.isolated", {{"did", "trains on alone and looks for the swarm again"}});
      bootstrap_driver_.carry_out(join_.on_isolated(clock_.now()));
      break;
    case gossip::Notice::connected:
      figures_.troubles.isolated = false;
      log_.info("node.connected");
      break;
    case gossip::Notice::accused_here:
      log_.info("node.accused", {{"did", "refuted with a higher incarnation"}});
      break;
    case gossip::Notice::clone_seen:
      figures_.clone_seen = clock_.now();
      log_.warn("node.clone",
                {{"what", "another process uses this node's identity.key"},
                 {"did", "outbids its record, ever more rarely: once a minute at last"},
                 {"do", "give every node a folder of its own"}});
      break;
    case gossip::Notice::incarnations_spent:
    case gossip::Notice::neighbours_changed:
      break;
  }
}

}  // namespace starling::node
