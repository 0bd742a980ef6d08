#include "bootstrap/join.h"

#include "bootstrap/message_codec.h"
#include "node/base/check.h"

#include <algorithm>
#include <utility>

namespace starling::bootstrap {

Join::Join(TimePoint now, JoinParts parts, Rng rng)
    : own_(std::move(parts.own)),
      forced_(std::move(parts.forced)),
      start_(parts.start),
      options_(parts.options),
      dialler_(options_.dialler, rng),
      sponsor_(options_.transfer),
      rng_(rng()),
      began_(now),
      grace_until_(now + options_.grace),
      next_hello_(now + options_.hello_refresh) {
  STARLING_CHECK(valid_keys(forced_));
}

// ---- seeds

Result<JoinEffects> Join::add_seeds(TimePoint now, const std::vector<Seed>& seeds) {
  for (const auto& seed : seeds) TRY_VOID(dialler_.add(now, seed));
  JoinEffects out;
  dial(now, out);
  return out;
}

JoinEffects Join::add_address_book(TimePoint now, const AddressBook& book) {
  dialler_.add(now, book);
  JoinEffects out;
  dial(now, out);
  return out;
}

JoinEffects Join::begin(TimePoint now) {
  JoinEffects out;
  begun_ = true;
  began_ = now;
  // A node without anybody to try has nothing to wait for.
  grace_until_ = dialler_.has_addresses() ? now + options_.grace : now;
  dial(now, out);
  proceed(now, out);
  return out;
}

void Join::add(JoinEffects& out, DiallerEffects effects) {
  for (auto& target : effects.dial) out.emplace_back(Dial{std::move(target)});
  for (auto& name : effects.resolve) out.emplace_back(Resolve{std::move(name)});
}

void Join::add(JoinEffects& out, SponsorEffects effects) {
  for (auto& outgoing : effects.send) out.emplace_back(std::move(outgoing));
  for (auto& offence : effects.offences) out.emplace_back(std::move(offence));
  if (effects.take_snapshot) out.emplace_back(TakeSnapshot{});
}

void Join::dial(TimePoint now, JoinEffects& out) {
  if (!dials()) return;
  // The view of a node without any session is stale, and its records may say what nobody can dial:
  // what a person named is tried.
  const auto is_member = [&](const NodeId& id) {
    return peers_.contains(id) || (!peers_.empty() && std::ranges::binary_search(facts_.alive, id));
  };
  add(out, dialler_.on_tick(now, is_member, [&](const NodeId& id) { return is_refused(id); }));
}

// ---- sessions

JoinEffects Join::on_session_up(TimePoint now, const NodeId& peer,
                                const std::optional<transport::Endpoint>& dialled) {
  JoinEffects out;
  if (dialled) dialler_.on_up(now, *dialled, peer);
  Peer fresh;
  fresh.up = now;
  const auto [at, inserted] = peers_.insert_or_assign(peer, std::move(fresh));
  greet(now, peer, at->second, out);
  if (phase_ == JoinPhase::seeking) phase_ = JoinPhase::greeting;
  return out;
}

JoinEffects Join::on_session_down(TimePoint now, const NodeId& peer) {
  JoinEffects out;
  if (const auto at = peers_.find(peer); at != peers_.end()) {
    dialler_.on_down(now, peer, now - at->second.up,
                     at->second.hello ? Dialler::Greeted::yes : Dialler::Greeted::no);
    peers_.erase(at);
  }
  sponsor_.on_session_down(peer);
  dial_back_.on_session_down(peer);
  if (receiver_) take_transfer(now, receiver_->on_session_down(now, peer), out);
  dial(now, out);
  proceed(now, out);
  return out;
}

JoinEffects Join::on_dial_met(TimePoint now, const transport::Endpoint& endpoint,
                              const NodeId& peer) {
  JoinEffects out;
  dialler_.on_up(now, endpoint, peer);
  dial(now, out);
  return out;
}

JoinEffects Join::on_dial_failed(TimePoint now, const transport::Endpoint& endpoint,
                                 const Error& why) {
  JoinEffects out;
  dialler_.on_failed(now, endpoint, why);
  dial(now, out);
  return out;
}

JoinEffects Join::on_resolved(TimePoint now, const transport::Endpoint& name,
                              const Result<std::vector<transport::Endpoint>>& addresses) {
  JoinEffects out;
  if (addresses)
    dialler_.on_resolved(now, name, *addresses);
  else
    dialler_.on_resolve_failed(now, name, addresses.error());
  dial(now, out);
  return out;
}

JoinEffects Join::on_isolated(TimePoint now) {
  JoinEffects out;
  dialler_.retry_now(now);
  dial(now, out);
  return out;
}

JoinEffects Join::rejoin(TimePoint now) {
  JoinEffects out;
  if (phase_ != JoinPhase::member) return out;
  search_ = {};
  phase_ = JoinPhase::choosing;
  choose_at_ = now + options_.sponsor_choice;
  return out;
}

// ---- messages

JoinEffects Join::on_message(TimePoint now, const NodeId& from, const BootstrapMessage& message) {
  JoinEffects out;
  if (!peers_.contains(from)) return out;  // its session ended meanwhile
  std::visit([&](const auto& content) { take(now, from, content, out); }, message);
  return out;
}

void Join::take(TimePoint now, const NodeId& from, const Hello& hello, JoinEffects& out) {
  peers_.at(from).hello = hello;
  compare(now, from, out);
  proceed(now, out);
}

void Join::take(TimePoint now, const NodeId& from, const StateRequest& request, JoinEffects& out) {
  add(out, sponsor_.on_request(now, from, request, stock()));
}

void Join::take(TimePoint now, const NodeId& from, const StateManifest& manifest,
                JoinEffects& out) {
  if (!receiver_) return;
  take_transfer(now, receiver_->on_manifest(now, from, manifest), out);
  if (!receiver_) return;
  for (const auto& id : manifest.donors)
    if (peers_.contains(id)) take_transfer(now, receiver_->offer_donor(now, id), out);
}

void Join::take(TimePoint now, const NodeId& from, const StateRefused& refused, JoinEffects& out) {
  if (receiver_) take_transfer(now, receiver_->on_refused(now, from, refused), out);
}

void Join::take(TimePoint now, const NodeId& from, const ChunkRequest& request, JoinEffects& out) {
  add(out, sponsor_.on_chunk_request(now, from, request));
}

void Join::take(TimePoint now, const NodeId& from, const Chunk& chunk, JoinEffects& out) {
  if (receiver_) take_transfer(now, receiver_->on_chunk(now, from, chunk), out);
}

void Join::take(TimePoint now, const NodeId& from, const StateDone& done, JoinEffects&) {
  sponsor_.on_done(now, from, done);
}

void Join::take(TimePoint now, const NodeId& from, const DialBackRequest& request,
                JoinEffects& out) {
  if (dial_back_.on_request(now, from, request) == DialBack::Answer::probe)
    out.emplace_back(ProbePort{from, request.port});
}

void Join::take(TimePoint, const NodeId& from, const DialBackReply& reply, JoinEffects& out) {
  if (dial_back_.take_reply(from, reply.port))
    out.emplace_back(Reachability{from, reply.reachable, reply.address, reply.detail});
}

JoinEffects Join::on_probed(TimePoint, const NodeId& peer, DialBackReply found) {
  JoinEffects out;
  if (!dial_back_.take_probed(peer, found.port) || !peers_.contains(peer)) return out;
  out.emplace_back(BootstrapOutgoing{peer, std::move(found)});
  return out;
}

JoinEffects Join::ask_dial_back(TimePoint, const NodeId& peer, std::uint16_t port) {
  JoinEffects out;
  if (!peers_.contains(peer)) return out;
  dial_back_.on_asked(peer, port);
  out.emplace_back(BootstrapOutgoing{peer, DialBackRequest{port}});
  return out;
}

// ---- sponsoring

StateSponsor::Stock Join::stock() const {
  StateSponsor::Stock stock;
  stock.fingerprint = own_.fingerprint();
  stock.phase = facts_.phase;
  stock.run_age_ms =
      static_cast<std::uint64_t>(std::max<std::int64_t>(facts_.run_age.count(), 0)) / 1000;
  stock.counters = facts_.counters;
  return stock;
}

JoinEffects Join::on_snapshot(TimePoint now, Result<SharedSnapshot> snapshot) {
  JoinEffects out;
  add(out, sponsor_.on_snapshot(now, snapshot ? std::move(*snapshot) : nullptr, stock()));
  return out;
}

// ---- queries

bool Join::same_settings(const NodeId& peer) const {
  const auto at = peers_.find(peer);
  return at != peers_.end() && at->second.same;
}

bool Join::admits(const NodeId& from, std::uint16_t type, std::size_t bytes) const {
  if (!receiver_ || bytes > max_attachment(type)) return false;
  switch (static_cast<BootstrapType>(type)) {
    case BootstrapType::state_manifest:
      return receiver_->was_asked(from);
    case BootstrapType::chunk:
      return receiver_->expects(from);
    default:
      return false;
  }
}

JoinStatus Join::status(TimePoint now) const {
  JoinStatus status;
  status.phase = phase_;
  if (receiver_) {
    status.sponsor = receiver_->sponsor();
    status.transfer = receiver_->progress(now);
  }
  return status;
}

std::string_view name_of(JoinPhase phase) {
  switch (phase) {
    case JoinPhase::seeking:
      return "seeking";
    case JoinPhase::greeting:
      return "greeting";
    case JoinPhase::adopting:
      return "adopting";
    case JoinPhase::choosing:
      return "choosing";
    case JoinPhase::loading:
      return "loading";
    case JoinPhase::installing:
      return "installing";
    case JoinPhase::fetching:
      return "fetching";
    case JoinPhase::member:
      return "member";
    case JoinPhase::over:
      return "over";
  }
  return "unknown";
}

}  // namespace starling::bootstrap
