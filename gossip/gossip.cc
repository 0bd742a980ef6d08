#include "gossip/gossip.h"

#include "gossip/consensus/message_codec.h"
#include "gossip/exchange/message_codec.h"
#include "gossip/membership/message_codec.h"
#include "node/base/check.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {

namespace {

// P is looked at this often; between two looks nothing that depends on it changes noticeably.
constexpr Duration kProgressPeriod = std::chrono::milliseconds(200);

// Below this age, and this share of the budget, a replica that was restored is as good as none.
constexpr double kUntrainedSteps = 10;
constexpr double kUntrainedShare = 0.01;

}  // namespace

Gossip::Gossip(TimePoint now, GossipParts parts, Rng rng)
    : self_(parts.signer.id()),
      swarm_(parts.swarm),
      options_(parts.options),
      signer_(parts.signer),
      verifier_(parts.verifier),
      rng_(rng),
      membership_(now,
                  {parts.swarm, std::move(parts.self), options_.membership, signer_, verifier_},
                  Rng(rng_())) {}

GossipEffects Gossip::on_session_up(TimePoint now, const NodeId& peer, Instance instance,
                                    std::string_view host) {
  GossipEffects out;
  sessions_[peer] = instance;
  take(now, membership_.on_session_up(now, peer, host), out);
  if (consensus_) take(now, consensus_->on_session_up(now, peer), out);
  return out;
}

GossipEffects Gossip::on_session_down(TimePoint now, const NodeId& peer, SessionEnd end) {
  GossipEffects out;
  sessions_.erase(peer);
  same_settings_.erase(peer);
  if (mixer_) take(now, mixer_->on_session_down(now, peer), out);
  if (consensus_) take(now, consensus_->on_session_down(now, peer), out);
  if (merge_) take_merge(merge_->on_session_down(now, peer), out);
  take(now, membership_.on_session_down(now, peer, end), out);
  return out;
}

template <class Decoded, class Handle>
void Gossip::deliver(const NodeId& from, Decoded decoded, Handle handle, GossipEffects& out) {
  if (decoded) {
    handle(std::move(*decoded));
  } else {
    out.emplace_back(CloseSession{from, std::move(decoded).error()});
  }
}

GossipEffects Gossip::on_message(TimePoint now, const NodeId& from,
                                 const transport::Message& message) {
  GossipEffects out;
  const auto room = message.room();
  if (room != transport::Room::membership)
    take(now, membership_.on_heard(now, from, Traffic::use), out);
  switch (room) {
    case transport::Room::membership:
      deliver(
          from, decode_membership(message),
          [&](const MembershipMessage& m) { take(now, membership_.on_message(now, from, m), out); },
          out);
      break;
    case transport::Room::exchange:
      deliver(
          from, decode_exchange(message),
          [&](ExchangeMessage m) { on_exchange(now, from, std::move(m), out); }, out);
      break;
    case transport::Room::consensus:
      if (!consensus_) break;
      deliver(
          from, consensus::decode(message),
          [&](const consensus::ConsensusMessage& m) {
            take(now, consensus_->on_message(now, from, m), out);
            if (merge_) take_merge(merge_->on_message(now, from, m), out);
          },
          out);
      break;
    case transport::Room::session:
    case transport::Room::bootstrap:
      STARLING_CHECK(false);  // routed elsewhere by the driver
  }
  advance(now, out);
  return out;
}

void Gossip::on_exchange(TimePoint now, const NodeId& from, ExchangeMessage message,
                         GossipEffects& out) {
  if (mixer_ && same_settings_.contains(from))
    return take(now, mixer_->on_message(now, from, std::move(message)), out);
  // Nothing is averaged with that peer now. It would wait for minutes, with a reference and a place
  // taken. Not `unknown_edge`, after which the next opening follows at once.
  const auto decline = [&](Generation generation) {
    const EdgeClose close{generation, CloseReason::not_wanted};
    out.emplace_back(Outgoing{from, encode_exchange(close)});
  };
  if (const auto* open = std::get_if<EdgeOpen>(&message)) decline(open->generation);
  if (const auto* resume = std::get_if<Resume>(&message)) decline(resume->generation);
}

