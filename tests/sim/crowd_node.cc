#include "tests/sim/crowd_node.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace starling::sim {
namespace {

using namespace gossip;

// As Membership keeps house.
constexpr Duration kHousekeeping = std::chrono::milliseconds(250);

NodeEffects taken(MembershipEffects effects) {
  NodeEffects out;
  out.send = std::move(effects.send);
  for (const auto& wanted : effects.wanted_sessions) out.wanted.push_back(wanted.id);
  return out;
}

std::uint32_t age_s(TimePoint signed_at, TimePoint now) {
  return static_cast<std::uint32_t>(std::max(0.0, seconds(now - signed_at)));
}

}  // namespace

// ---- what was said

Index Library::enter(const NodeId& id) {
  const auto member = static_cast<Index>(ids_.size());
  ids_.push_back(id);
  places_.emplace(id, member);
  by_prefix_.emplace(prefix_of(id), member);
  records_.emplace_back();
  reports_.emplace_back();
  auto& bucket = buckets_[bucket_of(id)];
  const auto place = std::ranges::upper_bound(bucket, id, {}, [&](Index i) { return ids_[i]; });
  bucket.insert(place, member);
  return member;
}

void Library::keep(const MemberRecord& record, TimePoint signed_at) {
  auto& kept = records_[index_of(record.id)];
  if (kept.empty() || kept.back().record.incarnation < record.incarnation)
    kept.push_back({record, signed_at});
}

void Library::keep(const ProgressReport& report) {
  auto& newest = reports_[index_of(report.id)];
  if (report.samples > newest.samples) newest = report;
}

const Library::Kept* Library::record(Index member, Incarnation incarnation) const {
  for (const auto& kept : records_[member])
    if (kept.record.incarnation == incarnation) return &kept;
  return nullptr;
}

const ProgressReport* Library::report(Index member) const {
  return reports_[member].samples == 0 ? nullptr : &reports_[member];
}

Facts Library::answer(TimePoint now, const BucketRequest& request, const Known& known) const {
  Facts answer;
  answer.answers = request.nonce;
  std::size_t used = 0;
  NodeId last = request.after;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (!request.buckets[bucket]) continue;
    for (const Index member : buckets_[bucket]) {
      const Kept* kept = record(member, known(member));
      if (kept == nullptr || !(request.after < ids_[member])) continue;
      const AgedRecord aged{kept->record, age_s(kept->signed_at, now)};
      used += wire_bytes(aged) + kAccusationBytes + 40;
      if (used > kMaxFactsBytes) {
        answer.more_after = last;
        return answer;
      }
      last = ids_[member];
      answer.records.push_back(aged);
      if (const auto* said = report(member)) answer.reports.push_back(*said);
    }
  }
  return answer;
}

// ---- whole nodes

NodeEffects Whole::on_session_up(TimePoint now, const NodeId& peer) {
  return taken(membership_.on_session_up(now, peer));
}

NodeEffects Whole::on_message(TimePoint now, const NodeId& from, const MembershipMessage& message) {
  return taken(membership_.on_message(now, from, message));
}

NodeEffects Whole::on_tick(TimePoint now) {
  if (training_.samples_per_second > 0) membership_.on_local_samples(now, training_.samples(now));
  return taken(membership_.on_tick(now));
}

// ---- relays

Relay::Relay(TimePoint now, Library& library, const MembershipParts& parts, Training training,
             Rng rng)
    : library_(library),
      options_(parts.options),
      swarm_(parts.swarm),
      signer_(parts.signer),
      training_(training),
      rng_(rng),
      progress_(parts.signer.id(), parts.options.progress),
      spreader_(parts.signer.id(), parts.options.spread) {
  const auto random_part_of = [&](Duration interval) {
    return Duration(
        static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(interval.count()))));
  };
  next_house_ = now + random_part_of(kHousekeeping);
  next_digest_ = now + random_part_of(options_.digest_interval);
  incarnations_.resize(library.size());
  samples_.resize(library.size());
  for (Index member = 0; member < library.size(); ++member)
    if (const auto& records = library.records(member); !records.empty())
      incarnations_[member] = static_cast<std::uint32_t>(records.back().record.incarnation.value);
  const auto& own = library.records(library.index_of(signer_.id())).back();
  self_ = own.record;
  self_signed_ = own.signed_at;
  stale_.set();
}

