// Decisions of a join: sponsor, when to begin, when to give up.
#include "bootstrap/join.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace starling::bootstrap {
namespace {

// A peer that could not sponsor us is not asked again before this has passed.
constexpr Duration kSponsorPause = std::chrono::seconds(5);
// Of more that failed only those with a session are remembered.
constexpr std::size_t kMaxFailed = 256;
// Certificates that led to nothing are left alone for the first pause, then twice as long each
// time, up to the last. Of so many, all others are, too: new ones are made up as fast.
constexpr std::size_t kMaxUnfetched = 3;
constexpr Duration kFirstFetchPause = std::chrono::minutes(1);
constexpr Duration kLastFetchPause = std::chrono::hours(1);
// A hello is repeated at once when a number in it has changed by more than this factor.
constexpr double kMuch = 2;
constexpr Duration kPatientTick = std::chrono::seconds(1);

bool differs_much(const Hello& a, const Hello& b) {
  const auto far = [](double x, double y) { return std::max(x, y) > kMuch * std::min(x, y) + 100; };
  return a.settings != b.settings || a.forced != b.forced || a.phase != b.phase ||
         a.certificate != b.certificate || a.load != b.load || a.alive != b.alive ||
         far(a.age, b.age);
}

std::string name_list(const std::vector<AddressReport>& reports) {
  std::string text;
  std::size_t shown = 0;
  for (const auto& report : reports) {
    if (++shown > 4) return text + "; and " + std::to_string(reports.size() - 4) + " more";
    text += (text.empty() ? "" : "; ") + to_string(report.endpoint) + " ";
    // Who was turned away wants to know why; of the others the kind is enough.
    if (report.last_end && is_turned_away(*report.last_end) && !report.detail.empty())
      text += report.detail;
    else
      text += report.last_end ? std::string(name_of(*report.last_end))
                              : std::string(report.peer ? "answered" : "not tried yet");
  }
  return text;
}

bool any_refused_by_name(const std::vector<AddressReport>& reports) {
  return std::ranges::any_of(
      reports, [](const auto& report) { return report.last_end == DialEnd::refused_by_name; });
}

}  // namespace

// ---- hello

Hello Join::hello() const {
  Hello hello;
  hello.settings = own_;
  hello.forced = forced_;
  hello.alive = facts_.alive_same.value_or(facts_.alive.size()) + (running_ ? 1 : 0);
  hello.samples = facts_.samples;
  hello.age = facts_.age;
  // Others should not begin at genesis beside a node that is about to be far from it.
  if (receiver_ && !running_)
    if (const auto at = peers_.find(receiver_->sponsor()); at != peers_.end() && at->second.hello)
      hello.age = std::max(hello.age, at->second.hello->age);
  hello.phase = facts_.phase;
  hello.load = sponsor_.load();
  hello.certificate = facts_.certificate;
  return hello;
}

void Join::greet(TimePoint, const NodeId& id, Peer& peer, JoinEffects& out) {
  peer.said = hello();
  out.emplace_back(BootstrapOutgoing{id, *peer.said});
}

void Join::greet_all(TimePoint now, JoinEffects& out) {
  const Hello current = hello();
  for (auto& [id, peer] : peers_)
    if (!peer.said || differs_much(current, *peer.said)) greet(now, id, peer, out);
}

// ---- the end of the swarm

bool Join::may_fetch(TimePoint now, const Hash& certificate) const {
  if (fetched_.contains(certificate)) return false;
  const bool fresh = search_.unfetched.size() < kMaxUnfetched;
  return now >= search_.fetch_from || (fresh && !search_.unfetched.contains(certificate));
}

// Whoever comes to a finished swarm takes its model; where others still train, it joins them: one
// that was cut off and ended alone is no end of the swarm. A node that runs is shown the
// certificate itself: a word ends nothing.
bool Join::fetch_if_finished(TimePoint now, JoinEffects& out) {
  if (running_ || facts_.phase == RunPhase::finished || facts_.phase == RunPhase::leaving)
    return false;
  std::optional<FetchFinal> finished;
  for (const auto& [id, peer] : peers_) {
    if (!peer.hello && now < hello_due(peer)) return false;
    if (!peer.hello || !peer.same) continue;
    if (peer.hello->phase == RunPhase::training && now >= peer.no_sponsor) return false;
    if (peer.hello->phase == RunPhase::finished && !peer.hello->certificate.is_zero() &&
        now >= peer.up + options_.finished_choice && may_fetch(now, peer.hello->certificate))
      finished = FetchFinal{id, peer.hello->certificate};
  }
  if (!finished) return false;
  fetched_.insert(finished->certificate);
  out.emplace_back(*finished);
  phase_ = JoinPhase::fetching;
  return true;
}

