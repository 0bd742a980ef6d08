#include "gossip/membership/membership.h"

#include "node/base/check.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

namespace starling::gossip {
namespace {

constexpr std::uint64_t kIncarnationsAhead = 1000;
// Besides exact deadlines: dials, beliefs, reports and expiry are looked at this often.
constexpr Duration kHousekeeping = std::chrono::milliseconds(250);
// A ceiling that was not written by then is asked for again: the disk may have been full.
constexpr Duration kPersistAgain = std::chrono::seconds(30);

}  // namespace

Membership::Membership(TimePoint now, MembershipParts parts, Rng rng)
    : swarm_(parts.swarm),
      options_(parts.options),
      signer_(parts.signer),
      verifier_(parts.verifier),
      rng_(rng),
      next_incarnation_(parts.self.first.next()),
      ceiling_(parts.self.ceiling),
      self_signed_(now),
      began_(now),
      table_(signer_.id(), options_.table),
      topology_(swarm_, options_.topology),
      progress_(signer_.id(), options_.progress),
      spreader_(signer_.id(), options_.spread),
      dials_(options_.dial),
      next_digest_(now + options_.digest_interval),
      next_housekeeping_(now + kHousekeeping) {
  SelfDescription& self = parts.self;
  STARLING_CHECK(self.first.value >= 1 && self.first < self.ceiling);
  self_.id = signer_.id();
  self_.name = std::move(self.name);
  self_.addresses = std::move(self.addresses);
  self_.instance = self.instance;
  self_.roles = self.roles;
  self_.capabilities = self.capabilities;
  self_.data_set = self.data_set;
  self_.incarnation = self.first;
  sign_record(self_, swarm_, signer_);
  progress_.merge_age(now, Duration{0});
}

// ---- our own record

void Membership::renew_self(TimePoint now, MembershipEffects& effects, FactSpreader::Haste haste) {
  const bool low = next_incarnation_.value + kIncarnationsAhead / 2 >= ceiling_.value;
  if (low && now >= persist_again_) {
    persist_again_ = now + kPersistAgain;
    effects.persist_incarnation =
        Incarnation{std::max(ceiling_, next_incarnation_).value + kIncarnationsAhead};
  }
  renewal_due_ = kNever;
  if (next_incarnation_ >= ceiling_) {
    renewal_waits_ = true;
    effects.notices.push_back(Notice::incarnations_spent);
    return;
  }
  renewal_waits_ = false;
  self_.incarnation = std::exchange(next_incarnation_, next_incarnation_.next());
  sign_record(self_, swarm_, signer_);
  self_signed_ = now;
  spreader_.push(AgedRecord{self_, 0}, self_.id, haste);
}

void Membership::refute(TimePoint now, Incarnation at_least, Duration gap,
                        MembershipEffects& effects) {
  next_incarnation_ = std::max(next_incarnation_, at_least);
  if (now < self_signed_ + gap && self_.incarnation.value > 1) {
    renewal_due_ = std::min(renewal_due_, self_signed_ + gap);
    return;
  }
  renew_self(now, effects);
}

MembershipEffects Membership::on_incarnations_persisted(TimePoint now, Incarnation ceiling) {
  MembershipEffects effects;
  persist_again_ = TimePoint{};
  ceiling_ = std::max(ceiling_, ceiling);
  if (renewal_waits_) renew_self(now, effects);
  finish_event(now, effects);
  return effects;
}

MembershipEffects Membership::set_state(TimePoint now, RecordState state) {
  MembershipEffects effects;
  if (self_.state != state) {
    self_.state = state;
    if (state == RecordState::alive)
      topology_.add(self_.id);
    else
      topology_.remove(self_.id);
    if (state == RecordState::left) cases_.clear();
    renew_self(now, effects);
    refresh_neighbours(now, effects);
  }
  finish_event(now, effects);
  return effects;
}

Result<MembershipEffects> Membership::set_addresses(TimePoint now,
                                                    std::vector<std::string> addresses,
                                                    std::uint32_t capabilities) {
  MembershipEffects effects;
  if (self_.addresses != addresses || self_.capabilities != capabilities) {
    MemberRecord changed = self_;
    changed.addresses = std::move(addresses);
    changed.capabilities = capabilities;
    TRY_VOID(check_record(changed));
    self_.addresses = std::move(changed.addresses);
    self_.capabilities = capabilities;
    renew_self(now, effects);
  }
  finish_event(now, effects);
  return effects;
}

MembershipEffects Membership::set_degree(TimePoint now, std::uint32_t degree) {
  MembershipEffects effects;
  topology_.set_degree(degree);
  refresh_neighbours(now, effects);
  refresh_wanted(now, effects);
  finish_event(now, effects);
  return effects;
}

MembershipEffects Membership::set_settings(TimePoint now, const Hash& settings) {
  MembershipEffects effects;
  if (self_.settings != settings) {
    self_.settings = settings;
    progress_.set_settings(now, settings);
    renew_self(now, effects);
    for (const auto& [id, member] : table_.all()) place_in_topology(member);
    refresh_neighbours(now, effects);
    refresh_wanted(now, effects);
  }
  finish_event(now, effects);
  return effects;
}

// Members that are there, have a model, and train what this node trains (or have not said yet).
void Membership::place_in_topology(const MemberEntry& member) {
  const MemberRecord& record = member.record;
  const bool there = member.state == MemberState::alive || member.state == MemberState::suspect;
  const bool same =
      record.settings == self_.settings || record.settings.is_zero() || self_.settings.is_zero();
  if (there && same && record.state == RecordState::alive)
    topology_.add(record.id);
  else
    topology_.remove(record.id);
}

void Membership::on_local_samples(TimePoint now, std::uint64_t samples) {
  progress_.on_local_samples(now, samples);
}

// ---- sessions

MembershipEffects Membership::on_session_up(TimePoint now, const NodeId& peer,
                                            std::string_view host) {
  MembershipEffects effects;
  if (peer == self_.id) return effects;
  hear_again(now, effects);
  const TokenBucket requests(kBucketRequestsPerSecond, kBucketRequestBurst);
  sessions_.insert_or_assign(peer, Session{.watch = HeartbeatWatch(now, options_.detector),
                                           .requests = requests,
                                           .network = network_of(host),
                                           .last_digest = {},
                                           .last_view = {},
                                           .used = now,
                                           .known = now,
                                           .up = now});
  spreader_.on_session_up(peer);
  dials_.on_up(peer);
  close_case(peer);
  finish_errands(peer, effects);

  // The peer learns who we are, what is said about it, and what we know.
  Facts greeting;
  greeting.records.push_back({self_, seconds_since(self_signed_, now)});
  if (const auto* member = table_.find(peer))
    for (const auto& held : member->accusations) greeting.accusations.push_back(held.accusation);
  effects.send.push_back({peer, std::move(greeting)});
  effects.send.push_back({peer, table_.digest(self_)});

  reassess(now, peer, {Cause::session_lives, self_.id, std::nullopt}, effects);
  finish_event(now, effects);
  return effects;
}

MembershipEffects Membership::on_session_down(TimePoint now, const NodeId& peer, SessionEnd end) {
  MembershipEffects effects;
  const auto at = sessions_.find(peer);
  if (at == sessions_.end()) return effects;
  if (auto* member = table_.find(peer)) member->last_heard = at->second.watch.last_heard();
  // A goodbye that both sides were ready for looks like any other end.
  const bool expected = at->second.given_up || at->second.unneeded;
  const bool answered = at->second.watch.round_trip() > Duration{0};
  dials_.on_down(now, peer, now - at->second.up,
                 answered ? DialPlan::Answered::yes : DialPlan::Answered::no, rng_);
  sessions_.erase(at);
  spreader_.on_session_down(now, peer);
  std::erase_if(errands_, [&](const Errand& errand) { return errand.asker == peer; });
  if (sessions_.empty()) alone_since_ = now;
  if (!expected && (end == SessionEnd::reset || end == SessionEnd::timed_out)) {
    close_case(peer);  // a dial tells more than a session that is gone
    open_case(now, peer, Evidence::session_lost, effects);
  }
  reassess(now, peer, {Cause::own_evidence, self_.id, Evidence::session_lost}, effects);
  finish_event(now, effects);
  return effects;
}

bool Membership::answering(const NodeId& id) const {
  const auto at = sessions_.find(id);
  return at != sessions_.end() && at->second.state == SessionState::answering;
}

std::uint32_t Membership::seconds_since(TimePoint then, TimePoint now) {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(now - then).count();
  return static_cast<std::uint32_t>(std::max<std::int64_t>(age, 0));
}

// ---- time

// This node did not run: what looks like silence of others is its own.
void Membership::forgive_all(TimePoint now) {
  health_.on_late_tick();
  for (auto& [id, session] : sessions_) session.watch.forgive(now);
  std::erase_if(cases_, [](const auto& item) { return item.second.stage == Case::Stage::asking; });
  for (auto& [id, open] : cases_) open.opened = std::max(open.opened, now);
  next_good_ = now + options_.detector.heartbeat_interval;
}

MembershipEffects Membership::on_slept(TimePoint now, Duration slept) {
  MembershipEffects effects;
  if (slept <= Duration{0}) return effects;
  const Duration lives = lifetime();
  self_signed_ -= slept;
  began_ -= slept;
  table_.grow_older(slept);
  forgive_all(now);
  listening_since_ = now;
  for (const auto& id : table_.expired(now, lives)) forget(now, id, Cause::expired, effects);
  finish_event(now, effects);
  return effects;
}

MembershipEffects Membership::on_tick(TimePoint now) {
  MembershipEffects effects;
  if (promised_tick_ != kNever && now > promised_tick_ + options_.detector.late_tick) {
    forgive_all(now);
  } else if (now >= next_good_) {
    health_.on_good_interval();
    next_good_ = now + options_.detector.heartbeat_interval;
  }
  promised_tick_ = kNever;
  tick_sessions(now, effects);
  tick_errands(now, effects);
  tick_cases(now, effects);
  if (now >= renewal_due_) renew_self(now, effects);
  if (now >= next_housekeeping_) keep_house(now, effects);
  finish_event(now, effects);
  return effects;
}

void Membership::tick_sessions(TimePoint now, MembershipEffects& effects) {
  std::vector<NodeId> quiet;
  for (auto& [id, session] : sessions_) {
    if (const auto seq = session.watch.take_due(now))
      effects.send.push_back({id, Heartbeat{*seq, session.unneeded}});
    if (!session.watch.silent(now, health_)) continue;
    session.state = SessionState::silent;
    quiet.push_back(id);
  }
  for (const auto& id : quiet) open_case(now, id, Evidence::no_answer, effects);
}

void Membership::keep_house(TimePoint now, MembershipEffects& effects) {
  next_housekeeping_ = now + kHousekeeping;
  // This node counts whatever its state: beside one other there is nobody to compare that one with.
  progress_.set_members(now, alive_count() + (self_.state == RecordState::alive ? 0 : 1));
  effects.counted_short = progress_.take_counted_short(now);
  spreader_.set_members(alive_count());
  if (self_.state != RecordState::left) {
    if (auto report = progress_.take_due_report(now, self_.incarnation)) {
      sign_report(*report, swarm_, signer_);
      spreader_.push(*report, self_.id);
    }
    // By what others know of the swarm's size, also where this node does not: see lifetime().
    if (now - self_signed_ > options_.table.lifetime(alive_count()) / 3)
      renew_self(now, effects, FactSpreader::Haste::routine);
    else if (renewal_waits_ && now >= persist_again_)
      renew_self(now, effects);
  }
  flush(now, FactSpreader::Urgency::everything, effects);
  for (const auto& id : std::exchange(awaiting_belief_, {}))
    reassess(now, id, {Cause::quorum, self_.id, std::nullopt}, effects);
  if (now >= next_digest_) compare_views(now, effects);
  refresh_neighbours(now, effects);
  refresh_wanted(now, effects);
  close_unneeded(now, effects);
  miss_neighbours(now, effects);
  notice_isolation(now, effects);
}

void Membership::compare_views(TimePoint now, MembershipEffects& effects) {
  // A tenth of jitter keeps nodes that started together from comparing together.
  next_digest_ = now + options_.digest_interval +
                 Duration(static_cast<std::int64_t>(rng_.below(
                     static_cast<std::uint64_t>(options_.digest_interval.count()) / 10 + 1)));
  for (const auto& id : table_.expired(now, lifetime())) forget(now, id, Cause::expired, effects);
  // A suspicion that its subject never heard of would stay: it is told again. To the subject by
  // whoever has a session with it, since those in between pass nothing on twice.
  for (const auto& [id, member] : table_.all()) {
    if (answering(id)) greet_accused(id, effects);
    if (doubtful(now, member))
      for (const auto& held : member.accusations) spreader_.push(held.accusation, self_.id);
  }
  auto partners = sessions();
  const std::uint64_t view = digest_hash(table_.digest(self_));
  for (int turns = 0; turns < 2 && !partners.empty(); ++turns) {
    const auto pick = partners.begin() + static_cast<std::ptrdiff_t>(rng_.below(partners.size()));
    Session& session = sessions_.at(*pick);
    effects.send.push_back({*pick, Heartbeat{session.watch.send_now(now), session.unneeded, view}});
    partners.erase(pick);
  }
}

void Membership::forget(TimePoint now, const NodeId& id, Cause cause, MembershipEffects& effects) {
  const auto* member = table_.find(id);
  if (member == nullptr || sessions_.contains(id)) return;
  effects.changes.push_back({.id = id,
                             .before = member->state,
                             .after = std::nullopt,
                             .cause = cause,
                             .noticed_by = self_.id,
                             .evidence = std::nullopt,
                             .silent_for = std::nullopt});
  progress_.on_departed(now, id);
  topology_.remove(id);
  close_case(id);
  awaiting_belief_.erase(id);
  table_.erase(id);
}

TimePoint Membership::next_deadline() const {
  TimePoint next = std::min(next_housekeeping_, renewal_due_);
  for (const auto& [id, session] : sessions_)
    next = std::min(next, session.state == SessionState::silent
                              ? session.watch.next_heartbeat()
                              : session.watch.next_deadline(health_));
  for (const auto& [id, open] : cases_) next = std::min(next, deadline_of(id, open));
  for (const auto& errand : errands_) next = std::min(next, errand.deadline);
  return next;
}

void Membership::notice_isolation(TimePoint now, MembershipEffects& effects) {
  if (!sessions_.empty()) {
    if (std::exchange(isolated_, false)) effects.notices.push_back(Notice::connected);
    alone_since_.reset();
  } else if (alone_since_ && !isolated_ && now - *alone_since_ >= options_.isolation &&
             self_.state != RecordState::left) {
    isolated_ = true;
    effects.notices.push_back(Notice::isolated);
  }
}

// ---- the end of every event

void Membership::flush(TimePoint now, FactSpreader::Urgency urgency, MembershipEffects& effects) {
  const auto peers = sessions();
  for (auto& push : spreader_.flush(now, peers, urgency))
    effects.send.push_back({push.to, std::move(push.facts)});
}

void Membership::finish_event(TimePoint now, MembershipEffects& effects) {
  flush(now, FactSpreader::Urgency::facts_only, effects);
  if (!effects.changes.empty()) {
    refresh_neighbours(now, effects);
    refresh_wanted(now, effects);
  }
  promise_tick(now);
}

// ---- queries

std::vector<NodeId> Membership::sessions() const {
  std::vector<NodeId> ids;
  ids.reserve(sessions_.size());
  for (const auto& [id, session] : sessions_) ids.push_back(id);
  return ids;
}

std::optional<MemberState> Membership::state_of(const NodeId& id) const {
  const auto* member = table_.find(id);
  if (member == nullptr) return std::nullopt;
  return member->state;
}

std::optional<MemberView> Membership::find(const NodeId& id) const {
  const auto* member = table_.find(id);
  if (member == nullptr) return std::nullopt;
  MemberView view;
  view.record = member->record;
  view.state = member->state;
  view.samples = progress_.samples_of(id);
  const auto session = sessions_.find(id);
  if (session != sessions_.end() && session->second.watch.round_trip() > Duration{0})
    view.round_trip = session->second.watch.round_trip();
  return view;
}

std::vector<MemberView> Membership::members() const {
  std::vector<MemberView> views;
  views.reserve(table_.size());
  for (const auto& [id, member] : table_.all()) views.push_back(*find(id));
  return views;
}

std::size_t Membership::alive_count() const {
  return table_.count(MemberState::alive) + table_.count(MemberState::suspect) +
         (self_.state == RecordState::alive ? 1 : 0);
}

std::size_t Membership::alive_count_with(const Hash& settings) const {
  return static_cast<std::size_t>(std::ranges::count_if(table_.all(), [&](const auto& item) {
    const auto& [id, member] = item;
    return (member.state == MemberState::alive || member.state == MemberState::suspect) &&
           member.record.settings == settings;
  }));
}

bool Membership::may_average_with(const NodeId& id) const {
  const auto* member = table_.find(id);
  return member != nullptr && member->record.state == RecordState::alive &&
         (member->state == MemberState::alive || member->state == MemberState::suspect);
}

}  // namespace starling::gossip