void Relay::learn(Index member, Incarnation incarnation) {
  if (member >= incarnations_.size()) {
    incarnations_.resize(library_.size());
    samples_.resize(library_.size());
  }
  incarnations_[member] = static_cast<std::uint32_t>(incarnation.value);
  stale_.set(bucket_of(library_.id(member)));
}

const Digest& Relay::digest() {
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (!stale_[bucket]) continue;
    BucketHash hash;
    for (const Index member : library_.bucket(bucket)) {
      if (member >= incarnations_.size() || incarnations_[member] == 0) continue;
      hash.add(library_.record(member, Incarnation{incarnations_[member]})->record,
               MemberState::alive);
    }
    digest_.buckets[bucket] = hash.finish();
  }
  stale_.reset();
  return digest_;
}

NodeEffects Relay::on_session_up(TimePoint now, const NodeId& peer) {
  NodeEffects effects;
  sessions_.push_back({peer, gossip::HeartbeatWatch(now, options_.detector)});
  spreader_.on_session_up(peer);
  Facts greeting;
  greeting.records.push_back({self_, age_s(self_signed_, now)});
  effects.send.push_back({peer, std::move(greeting)});
  effects.send.push_back({peer, digest()});
  return effects;
}

NodeEffects Relay::on_message(TimePoint now, const NodeId& from, const MembershipMessage& message) {
  NodeEffects effects;
  const auto session = std::ranges::find(sessions_, from, &Session::peer);
  if (session != sessions_.end()) {
    session->watch.on_heard(now);
    if (std::holds_alternative<Heartbeat>(message)) session->watch.on_asked(now);
    if (const auto* ack = std::get_if<HeartbeatAck>(&message))
      session->watch.on_answer(now, ack->seq);
  }
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) {
    effects.send.push_back({from, HeartbeatAck{heartbeat->seq}});
    if (heartbeat->view != 0 && heartbeat->view != digest_hash(digest())) {
      Digest mine = digest();
      mine.wants_reply = true;
      effects.send.push_back({from, mine});
    }
  } else if (const auto* probe = std::get_if<ProbeRequest>(&message)) {
    effects.send.push_back({from, ProbeReply{probe->nonce, probe->subject}});
  } else if (const auto* facts = std::get_if<Facts>(&message)) {
    take(now, from, *facts, effects);
  } else if (const auto* digest = std::get_if<Digest>(&message)) {
    take(from, *digest, effects);
  } else if (const auto* request = std::get_if<BucketRequest>(&message)) {
    const auto known = [&](Index member) {
      return Incarnation{member < incarnations_.size() ? incarnations_[member] : 0U};
    };
    effects.send.push_back({from, library_.answer(now, *request, known)});
  }
  return effects;
}

void Relay::take(TimePoint now, const NodeId& from, const Facts& facts, NodeEffects& effects) {
  const bool answer = spreader_.answers_request(from, facts);
  const auto asked = [&](const NodeId& id) { return answer && spreader_.was_asked_for(from, id); };
  for (const auto& aged : facts.records) {
    const Index member = library_.index_of(aged.record.id);
    const std::uint64_t known = member < incarnations_.size() ? incarnations_[member] : 0;
    if (aged.record.incarnation.value <= known) {
      if (aged.record.incarnation.value == known) spreader_.on_repeat(aged, from);
      continue;
    }
    if (!asked(aged.record.id) && !spreader_.may_send_fact(now, from)) continue;
    const auto* held = library_.record(member, Incarnation{known});
    const bool routine = held != nullptr && says_the_same(aged.record, held->record);
    learn(member, aged.record.incarnation);
    spreader_.push(aged, from,
                   routine ? FactSpreader::Haste::routine : FactSpreader::Haste::at_once);
  }
  for (const auto& report : facts.reports) {
    const Index member = library_.index_of(report.id);
    if (member >= samples_.size()) continue;
    if (report.samples <= samples_[member]) {
      spreader_.on_repeat(report, from);
      continue;
    }
    if (!asked(report.id) && !spreader_.may_send_report(now, from)) continue;
    samples_[member] = static_cast<std::uint32_t>(report.samples);
    spreader_.push(report, from);
  }
  take_names(now, from, facts, effects);
  if (answer)
    if (const auto next = spreader_.continue_request(from, facts, rng_() | 1U))
      effects.send.push_back({from, *next});
  flush(now, FactSpreader::Urgency::facts_only, effects);
}

