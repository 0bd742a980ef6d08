#include "gossip/driver.h"

#include "node/base/sleep_time.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {

namespace {

// How membership has to read the end of a session. A goodbye names its reason, whoever said it.
SessionEnd end_of(const Error& why) {
  switch (why.code) {
    case Errc::closed:
      return SessionEnd::reset;
    case Errc::timed_out:
      return SessionEnd::timed_out;
    case Errc::cancelled:
      return SessionEnd::bye;
    default:
      return SessionEnd::local;
  }
}

}  // namespace

Driver::Driver(asio::io_context& io, const Clock& clock, transport::Transport& transport,
               Gossip& gossip, GossipHost& host)
    : clock_(clock),
      transport_(transport),
      gossip_(gossip),
      host_(host),
      timer_(io),
      slept_(time_asleep()) {}

void Driver::start() {
  stopped_ = false;
  arm();
}

void Driver::stop() {
  stopped_ = true;
  timer_.cancel();
}

void Driver::carry_out(GossipEffects effects) {
  for (auto& effect : effects) carry_out_one(std::move(effect));
  arm();
}

void Driver::carry_out_one(GossipEffect effect) {
  if (auto* outgoing = std::get_if<Outgoing>(&effect)) return send(std::move(*outgoing));
  if (const auto* close = std::get_if<CloseSession>(&effect)) {
    return transport_.close(close->peer, close->why);
  }
  if (auto* wanted = std::get_if<WantedSession>(&effect)) {
    Dialling dialling{wanted->id, std::move(wanted->addresses), true};
    std::reverse(dialling.left.begin(), dialling.left.end());
    return dial_next(std::move(dialling));
  }
  host_.on_effect(std::move(effect));
}

void Driver::send(Outgoing outgoing) {
  // A session that ended a moment ago is reported by on_session_down; a full queue ends the
  // session, because a peer that takes nothing is one that is gone.
  const auto sent = transport_.send(outgoing.to, std::move(outgoing.message));
  if (!sent && sent.error().code == Errc::too_many) transport_.close(outgoing.to, sent.error());
}

void Driver::dial_next(Dialling dialling) {
  while (!dialling.left.empty()) {
    const std::string address = std::move(dialling.left.back());
    dialling.left.pop_back();
    auto endpoint = transport::parse_endpoint(address);
    if (!endpoint) {  // a member's own word: it may be nonsense
      dialling.all_refused = false;
      continue;
    }
    const transport::DialTarget target{.endpoint = std::move(*endpoint), .pin = dialling.id};
    dialling_.emplace(transport::to_string(target.endpoint), std::move(dialling));
    return transport_.dial(target);
  }
  const TimePoint now = clock_.now();
  carry_out(dialling.all_refused ? gossip_.on_dial_refused(now, dialling.id)
                                 : gossip_.on_dial_failed(now, dialling.id));
}

void Driver::on_session_up(const transport::SessionInfo& info) {
  std::erase_if(dialling_, [&](const auto& entry) { return entry.second.id == info.peer; });
  carry_out(gossip_.on_session_up(clock_.now(), info.peer, info.instance, info.remote.host));
}

void Driver::on_session_down(const NodeId& peer, const Error& why) {
  carry_out(gossip_.on_session_down(clock_.now(), peer, end_of(why)));
}

void Driver::on_message(const NodeId& peer, const transport::Message& message) {
  carry_out(gossip_.on_message(clock_.now(), peer, message));
}

void Driver::on_heard(const NodeId& peer, Traffic traffic) {
  carry_out(gossip_.on_heard(clock_.now(), peer, traffic));
}

void Driver::on_refused(const NodeId& peer, std::uint16_t type, ByteView body) {
  const transport::Message message{.type = type, .body = to_bytes(body), .attachment = nullptr};
  carry_out(gossip_.on_refused(clock_.now(), peer, message));
}

void Driver::on_dial_failed(const transport::Endpoint& target, const Error& why) {
  const auto [first, last] = dialling_.equal_range(transport::to_string(target));
  std::vector<Dialling> failed;
  for (auto it = first; it != last; ++it) failed.push_back(std::move(it->second));
  dialling_.erase(first, last);
  // Somebody else has the address now, a node of this swarm: a machine that was set up anew, with
  // no peers of its own perhaps. A dial of nobody in particular greets it.
  if (why.code == Errc::wrong_identity && !failed.empty())
    transport_.dial({.endpoint = target, .pin = std::nullopt});
  for (auto& dialling : failed) {
    dialling.all_refused = dialling.all_refused && why.code == Errc::connect_refused;
    dial_next(std::move(dialling));
  }
}

void Driver::arm() {
  if (stopped_) return;
  const TimePoint next = gossip_.next_deadline();
  if (next == kNever) return;
  timer_.expires_at(next);
  timer_.async_wait([this](const std::error_code& error) {
    if (error || stopped_) return;
    assert_io_thread();
    notice_sleep();
    carry_out(gossip_.on_tick(clock_.now()));
  });
}

// The first tick after it: nothing has been said to anybody since.
void Driver::notice_sleep() {
  const Duration more = time_asleep() - slept_;
  if (more < std::chrono::seconds(1)) return;
  slept_ += more;
  carry_out(gossip_.on_slept(clock_.now(), more));
}

}  // namespace starling::gossip