GossipEffects Gossip::on_heard(TimePoint now, const NodeId& from, Traffic traffic) {
  GossipEffects out;
  take(now, membership_.on_heard(now, from, traffic), out);
  return out;
}

bool Gossip::admits(const NodeId& from, std::uint16_t type, std::size_t attachment_bytes) const {
  switch (static_cast<transport::Room>(type >> 8)) {
    case transport::Room::exchange:
      return mixer_ && same_settings_.contains(from) && attachment_bytes <= model_.max_payload;
    case transport::Room::consensus:
      return consensus_ && attachment_bytes <= consensus::kMaxConsensusAttachment;
    default:
      return false;
  }
}

GossipEffects Gossip::on_refused(TimePoint now, const NodeId& peer,
                                 const transport::Message& message) {
  GossipEffects out;
  const auto room = message.room();
  if (room == transport::Room::consensus && consensus_) on_bulk_refused(now, peer, message, out);
  if (room != transport::Room::exchange || !mixer_) return out;
  deliver(
      peer, decode_refused(message.type, message.body),
      [&](const ExchangeMessage& m) { take(now, mixer_->on_refused(now, peer, m), out); }, out);
  return out;
}

void Gossip::on_bulk_refused(TimePoint now, const NodeId& peer, const transport::Message& message,
                             GossipEffects& out) {
  // Without its attachment a certificate is no message any more.
  if (message.type == static_cast<std::uint16_t>(consensus::MessageType::certificate)) {
    if (!fault::planted("consensus.refused_certificate_not_shown_again"))
      take(now, consensus_->on_certificate_refused(now, peer), out);
    return;
  }
  deliver(
      peer, consensus::decode(message),
      [&](const consensus::ConsensusMessage& m) {
        take(now, consensus_->on_refused(now, peer, m), out);
        if (merge_) take_merge(merge_->on_refused(now, peer, m), out);
      },
      out);
}

GossipEffects Gossip::on_dial_refused(TimePoint now, const NodeId& peer) {
  GossipEffects out;
  take(now, membership_.on_dial_refused(now, peer), out);
  return out;
}

GossipEffects Gossip::on_dial_failed(TimePoint now, const NodeId& peer) {
  GossipEffects out;
  take(now, membership_.on_dial_failed(now, peer), out);
  return out;
}

GossipEffects Gossip::on_incarnations_persisted(TimePoint now, Incarnation ceiling) {
  GossipEffects out;
  take(now, membership_.on_incarnations_persisted(now, ceiling), out);
  return out;
}

GossipEffects Gossip::on_slept(TimePoint now, Duration slept) {
  GossipEffects out;
  take(now, membership_.on_slept(now, slept), out);
  advance(now, out);
  return out;
}

GossipEffects Gossip::on_tick(TimePoint now) {
  GossipEffects out;
  // A final consensus (or a merge) runs over the sessions that its members named.
  const bool agreeing = (consensus_ && !consensus_->idle()) || (merge_ && merge_->running());
  membership_.hold_sessions(phase_ != Phase::averaging || agreeing);
  // An edge keeps a reference as large as the model until it is closed, in a session.
  for (const auto& [peer, instance] : sessions_) {
    const Edge* edge = mixer_ ? mixer_->find_edge(peer) : nullptr;
    if (edge != nullptr && edge->state() != EdgeState::closed) membership_.use_session(now, peer);
  }
  take(now, membership_.on_tick(now), out);
  if (mixer_) take(now, mixer_->on_tick(now), out);
  if (consensus_) take(now, consensus_->on_tick(now), out);
  if (merge_) take_merge(merge_->on_tick(now), out);
  if (now >= next_progress_) update_progress(now, out);
  advance(now, out);
  return out;
}