bool Relay::misses(const FactName& name) const {
  const Index member = library_.subject_of(name);
  if (name.kind == FactName::Kind::record)
    return member >= incarnations_.size() || incarnations_[member] < name.version;
  return member < samples_.size() && samples_[member] < name.version;
}

void Relay::take_names(TimePoint now, const NodeId& from, const Facts& facts,
                       NodeEffects& effects) {
  Facts question;
  for (const auto& name : facts.has) {
    if (!spreader_.may_name(now, from)) break;
    if (!misses(name))
      spreader_.note_holder(name, from);
    else if (spreader_.on_announced(now, from, name))
      question.wants.push_back(name);
  }
  Facts answer;
  for (const auto& name : facts.wants) {
    if (!spreader_.may_want(now, from)) break;
    const Index member = library_.subject_of(name);
    if (name.kind == FactName::Kind::report) {
      if (const auto* report = library_.report(member)) spreader_.on_wanted(from, *report);
    } else if (member < incarnations_.size()) {
      if (const auto* kept = library_.record(member, Incarnation{incarnations_[member]}))
        answer.records.push_back({kept->record, age_s(kept->signed_at, now)});
    }
  }
  if (!question.empty()) effects.send.push_back({from, std::move(question)});
  for (auto& part : split(answer)) effects.send.push_back({from, std::move(part)});
}

void Relay::take(const NodeId& from, const Digest& theirs, NodeEffects& effects) {
  if (const auto request = spreader_.ask(from, digest(), theirs, rng_() | 1U))
    effects.send.push_back({from, *request});
  if (theirs.wants_reply) effects.send.push_back({from, digest()});
}

NodeEffects Relay::on_tick(TimePoint now) {
  NodeEffects effects;
  for (auto& session : sessions_) {
    if (const auto seq = session.watch.take_due(now))
      effects.send.push_back({session.peer, Heartbeat{*seq}});
  }
  if (now >= next_house_) keep_house(now, effects);
  return effects;
}

void Relay::keep_house(TimePoint now, NodeEffects& effects) {
  next_house_ = now + kHousekeeping;
  progress_.set_members(now, library_.size());
  spreader_.set_members(library_.size());
  if (training_.samples_per_second > 0) progress_.on_local_samples(now, training_.samples(now));
  if (auto report = progress_.take_due_report(now, self_.incarnation)) {
    sign_report(*report, swarm_, signer_);
    library_.keep(*report);
    spreader_.push(*report, self_.id);
  }
  if (now - self_signed_ > options_.table.lifetime(library_.size()) / 3) {
    self_.incarnation = self_.incarnation.next();
    sign_record(self_, swarm_, signer_);
    self_signed_ = now;
    library_.keep(self_, now);
    learn(library_.index_of(self_.id), self_.incarnation);
    spreader_.push(AgedRecord{self_, 0}, self_.id, FactSpreader::Haste::routine);
  }
  flush(now, FactSpreader::Urgency::everything, effects);
  if (now < next_digest_) return;
  next_digest_ = now + options_.digest_interval +
                 Duration(static_cast<std::int64_t>(rng_.below(
                     static_cast<std::uint64_t>(options_.digest_interval.count()) / 10 + 1)));
  const std::uint64_t view = digest_hash(digest());
  std::vector<Session*> partners;
  for (auto& session : sessions_) partners.push_back(&session);
  for (int turns = 0; turns < 2 && !partners.empty(); ++turns) {
    const auto pick = partners.begin() + static_cast<std::ptrdiff_t>(rng_.below(partners.size()));
    effects.send.push_back({(*pick)->peer, Heartbeat{(*pick)->watch.send_now(now), false, view}});
    partners.erase(pick);
  }
}

void Relay::flush(TimePoint now, FactSpreader::Urgency urgency, NodeEffects& effects) {
  std::vector<NodeId> peers;
  for (const auto& session : sessions_) peers.push_back(session.peer);
  for (auto& push : spreader_.flush(now, peers, urgency))
    effects.send.push_back({push.to, std::move(push.facts)});
}

TimePoint Relay::next_deadline() const {
  TimePoint next = next_house_;
  for (const auto& session : sessions_) next = std::min(next, session.watch.next_heartbeat());
  return next;
}

}  // namespace starling::sim