void Join::rest_if_finished() {
  if (facts_.phase != RunPhase::finished || phase_ == JoinPhase::member) return;
  if (phase_ == JoinPhase::over) return;
  receiver_.reset();
  installing_.reset();
  search_ = {};
  running_ = told_joined_ = true;
  phase_ = JoinPhase::member;
}

JoinEffects Join::on_final_unavailable(TimePoint now) {
  JoinEffects out;
  if (phase_ != JoinPhase::fetching && phase_ != JoinPhase::adopting) return out;
  for (const auto& certificate : std::exchange(fetched_, {}))
    if (search_.unfetched.size() < kMaxUnfetched) search_.unfetched.insert(certificate);
  search_.fetch_pause = std::clamp(2 * search_.fetch_pause, kFirstFetchPause, kLastFetchPause);
  search_.fetch_from = now + search_.fetch_pause;
  grace_until_ = now + options_.grace;
  if (phase_ != JoinPhase::adopting) phase_ = JoinPhase::greeting;
  return out;
}

// ---- how this node begins

bool Join::can_sponsor(TimePoint now, const Peer& peer) const {
  return peer.same && peer.hello && peer.hello->phase == RunPhase::training &&
         peer.hello->age >= options_.genesis_age && peer.hello->age > facts_.age &&
         now >= peer.no_sponsor;
}

// A replica at genesis has no place in the mean that is being made: this node takes the result.
bool Join::ends_soon(TimePoint now, const Peer& peer) {
  if (peer.hello->phase != RunPhase::finishing || start_ != Start::genesis) return false;
  if (!search_.finishing) search_.finishing = now;
  return now < *search_.finishing + options_.finish_patience;
}

void Join::proceed(TimePoint now, JoinEffects& out) {
  if (!begun_) return;
  if (phase_ == JoinPhase::choosing && now >= choose_at_) return choose_sponsor(now, out);
  if (phase_ != JoinPhase::seeking && phase_ != JoinPhase::greeting) return;
  if (phase_ == JoinPhase::greeting && peers_.empty()) phase_ = JoinPhase::seeking;
  if (fetch_if_finished(now, out) || !required_peers_met()) return;

  bool awaited = false;  // somebody whose hello may change everything
  bool old = false;      // somebody is far from genesis, or about to be
  const NodeId* young = nullptr;
  for (const auto& [id, peer] : peers_) {
    if (!peer.hello && now < hello_due(peer)) awaited = true;
    if (!peer.hello || !peer.same) continue;
    const auto phase = peer.hello->phase;
    if (ends_soon(now, peer)) awaited = true;
    if (phase != RunPhase::starting && phase != RunPhase::training) continue;
    if (peer.hello->age >= options_.genesis_age)
      old = true;
    else
      young = &id;
    if (!can_sponsor(now, peer) || start_ == Start::checkpoint) continue;
    phase_ = JoinPhase::choosing;
    choose_at_ = now + options_.sponsor_choice;
    return;
  }
  // A node with a checkpoint has its model; how far behind it is shows in the exchanges.
  if (old && start_ == Start::checkpoint && !awaited)
    return start_training(now, "the swarm is there, going on from the checkpoint", std::nullopt,
                          out);
  if (young != nullptr && !old && !awaited)
    return start_training(now, "met " + short_form(*young) + " at genesis", *young, out);
  if (now >= grace_until_ && !awaited)
    start_training(now, dialler_.has_addresses() ? "alone: nobody answered in time" : "alone",
                   std::nullopt, out);
}

void Join::start_training(TimePoint now, std::string why, std::optional<NodeId> via,
                          JoinEffects& out) {
  search_ = {};
  running_ = true;
  phase_ = JoinPhase::member;
  out.emplace_back(BeginTraining{start_, std::move(why)});
  if (!std::exchange(told_joined_, true)) out.emplace_back(Joined{via, now - began_});
}