TimePoint Gossip::next_deadline() const {
  TimePoint next = std::min(membership_.next_deadline(), leave_deadline_);
  if (mixer_) next = std::min({next, mixer_->next_deadline(), next_progress_});
  if (consensus_) next = std::min(next, consensus_->next_deadline());
  if (merge_) next = std::min(next, merge_->next_deadline());
  return next;
}

GossipEffects Gossip::begin_averaging(TimePoint now, const ModelFacts& model, Beginning beginning) {
  GossipEffects out;
  model_ = model;
  origin_ = beginning.origin;
  options_.exchange.degree = model.degree != 0 ? model.degree : MixerOptions{}.degree;
  options_.exchange.edge.inbox_bytes = 3 * model.max_payload;
  record_told_ = {};
  take(now, membership_.set_settings(now, model.fingerprint), out);  // now P is of this run
  mixer_ = std::make_unique<Mixer>(self_, options_.exchange, model.blocks, Rng(rng_()));
  const auto contributes = comes_untrained(now, beginning) ? Contributes::no : Contributes::yes;
  if (contributes == Contributes::no) out.emplace_back(PauseTraining{});
  consensus_ = std::make_unique<FinalConsensus>(consensus_options(contributes), signer_, verifier_);
  merge_ = std::make_unique<Merge>(consensus_options(Contributes::yes), signer_, verifier_);
  if (beginning.origin == Origin::restored) consensus_->expect(now, known_company());
  for (const auto& member : membership_.members())
    take(now, consensus_->on_member(now, member.record.id, presence_of(member)), out);
  if (phase_ == Phase::joining) phase_ = Phase::averaging;
  far_behind_told_ = false;
  mixer_->continue_from({.steps = beginning.steps, .samples = beginning.samples});
  if (beginning.age > 0) take(now, mixer_->adopt_replica(now, beginning.age), out);
  take(now, membership_.set_degree(now, model.degree), out);
  take(now, membership_.set_state(now, RecordState::alive), out);
  for (const auto& [peer, instance] : sessions_) {
    take(now, consensus_->on_session_up(now, peer), out);
    if (!same_settings_.contains(peer)) continue;
    take_merge(merge_->on_session_up(now, peer), out);
    take(now, mixer_->on_session_up(now, peer, instance), out);
  }
  update_neighbours(now, out);
  update_progress(now, out);
  return out;
}

// Who else counts in P, by what a checkpoint holds: nobody where this node has always been alone.
std::set<NodeId> Gossip::known_company() const {
  std::set<NodeId> known;
  for (const auto& counter : membership_.progress().saved())
    if (counter.id != self_) known.insert(counter.id);
  return known;
}

// Whether others have spent the budget and nothing of it is in the replica with which this node
// begins: drawn from the seed, or saved by a process that began like this. It takes the final model
// from whoever has it, and trains no more, or the next process would find a replica of some age.
bool Gossip::comes_untrained(TimePoint now, const Beginning& beginning) {
  if (progress_share(now) < 1.0 || beginning.age >= kUntrainedSteps) return false;
  return beginning.origin == Origin::genesis ||
         (beginning.origin == Origin::restored &&
          static_cast<double>(beginning.samples) <
              kUntrainedShare * static_cast<double>(model_.budget.samples));
}

GossipEffects Gossip::end_averaging(TimePoint now) {
  GossipEffects out;
  if (mixer_) {
    // Neighbours that hear nothing keep a reference as large as the model, and wait for answers.
    ExchangeEffects ending = mixer_->end(now);
    ending.jobs.clear();  // the references go with the replica
    take(now, std::move(ending), out);
  }
  mixer_.reset();
  consensus_.reset();
  merge_.reset();
  same_settings_.clear();
  phase_ = Phase::joining;
  training_paused_ = ended_ = false;
  take(now, membership_.set_state(now, RecordState::joining), out);
  // What is heard of counts and ages from now on may be of another run.
  take(now, membership_.set_settings(now, Hash{}), out);
  return out;
}

GossipEffects Gossip::on_same_settings(TimePoint now, const NodeId& peer) {
  GossipEffects out;
  if (!sessions_.contains(peer) || !same_settings_.insert(peer).second) return out;
  connect(now, peer, out);
  return out;
}

