// Sessions to Gossip and Join, and what Gossip wants to have done: gossip/driver.cc and
// node/node_sessions.cc in outline.
#include "bootstrap/message_codec.h"
#include "tests/sim/process.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace starling::sim {

using gossip::consensus::RunKind;

namespace {

gossip::SessionEnd end_of(const Error& why) {
  switch (why.code) {
    case Errc::closed:
      return gossip::SessionEnd::reset;
    case Errc::timed_out:
      return gossip::SessionEnd::timed_out;
    case Errc::cancelled:
      return gossip::SessionEnd::bye;
    default:
      return gossip::SessionEnd::local;
  }
}

bool is_bootstrap(std::uint16_t type) {
  return static_cast<transport::Room>(type >> 8) == transport::Room::bootstrap;
}

}  // namespace

// ---- from the wire

void Process::on_session_up(const transport::SessionInfo& info) {
  if (ending_) return;
  if (services_.trace.wanted())
    services_.trace.line(services_.schedule.now(), name(), "up " + short_form(info.peer));
  const bool dialled = info.direction == transport::Direction::dialled;
  if (dialled) disk_.book.on_worked(info.peer, info.remote);
  std::erase_if(dialling_, [&](const auto& entry) { return entry.second.id == info.peer; });
  carry_out(gossip_->on_session_up(local(), info.peer, info.instance));
  carry_out(join_->on_session_up(local(), info.peer,
                                 dialled ? std::optional(info.remote) : std::nullopt));
}

void Process::on_session_down(const NodeId& peer, const Error& why) {
  if (ending_) return;
  if (services_.trace.wanted())
    services_.trace.line(services_.schedule.now(), name(),
                         "down " + short_form(peer) + " " + to_string(why));
  carry_out(join_->on_session_down(local(), peer));
  carry_out(gossip_->on_session_down(local(), peer, end_of(why)));
}

void Process::on_message(const NodeId& peer, transport::Message message) {
  if (ending_) return;
  heard_[peer] = services_.schedule.now();
  Trace& trace = services_.trace;
  trace.mix(static_cast<std::uint64_t>(services_.schedule.now().time_since_epoch().count()));
  trace.mix(std::uint64_t{setup_.host} << 16 | message.type);
  trace.mix(message.body);
  if (trace.wanted() && message.room() >= transport::Room::consensus) {
    std::ostringstream line;
    line << "gets " << std::hex << message.type << " from " << short_form(peer);
    trace.line(services_.schedule.now(), name(), line.str());
  }
  if (message.attachment) trace.mix(*message.attachment);
  if (is_bootstrap(message.type)) {
    const bool greeting =
        message.type == static_cast<std::uint16_t>(bootstrap::BootstrapType::hello);
    carry_out(gossip_->on_heard(local(), peer,
                                greeting ? gossip::Traffic::upkeep : gossip::Traffic::use));
    const auto decoded = bootstrap::decode_bootstrap(message);
    if (!decoded) {
      services_.watch.on_close(*this, peer, decoded.error());
      return sessions_.close(peer, decoded.error());
    }
    return carry_out(join_->on_message(local(), peer, *decoded));
  }
  carry_out(gossip_->on_message(local(), peer, message));
}

bool Process::admit(const NodeId& peer, std::uint16_t type, std::size_t bytes) {
  if (ending_) return false;
  if (burden_.refuse_attachments > 0 && rng_.chance(burden_.refuse_attachments)) return false;
  return is_bootstrap(type) ? join_->admits(peer, type, bytes) : gossip_->admits(peer, type, bytes);
}

void Process::on_refused(const NodeId& peer, std::uint16_t type, ByteView body) {
  if (ending_ || is_bootstrap(type)) return;
  carry_out(gossip_->on_refused(local(), peer, {type, starling::to_bytes(body), nullptr}));
}

void Process::on_dial_met(const transport::Endpoint& target, const NodeId& peer) {
  if (!ending_) carry_out(join_->on_dial_met(local(), target, peer));
}

void Process::on_dial_failed(const transport::Endpoint& target, const Error& why) {
  if (ending_) return;
  carry_out(join_->on_dial_failed(local(), target, why));
  const auto [first, last] = dialling_.equal_range(transport::to_string(target));
  std::vector<Dialling> failed;
  for (auto at = first; at != last; ++at) failed.push_back(std::move(at->second));
  dialling_.erase(first, last);
  if (why.code == Errc::wrong_identity && !failed.empty())
    sessions_.dial({.endpoint = target, .pin = std::nullopt});
  for (auto& dialling : failed) {
    dialling.all_refused = dialling.all_refused && why.code == Errc::connect_refused;
    dial_next(std::move(dialling));
  }
}

// ---- effects

void Process::carry_out(gossip::GossipEffects effects) {
  for (auto& effect : effects) {
    if (ending_) return;
    carry_out_one(std::move(effect));
  }
  arm();
}