// Load and age are claims, and whoever says nothing at all costs a long wait: those who failed come
// last. A new name has not failed yet, so every second try asks anybody: names with the best claims
// have their share of the tries and not all.
std::optional<NodeId> Join::next_sponsor(TimePoint now) {
  std::vector<std::map<NodeId, Peer>::const_iterator> able;
  for (auto at = peers_.cbegin(); at != peers_.cend(); ++at)
    if (can_sponsor(now, at->second)) able.push_back(at);
  if (able.empty()) return std::nullopt;
  if (search_.tries % 2 == 1) return able[rng_.below(able.size())]->first;
  const auto rank = [&](const auto& at) {
    const auto failed = search_.failures.find(at->first);
    const Hello& said = *at->second.hello;
    return std::tuple(failed == search_.failures.end() ? 0U : failed->second, said.load, -said.age);
  };
  return (*std::ranges::min_element(able, {}, rank))->first;
}

void Join::sponsor_failed(TimePoint now, const NodeId& id, Duration pause) {
  if (search_.failures.size() >= kMaxFailed)
    std::erase_if(search_.failures, [&](const auto& item) { return !peers_.contains(item.first); });
  ++search_.failures[id];
  if (const auto at = peers_.find(id); at != peers_.end()) at->second.no_sponsor = now + pause;
}

void Join::choose_sponsor(TimePoint now, JoinEffects& out) {
  const auto best = next_sponsor(now);
  if (!best) {
    // Those that refused may be asked again soon; a member goes on as it is.
    const bool later = std::ranges::any_of(
        peers_, [&](const auto& item) { return item.second.same && now < item.second.no_sponsor; });
    choose_at_ = now + kPatientTick;
    if (later) return;
    grace_until_ = std::max(grace_until_, now + kPatientTick);
    phase_ = running_ ? JoinPhase::member : JoinPhase::greeting;
    return;
  }
  choose_at_ = now + kPatientTick;
  if (facts_.max_state_bytes == 0) return;  // the size of the model is not known yet
  ++search_.tries;
  receiver_.emplace(own_.fingerprint(), facts_.max_state_bytes, options_.transfer,
                    running_ ? std::optional(facts_.age) : std::nullopt);
  phase_ = JoinPhase::loading;
  take_transfer(now, receiver_->start(now, *best), out);
  greet_all(now, out);
}

void Join::take_transfer(TimePoint now, ReceiverEffects effects, JoinEffects& out) {
  for (auto& outgoing : effects.send) out.emplace_back(std::move(outgoing));
  for (auto& offence : effects.offences) out.emplace_back(std::move(offence));
  if (effects.complete && running_ && effects.complete->manifest.age <= facts_.age) {
    // The exchanges, which went on while it came, have brought this node further. Others were told
    // that they can have it here.
    sponsor_.hold(now, effects.complete);
    receiver_.reset();
    phase_ = JoinPhase::member;
    return;
  }
  if (effects.complete) {
    installing_ = effects.complete;
    InstallState install;
    install.snapshot = effects.complete;
    install.sponsor = receiver_->sponsor();
    install.loading = receiver_->progress(now).loading;
    installed_from_ = install.sponsor;
    install.counters = std::move(effects.facts->counters);
    install.run_age = std::chrono::milliseconds(
        static_cast<std::int64_t>(std::min<std::uint64_t>(effects.facts->run_age_ms, 1ULL << 42U)));
    receiver_.reset();
    phase_ = JoinPhase::installing;
    out.emplace_back(std::move(install));
    return;
  }
  if (effects.failed) {
    out.emplace_back(TransferFailed{receiver_->sponsor(), std::move(effects.why)});
    sponsor_failed(now, receiver_->sponsor(),
                   effects.not_ahead ? 10 * kSponsorPause : kSponsorPause);
    receiver_.reset();
    phase_ = JoinPhase::choosing;
    choose_at_ = now;
    choose_sponsor(now, out);
    return;
  }
  look_for_donors(now, out);
}

// Without a donor everybody is asked who might hold the snapshot.
void Join::look_for_donors(TimePoint now, JoinEffects& out) {
  if (!receiver_ || !receiver_->orphaned()) return;
  for (const auto& [id, peer] : peers_)
    if (peer.same)
      for (auto& outgoing : receiver_->offer_donor(now, id).send)
        out.emplace_back(std::move(outgoing));
}

JoinEffects Join::on_state_installed(TimePoint now) {
  JoinEffects out;
  // While other settings are looked at, what was begun goes on.
  const bool looking = phase_ == JoinPhase::adopting && installing_ != nullptr;
  if (phase_ != JoinPhase::installing && !looking) return out;
  search_ = {};
  running_ = true;
  if (!looking) phase_ = JoinPhase::member;
  const auto snapshot = std::exchange(installing_, nullptr);
  if (snapshot) sponsor_.hold(now, snapshot);
  if (!std::exchange(told_joined_, true)) out.emplace_back(Joined{installed_from_, now - began_});
  return out;
}