void Gossip::connect(TimePoint now, const NodeId& peer, GossipEffects& out) {
  if (!mixer_) return;
  take_merge(merge_->on_session_up(now, peer), out);
  take(now, mixer_->on_session_up(now, peer, sessions_.at(peer)), out);
  update_neighbours(now, out);
}

GossipEffects Gossip::on_adopted(TimePoint now, double age) {
  GossipEffects out;
  origin_ = Origin::transferred;
  far_behind_told_ = false;
  if (mixer_) take(now, mixer_->adopt_replica(now, age), out);
  update_neighbours(now, out);
  return out;
}

GossipEffects Gossip::on_steps(TimePoint now, const TrainingFigures& figures) {
  GossipEffects out;
  membership_.on_local_samples(now, figures.samples);
  if (!mixer_) return out;
  const TrainingState state{.steps = figures.steps,
                            .samples = figures.samples,
                            .progress = progress_share(now),
                            .step_time = figures.step_time};
  take(now, mixer_->on_steps(now, state), out);
  update_progress(now, out);
  return out;
}

void Gossip::on_goodput(const NodeId& peer, double bytes_per_second) {
  if (mixer_) mixer_->on_goodput(peer, bytes_per_second);
}

GossipEffects Gossip::on_codec_done(TimePoint now, CodecOutcome outcome) {
  GossipEffects out;
  if (mixer_) take(now, mixer_->on_job_done(now, std::move(outcome)), out);
  advance(now, out);
  return out;
}

Result<GossipEffects> Gossip::set_addresses(TimePoint now, std::vector<std::string> addresses) {
  const std::uint32_t able = addresses.empty() ? 0 : capability::kDialable;
  TRY(MembershipEffects effects, membership_.set_addresses(now, std::move(addresses), able));
  GossipEffects out;
  take(now, std::move(effects), out);
  return out;
}

std::uint64_t Gossip::swarm_samples(TimePoint now) { return membership_.progress().total(now); }

double Gossip::share_of(TimePoint now, const Budget& budget) {
  if (budget.samples > 0)
    return std::min(1.0,
                    static_cast<double>(swarm_samples(now)) / static_cast<double>(budget.samples));
  if (budget.time > Duration::zero())
    return std::min(1.0, seconds(membership_.progress().run_age(now)) / seconds(budget.time));
  return 0;
}

// A peer of a new edge learns who proposes it, even where the record has not spread yet.
void Gossip::update_record() {
  static_assert(kMaxRecordBytes <= exchange_limits::kMaxRecord);
  const MemberRecord& self = membership_.self();
  if (!mixer_ || self.incarnation == record_told_) return;
  record_told_ = self.incarnation;
  mixer_->set_record(encode_record(self));
}

void Gossip::take(TimePoint now, MembershipEffects effects, GossipEffects& out) {
  update_record();
  for (auto& sent : effects.send) out.emplace_back(Outgoing{sent.to, encode(sent.message)});
  for (auto& wanted : effects.wanted_sessions) out.emplace_back(std::move(wanted));
  for (auto& offence : effects.offences)
    out.emplace_back(CloseSession{offence.peer, std::move(offence.error)});
  for (const NodeId& peer : effects.given_up)
    out.emplace_back(CloseSession{
        peer, Error{Errc::timed_out, Doing::reading_message, "heartbeats without answer"}});
  for (const NodeId& peer : effects.unneeded)
    out.emplace_back(
        CloseSession{peer, Error{Errc::cancelled, Doing::stopping, "neither side needs it"}});
  if (effects.persist_incarnation)
    out.emplace_back(PersistIncarnation{*effects.persist_incarnation});
  for (const auto& change : effects.changes) {
    react(now, change, out);
    out.emplace_back(change);
  }
  for (const Notice notice : effects.notices) {
    if (notice == Notice::neighbours_changed) update_neighbours(now, out);
    out.emplace_back(notice);
  }
  if (effects.counted_short) out.emplace_back(*effects.counted_short);
}