void Process::carry_out_one(gossip::GossipEffect effect) {
  if (auto* outgoing = std::get_if<gossip::Outgoing>(&effect))
    return send(outgoing->to, std::move(outgoing->message));
  if (const auto* close = std::get_if<gossip::CloseSession>(&effect)) {
    services_.watch.on_close(*this, close->peer, close->why);
    return sessions_.close(close->peer, close->why);
  }
  if (auto* wanted = std::get_if<gossip::WantedSession>(&effect)) {
    Dialling dialling{wanted->id, std::move(wanted->addresses), true};
    std::ranges::reverse(dialling.left);
    return dial_next(std::move(dialling));
  }
  do_effect(effect);
}

void Process::send(const NodeId& to, transport::Message message) {
  const auto sent = sessions_.send(to, std::move(message));
  if (!sent && sent.error().code == Errc::too_many) sessions_.close(to, sent.error());
}

void Process::dial_next(Dialling dialling) {
  while (!dialling.left.empty()) {
    const std::string address = std::move(dialling.left.back());
    dialling.left.pop_back();
    auto endpoint = transport::parse_endpoint(address);
    if (!endpoint) {
      dialling.all_refused = false;
      continue;
    }
    const transport::DialTarget target{.endpoint = std::move(*endpoint), .pin = dialling.id};
    dialling_.emplace(transport::to_string(target.endpoint), std::move(dialling));
    return sessions_.dial(target);
  }
  carry_out(dialling.all_refused ? gossip_->on_dial_refused(local(), dialling.id)
                                 : gossip_->on_dial_failed(local(), dialling.id));
}

void Process::do_effect(gossip::GossipEffect& effect) {
  if (auto* job = std::get_if<gossip::CodecJob>(&effect)) {
    if (references_) run_codec(std::move(*job));
  } else if (auto* consensus_job = std::get_if<gossip::consensus::ConsensusJob>(&effect)) {
    run_consensus_job(std::move(*consensus_job));
  } else if (const auto* wanted = std::get_if<gossip::PersistIncarnation>(&effect)) {
    persist(wanted->ceiling);
  } else if (std::holds_alternative<gossip::PauseTraining>(effect)) {
    set_phase(bootstrap::RunPhase::finishing);
    if (training_ == Training::running) training_ = Training::pausing;
  } else if (const auto* take = std::get_if<gossip::TakeContribution>(&effect)) {
    take_contribution(take->kind);
  } else if (std::holds_alternative<gossip::FarBehind>(effect)) {
    carry_out(join_->rejoin(local()));
  } else if (std::holds_alternative<gossip::Left>(effect)) {
    left_told_ = true;
    end_if_left();
  } else if (const auto* finished = std::get_if<gossip::consensus::Finished>(&effect)) {
    on_finished(*finished);
  } else if (const auto* failed = std::get_if<gossip::ConsensusFailed>(&effect)) {
    on_consensus_failed(*failed);
  } else if (const auto* merged = std::get_if<gossip::consensus::Merged>(&effect)) {
    on_merged(*merged);
  } else if (std::holds_alternative<gossip::MayExit>(effect)) {
    may_exit_ = true;
    end_if_finished();
  } else if (const auto* change = std::get_if<gossip::MemberChange>(&effect)) {
    if (services_.trace.wanted())
      services_.trace.line(services_.schedule.now(), name(), gossip::describe(*change));
    const auto member = gossip_->membership().find(change->id);
    if (member && change->after == gossip::MemberState::alive) disk_.book.on_told(member->record);
    services_.watch.on_member_change(*this, *change);
  } else if (const auto* event = std::get_if<gossip::ExchangeEvent>(&effect)) {
    if (services_.trace.wanted() && !std::holds_alternative<gossip::Exchanged>(*event))
      services_.trace.line(services_.schedule.now(), name(), gossip::to_string(*event));
    services_.watch.on_exchange_event(*this, *event);
  } else if (const auto* notice = std::get_if<gossip::Notice>(&effect)) {
    note(*notice);
  }
}

void Process::note(gossip::Notice notice) {
  if (notice == gossip::Notice::isolated) carry_out(join_->on_isolated(local()));
}

void Process::run_codec(gossip::CodecJob job) {
  on_lane(codec_lane_, job_time(), [this, bridge = bridge_, job = std::move(job)] {
    if (bridge != bridge_) return;
    const Weights before = weights_;
    const auto held = references_->reference(gossip::edge_of(job));
    const std::vector<float> reference(held.begin(), held.end());
    auto outcome = references_->run(job);
    services_.watch.on_codec_run(*this, {job, before, reference, outcome});
    carry_out(gossip_->on_codec_done(local(), std::move(outcome)));
  });
}

void Process::persist(Incarnation ceiling) {
  on_lane(pool_, std::chrono::milliseconds(5), [this, ceiling] {
    if (disk_.full) return;  // goes on with the incarnations it has
    disk_.ceiling = std::max(disk_.ceiling, ceiling);
    carry_out(gossip_->on_incarnations_persisted(local(), ceiling));
  });
}

}  // namespace starling::sim
