// Decisions of a join: whose settings this node follows, and how often it takes others.
#include "bootstrap/join.h"

#include <algorithm>
#include <utility>

namespace starling::bootstrap {
namespace {

// Other builds and other data that a swarm meets are few; whoever makes up more is tried again.
constexpr std::size_t kMaxUnusable = 16;
// From one try of other settings to the next: a second, then twice as long each time, up to a
// minute; and a second again where nothing was tried for so long.
constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLastPause = std::chrono::minutes(1);
constexpr Duration kCalm = std::chrono::minutes(10);

}  // namespace

// To state a number costs nothing: members count as far as they are seen here, with other settings
// than this node's. So a liar has to invent the members as well (node/decisions/0040), and of two
// islands that meet the smaller one waits for membership to show it the larger.
std::uint64_t Join::believed_alive(const NodeId& id, const Hello& hello) const {
  const std::uint64_t seen = facts_.alive.size();
  const std::uint64_t others = seen - std::min(seen, facts_.alive_same.value_or(0));
  const std::uint64_t itself = std::ranges::binary_search(facts_.alive, id) ? 0 : 1;
  return std::min(hello.alive, others + itself);
}

void Join::compare(TimePoint now, const NodeId& id, JoinEffects& out) {
  Peer& peer = peers_.at(id);
  if (!peer.hello || !peer.said || phase_ == JoinPhase::over) return;
  peer.believed = believed_alive(id, *peer.hello);
  const SettingsSide here{own_, forced_, peer.said->alive, peer.said->samples};
  const SettingsSide there{peer.hello->settings, peer.hello->forced, peer.believed,
                           peer.hello->samples};
  auto decision = decide(here, there);
  const bool was_same = std::exchange(peer.same, decision.verdict == SettingsVerdict::same);
  switch (decision.verdict) {
    case SettingsVerdict::same:
      peer.refused = false;
      if (!was_same) out.emplace_back(SameSettings{id});
      if (!required_peers_met()) met_.insert(id);
      return;
    case SettingsVerdict::they_adopt:
      return;  // their next hello shows it
    case SettingsVerdict::adopt_theirs:
      return adopt(now, id, std::move(decision.diff), out);
    case SettingsVerdict::refused:
      if (peer.refused) return;
      refuse(id, peer,
             "refused by " + short_form(id) + ": " + decision.diff + " (" + decision.forced +
                 "); drop what is forced, or --adopt takes the swarm's",
             out);
      enforce_requirement(now, out);
      return;
  }
}

void Join::adopt(TimePoint now, const NodeId& id, std::string diff, JoinEffects& out) {
  if (facts_.phase == RunPhase::finished || facts_.phase == RunPhase::leaving) return;
  if (phase_ == JoinPhase::adopting || facts_.phase == RunPhase::finishing) {
    put_off_ = true;
    return;
  }
  Peer& peer = peers_.at(id);
  const Hash wanted = peer.hello->settings.fingerprint();
  const auto tried = std::ranges::find(unusable_, wanted, &std::pair<Hash, std::string>::first);
  if (tried != unusable_.end()) return refuse(id, peer, tried->second, out);
  if (now < adopt_from_) {
    put_off_ = true;
    return;
  }
  receiver_.reset();
  adopting_ = wanted;
  phase_ = JoinPhase::adopting;
  out.emplace_back(AdoptSettings{peer.hello->settings, id, std::move(diff)});
}

// Every try costs a genesis, and one that succeeds the training. Before membership shows how large
// the runs of its peers are, a node would take them in turn for nothing, and those of a liar that
// has a new one in every Hello. update() comes back to what is put off.
void Join::pause_adopting(TimePoint now) {
  const bool calm = now - adopt_from_ > kCalm;
  adopt_pause_ = calm ? kFirstPause : std::clamp(2 * adopt_pause_, kFirstPause, kLastPause);
  adopt_from_ = now + adopt_pause_;
}

void Join::refuse(const NodeId& id, Peer& peer, std::string sentence, JoinEffects& out) {
  if (std::exchange(peer.refused, true)) return;
  last_refusal_ = std::move(sentence);
  out.emplace_back(SettingsRefused{id, last_refusal_});
}

// Members that were only claimed have come into view, or gone from it; or the pause is over.
void Join::compare_again(TimePoint now, JoinEffects& out) {
  const bool due = put_off_ && now >= adopt_from_;
  if (due) put_off_ = false;
  for (const auto& [id, peer] : peers_)
    if (peer.hello && !peer.same && (due || peer.believed != believed_alive(id, *peer.hello)))
      compare(now, id, out);
}

JoinEffects Join::on_settings_adopted(TimePoint now, const Settings& settings) {
  JoinEffects out;
  own_ = settings;
  pause_adopting(now);
  start_ = Start::genesis;  // a checkpoint of other settings is of no use
  // Another search begins where a model had ended one. Nobody renews the waits of one that goes on
  // by having other settings each time (node/decisions/0077).
  if (running_) search_ = {};
  running_ = false;
  facts_.age = 0;
  facts_.max_state_bytes = 0;
  facts_.phase = RunPhase::starting;
  // The count is of the old settings. Until update() counts anew, whoever did not have those has
  // the new ones: otherwise the neighbours that were left look like the larger side.
  if (facts_.alive_same)
    facts_.alive_same = facts_.alive.size() - std::min(facts_.alive.size(), *facts_.alive_same);
  receiver_.reset();
  installing_.reset();
  fetched_.clear();
  sponsor_.drop();
  // A requirement that was met stays met: the timeout of the start is long past for a node that
  // ran.
  if (!required_peers_met()) met_.clear();
  phase_ = JoinPhase::greeting;
  grace_until_ = std::max(grace_until_, now + options_.hello_patience);
  for (auto& [id, peer] : peers_) {
    peer.same = false;
    greet(now, id, peer, out);
  }
  std::vector<NodeId> ids;
  for (const auto& [id, peer] : peers_) ids.push_back(id);
  for (const auto& id : ids) compare(now, id, out);
  proceed(now, out);
  return out;
}

JoinEffects Join::on_settings_unusable(TimePoint now, const Error& why) {
  JoinEffects out;
  last_refusal_ = "the settings of the swarm cannot be used here: " + why.detail;
  if (phase_ != JoinPhase::adopting) return out;
  if (unusable_.size() >= kMaxUnusable) unusable_.erase(unusable_.begin());
  unusable_.emplace_back(adopting_, last_refusal_);
  pause_adopting(now);
  stop_adopting();
  for (auto& [id, peer] : peers_)
    if (peer.hello && peer.hello->settings.fingerprint() == adopting_)
      refuse(id, peer, last_refusal_, out);
  enforce_requirement(now, out);
  return out;
}

JoinEffects Join::on_settings_kept(TimePoint) {
  if (phase_ == JoinPhase::adopting) stop_adopting();
  return {};
}

// What the shell was told to do before goes on, and its outcome is still to come.
void Join::stop_adopting() {
  if (installing_)
    phase_ = JoinPhase::installing;
  else if (running_)
    phase_ = JoinPhase::member;
  else
    phase_ = fetched_.empty() ? JoinPhase::greeting : JoinPhase::fetching;
}

}  // namespace starling::bootstrap