JoinEffects Join::on_state_unusable(TimePoint now, const Error& why) {
  JoinEffects out;
  const bool looking = phase_ == JoinPhase::adopting && installing_ != nullptr;
  if (phase_ != JoinPhase::installing && !looking) return out;
  installing_.reset();
  out.emplace_back(TransferFailed{installed_from_, "cannot be used here: " + why.detail});
  sponsor_failed(now, installed_from_, 10 * kSponsorPause);
  if (looking) return out;
  phase_ = JoinPhase::choosing;
  choose_at_ = now;
  choose_sponsor(now, out);
  return out;
}

// ---- giving up

bool Join::is_refused(const NodeId& id) const {
  const auto at = peers_.find(id);
  return at != peers_.end() && at->second.refused;
}

// Settings that a person forced do not change by waiting. Whoever has not answered yet may have the
// right ones: behind the name of a service, say, where one pod still serves an older run.
bool Join::hopeless() const {
  return !last_refusal_.empty() && met_.empty() &&
         std::ranges::all_of(peers_, [](const auto& item) { return item.second.refused; }) &&
         dialler_.all_answered_by([&](const NodeId& id) { return is_refused(id); });
}

void Join::enforce_requirement(TimePoint now, JoinEffects& out) {
  if (options_.require_peers == 0 || required_peers_met() || phase_ == JoinPhase::over || running_)
    return;
  const bool time_is_over = begun_ && now >= began_ + options_.join_timeout;
  if (!time_is_over && !hopeless()) return;
  Error error{Errc::not_enough_peers, Doing::joining, ""};
  const std::string addresses = name_list(dialler_.report());
  if (!last_refusal_.empty() && met_.empty()) {
    error.code = Errc::settings_mismatch;
    error.detail = last_refusal_;
  } else if (!dialler_.all_turned_away(options_.silent_closes)) {
    error.detail = std::to_string(met_.size()) + " of " + std::to_string(options_.require_peers) +
                   " required peers within " +
                   std::to_string(static_cast<std::int64_t>(seconds(options_.join_timeout))) +
                   " s" + (addresses.empty() ? "" : " (" + addresses + ")");
  } else {
    error.code = any_refused_by_name(dialler_.report()) ? Errc::refused : Errc::wrong_swarm;
    error.detail = "every address turned this node away: " + addresses;
  }
  phase_ = JoinPhase::over;
  out.emplace_back(GiveUp{std::move(error)});
}

// ---- time

JoinEffects Join::update(TimePoint now, LocalFacts facts) {
  JoinEffects out;
  facts_ = std::move(facts);
  rest_if_finished();
  for (const auto& known : facts_.addresses) dialler_.learn(known.endpoint, known.id);
  dial(now, out);
  greet_all(now, out);
  compare_again(now, out);
  proceed(now, out);
  return out;
}

JoinEffects Join::on_tick(TimePoint now) {
  JoinEffects out;
  if (phase_ == JoinPhase::over) return out;
  sponsor_.on_tick(now);
  if (receiver_) take_transfer(now, receiver_->on_tick(now), out);
  if (now >= next_hello_) {
    next_hello_ = now + options_.hello_refresh;
    for (auto& [id, peer] : peers_) greet(now, id, peer, out);
  }
  dial(now, out);
  enforce_requirement(now, out);
  checked_ = now;
  proceed(now, out);
  return out;
}

TimePoint Join::next_deadline() const {
  if (phase_ == JoinPhase::over) return kNever;
  TimePoint next = std::min(next_hello_, sponsor_.next_deadline());
  if (receiver_) next = std::min(next, receiver_->next_deadline());
  if (dials()) next = std::min(next, dialler_.next_deadline());
  if (phase_ == JoinPhase::choosing) next = std::min(next, choose_at_);
  if (phase_ == JoinPhase::seeking || phase_ == JoinPhase::greeting) {
    // Once these have passed only an event changes anything: they are not asked for again.
    if (grace_until_ > checked_) next = std::min(next, grace_until_);
    for (const auto& [id, peer] : peers_) {
      const TimePoint due = peer.hello ? peer.up + options_.finished_choice : hello_due(peer);
      if (due > checked_) next = std::min(next, due);
    }
  }
  if (begun_ && !required_peers_met() && !running_)
    next = std::min(next, began_ + options_.join_timeout);
  return next;
}

}  // namespace starling::bootstrap