consensus::Presence Gossip::presence_of(const std::optional<MemberView>& member) const {
  using consensus::Presence;
  if (!member) return Presence::forgotten;
  if (member->state == MemberState::dead || member->state == MemberState::left)
    return Presence::gone;
  const bool trains = member->state != MemberState::joining &&
                      (member->record.roles & role::kTrainer) != 0 &&
                      member->record.settings == model_.fingerprint;
  return trains ? Presence::trains : Presence::present;
}

void Gossip::react(TimePoint now, const MemberChange& change, GossipEffects& out) {
  const bool gone =
      !change.after || *change.after == MemberState::dead || *change.after == MemberState::left;
  const auto presence = presence_of(membership_.find(change.id));
  if (consensus_) take(now, consensus_->on_member(now, change.id, presence), out);
  if (gone && merge_) take_merge(merge_->on_member_gone(now, change.id), out);
  // A joiner that became alive may be averaged with from now on.
  if (!gone) update_neighbours(now, out);
}

void Gossip::take(TimePoint now, ExchangeEffects effects, GossipEffects& out) {
  for (auto& sent : effects.send)
    out.emplace_back(Outgoing{sent.to, encode_exchange(sent.message)});
  for (auto& job : effects.jobs) out.emplace_back(std::move(job));
  for (auto& event : effects.events) out.emplace_back(std::move(event));
  for (const auto& incoming : effects.records) {
    auto record = parse_record(incoming.record);
    if (!record) {
      out.emplace_back(CloseSession{incoming.from, std::move(record).error()});
      continue;
    }
    Facts facts;
    facts.records.push_back({std::move(*record), 0});
    take(now, membership_.on_message(now, incoming.from, facts), out);
  }
}

void Gossip::update_neighbours(TimePoint now, GossipEffects& out) {
  if (!mixer_ || phase_ != Phase::averaging) return;
  std::vector<NodeId> wanted = membership_.neighbours();
  // Without a degree of the settings the topology has more neighbours in a large swarm, those
  // without a session at the moment included.
  if (model_.degree == 0)
    mixer_->set_degree(std::max(MixerOptions{}.degree, static_cast<std::uint32_t>(wanted.size())));
  std::erase_if(wanted, [this](const NodeId& id) {
    return !same_settings_.contains(id) || !membership_.may_average_with(id);
  });
  take(now, mixer_->on_neighbours(now, wanted, membership_.guests()), out);
}

void Gossip::update_progress(TimePoint now, GossipEffects& out) {
  next_progress_ = now + kProgressPeriod;
  if (!consensus_) return;
  update_standing(now, out);
  const std::uint64_t samples = swarm_samples(now);
  consensus_->on_samples(samples);
  if (merge_) merge_->on_samples(samples);
  const Budget& budget = model_.budget;
  if (budget.samples > 0) {
    take(now, consensus_->on_progress(now, samples, budget.samples), out);
  } else if (budget.time > Duration::zero()) {
    const auto age = membership_.progress().run_age(now);
    take(now,
         consensus_->on_progress(now, static_cast<std::uint64_t>(age.count()),
                                 static_cast<std::uint64_t>(budget.time.count())),
         out);
  }
}

void Gossip::update_standing(TimePoint now, GossipEffects& out) {
  const Lag lag = mixer_ ? mixer_->lag() : Lag{};
  const bool newcomer = mixer_ && origin_ == Origin::transferred && mixer_->newcomer();
  const auto standing =
      newcomer || lag.far_behind ? consensus::Role::follower : consensus::Role::participant;
  take(now, consensus_->on_standing(now, standing), out);
  if (merge_) take_merge(merge_->on_standing(now, standing), out);
  if (lag.caught_up) far_behind_told_ = false;
  if (lag.far_behind && phase_ == Phase::averaging && !std::exchange(far_behind_told_, true))
    out.emplace_back(FarBehind{lag});
}

}  // namespace starling::gossip
