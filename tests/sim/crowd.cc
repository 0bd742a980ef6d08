#include "tests/sim/crowd.h"

#include "gossip/membership/message_codec.h"
#include "node/base/check.h"
#include "transport/limits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <variant>

namespace starling::sim {
namespace {

using namespace gossip;
using consensus::testing::FakeSigner;
using consensus::testing::node_id;
using namespace std::chrono_literals;

constexpr SwarmId kSwarm{};
// Until everybody has heard of a newcomer, and until the next one comes.
constexpr Duration kBetweenJoins = 2s;
// The same among those who do not deliver: what was missed comes when views are compared.
constexpr Duration kBetweenJoinsAmongMutes = 35s;
// TCP's handshake and that of the session take five ways.
constexpr int kWaysToASession = 5;

std::string_view kind_of(const MembershipMessage& message) {
  constexpr std::array<std::string_view, 7> kKinds{
      "heartbeats", "answers", "probes", "probe replies", "facts", "digests", "bucket requests"};
  return kKinds[message.index()];
}

double wire_bytes_of(const MembershipMessage& message) {
  return static_cast<double>(transport::limits::kLengthPrefix + transport::limits::kMinCiphertext +
                             transport::limits::kMessageHead + encode(message).body.size());
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double place = std::round(share * static_cast<double>(values.size() - 1));
  return values[static_cast<std::size_t>(place)];
}

}  // namespace

Crowd::Crowd(CrowdOptions options) : options_(options), rng_(options.seed) {
  options_.whole = std::min(options_.whole, options_.nodes);
  // Far from the beginning of time: records are older than the run.
  (void)schedule_.run_next(schedule_.now() + 100h);
}

Duration Crowd::random(Duration below) {
  return Duration(static_cast<std::int64_t>(rng_.below(static_cast<std::uint64_t>(below.count()))));
}

Duration Crowd::delay(Index a, Index b) const {
  const std::uint64_t pair = std::uint64_t{std::min(a, b)} << 32 | std::max(a, b);
  const double share = Rng(options_.seed ^ pair).unit();
  return options_.nearest +
         Duration(static_cast<std::int64_t>(
             share * static_cast<double>((options_.farthest - options_.nearest).count())));
}

Index Crowd::enter() {
  const auto member = static_cast<Index>(members_.size());
  const NodeId id = node_id(options_.seed << 32 | member);
  STARLING_CHECK_OP(library_.enter(id), ==, member);
  members_.push_back(
      {.signer = std::make_unique<FakeSigner>(id), .node = {}, .peers = {}, .announced = {}});
  return member;
}

MembershipParts Crowd::parts_of(Index member) const {
  SelfDescription self;
  self.name = "member-" + std::to_string(member);
  self.addresses = {"10." + std::to_string(member >> 16) + "." +
                    std::to_string(member >> 8 & 0xffU) + "." + std::to_string(member & 0xffU) +
                    ":7400"};
  self.instance = Instance{member + 1};
  return {kSwarm, std::move(self), membership_, *members_[member].signer, verifier_};
}

// Members began at different moments, so their reports come at different moments.
Training Crowd::training() {
  ProgressOptions progress = membership_.progress;
  const auto interval =
      std::max(progress.min_interval,
               Duration(static_cast<std::int64_t>(static_cast<double>(options_.nodes) /
                                                  progress.reports_per_second * 1e6)));
  return {options_.samples_per_second, schedule_.now() + random(interval)};
}

// ---- the beginning

// Everybody has signed its record some time ago and knows all the others.
void Crowd::found() {
  const TimePoint now = schedule_.now();
  const Duration renewal = membership_.table.lifetime(options_.nodes) / 3;
  std::vector<NodeId> ids;
  std::vector<TimePoint> since;
  for (std::size_t i = 0; i < options_.nodes; ++i) {
    const Index member = enter();
    ids.push_back(library_.id(member));
    since.push_back(now - 1min - random(renewal - 1min));
    Whole node(since.back(), parts_of(member), {}, Rng(rng_()));
    (void)node.membership().set_state(since.back(), RecordState::alive);
    library_.keep(node.membership().self(), since.back());
  }
  Topology topology(kSwarm, membership_.topology);
  for (const auto& id : ids) topology.add(id);
  for (Index member = 0; member < options_.nodes; ++member) {
    Member& at = members_[member];
    if (member < options_.whole) {
      load_view(member, since[member]);
    } else {
      at.node = std::make_unique<Relay>(now, library_, parts_of(member), training(), Rng(rng_()));
    }
    for (const auto& peer : topology.neighbours_of(library_.id(member)))
      if (const Index other = library_.index_of(peer); member < other)
        schedule_.after(random(500ms), [this, member, other] { connect(member, other); });
    schedule_.after(0us, [this, member] { arm(member); });
  }
}

// A whole node asks for all records before the run begins, as after a first session.
void Crowd::load_view(Index member, TimePoint since) {
  Member& at = members_[member];
  auto node = std::make_unique<Whole>(since, parts_of(member), training(), Rng(rng_()));
  Membership& membership = node->membership();
  // Looks around at some moment, so that not all do it together.
  const TimePoint now = schedule_.now();
  (void)membership.on_tick(now - 1s - random(membership_.digest_interval));
  (void)membership.on_tick(now - random(250ms));
  const NodeId contact = library_.id(member == 0 ? 1 : 0);
  (void)membership.on_session_up(now, contact);
  Digest other;
  other.buckets.fill(1);
  MembershipEffects effects = membership.on_message(now, contact, other);
  const auto newest = [&](Index i) { return library_.records(i).back().record.incarnation; };
  while (!effects.send.empty()) {
    const auto* request = std::get_if<BucketRequest>(&effects.send.front().message);
    if (request == nullptr) break;
    effects = membership.on_message(now, contact, library_.answer(now, *request, newest));
  }
  (void)membership.on_session_down(now, contact, SessionEnd::bye);
  (void)membership.set_state(since, RecordState::alive);
  STARLING_CHECK_OP(membership.members().size(), ==, options_.nodes - 1);
  at.whole = node.get();
  at.node = std::move(node);
}

// ---- sessions and messages

void Crowd::connect(Index a, Index b) {
  if (a == b || !members_[a].peers.insert(b).second) return;
  members_[b].peers.insert(a);
  const TimePoint now = schedule_.now();
  carry_out(a, members_[a].node->on_session_up(now, library_.id(b)));
  carry_out(b, members_[b].node->on_session_up(now, library_.id(a)));
}

void Crowd::dial(Index from, Index to) {
  schedule_.after(kWaysToASession * delay(from, to), [this, from, to] { connect(from, to); });
}

void Crowd::carry_out(Index member, NodeEffects effects) {
  for (auto& outgoing : effects.send) send(member, std::move(outgoing));
  for (const auto& id : effects.wanted) dial(member, library_.index_of(id));
  arm(member);
}

void Crowd::send(Index from, MembershipOutgoing outgoing) {
  const Index to = library_.index_of(outgoing.to);
  // What whole nodes say of themselves must be there for relays to pass on.
  if (const auto* facts = std::get_if<Facts>(&outgoing.message); facts && members_[from].whole) {
    for (const auto& aged : facts->records)
      if (aged.record.id == outgoing.to || aged.record.id == library_.id(from))
        library_.keep(aged.record, schedule_.now() - std::chrono::seconds(aged.age_s));
    for (const auto& report : facts->reports) library_.keep(report);
  }
  if (counting_) count_sent(from, outgoing.message);
  if (auto* facts = std::get_if<Facts>(&outgoing.message); facts && mute(from)) {
    withhold(from, *facts);
    if (facts->empty() && facts->answers == 0) return;
  }
  transmit(from, to, std::move(outgoing.message));
}

void Crowd::transmit(Index from, Index to, MembershipMessage message) {
  schedule_.after(delay(from, to),
                  [this, from, to, said = std::move(message)] { deliver(from, to, said); });
}

// ---- those who promise and do not deliver

bool Crowd::mute(Index member) const {
  return options_.mute_every > 0 && member < options_.nodes &&
         member % options_.mute_every == options_.mute_every - 1;
}

void Crowd::withhold(Index from, Facts& facts) const {
  const NodeId& own = library_.id(from);
  std::erase_if(facts.records, [&](const AgedRecord& aged) { return aged.record.id != own; });
  std::erase_if(facts.reports, [&](const ProgressReport& report) { return report.id != own; });
  facts.accusations.clear();
}

void Crowd::announce(Index from, const Facts& heard) {
  Member& at = members_[from];
  Facts promise;
  const auto add = [&](const FactName& name) {
    if (at.announced.insert(name).second) promise.has.push_back(name);
  };
  for (const auto& aged : heard.records) add(name_of(aged.record));
  for (const auto& report : heard.reports) add(name_of(report));
  for (const auto& name : heard.has) add(name);
  if (promise.has.empty()) return;
  for (const Index peer : at.peers) transmit(from, peer, promise);
}

void Crowd::deliver(Index from, Index to, const MembershipMessage& message) {
  count_received(from, to, message);
  if (const auto* facts = std::get_if<Facts>(&message); facts && mute(to)) announce(to, *facts);
  carry_out(to, members_[to].node->on_message(schedule_.now(), library_.id(from), message));
}

void Crowd::arm(Index member) {
  Member& at = members_[member];
  const TimePoint due = std::max(at.node->next_deadline(), schedule_.now());
  if (at.armed <= due) return;
  at.armed = due;
  schedule_.at(due, [this, member, due] { tick(member, due); });
}

void Crowd::tick(Index member, TimePoint armed) {
  Member& at = members_[member];
  if (at.armed != armed) return;
  at.armed = kNever;
  carry_out(member, at.node->on_tick(schedule_.now()));
}

void Crowd::run_for(Duration time) {
  const TimePoint end = schedule_.now() + time;
  while (schedule_.run_next(end)) {
  }
}

// ---- counting

void Crowd::count_sent(Index from, const MembershipMessage& message) {
  if (const auto* facts = std::get_if<Facts>(&message)) {
    reports_sent_ += facts->reports.size();
    for (const auto& report : facts->reports)
      if (report.id == library_.id(from)) ++reports_made_;
  }
  if (members_[from].whole == nullptr) {
    ++relay_messages_;
    return;
  }
  Rate& rate = sent_[kind_of(message)];
  rate.messages += 1;
  rate.bytes += wire_bytes_of(message);
}

void Crowd::count_received(Index from, Index to, const MembershipMessage& message) {
  const auto* facts = std::get_if<Facts>(&message);
  if (facts == nullptr) return;
  if (counting_) reports_received_ += facts->reports.size();
  if (track_ == nullptr) return;
  for (const auto& aged : facts->records) {
    if (aged.record.id != library_.id(track_->subject) || to == track_->subject) continue;
    ++track_->copies;
    auto& hops = track_->hops[to];
    if (hops != 0) continue;
    hops = track_->hops[from] + 1;
    ++track_->heard;
    track_->last = schedule_.now();
  }
}

void Crowd::measure(CrowdFigures& figures) {
  counting_ = true;
  run_for(options_.measure);
  counting_ = false;
  const double time = seconds(options_.measure);
  const auto whole = static_cast<double>(options_.whole);
  for (const auto& [kind, sum] : sent_) {
    const Rate rate{sum.messages / time / whole, sum.bytes / time / whole};
    figures.kinds[kind] = rate;
    figures.whole_rate.messages += rate.messages;
    figures.whole_rate.bytes += rate.bytes;
  }
  double ends = 0;
  for (const auto& member : members_) ends += static_cast<double>(member.peers.size());
  figures.sessions = ends / static_cast<double>(members_.size());
  figures.reports_per_edge = static_cast<double>(reports_sent_) / time / ends;
  if (options_.whole < options_.nodes)
    figures.relay_messages = static_cast<double>(relay_messages_) / time /
                             static_cast<double>(options_.nodes - options_.whole);
  // A node's own report goes to all its neighbours.
  const double made = static_cast<double>(reports_made_) / figures.sessions;
  if (made > 0)
    figures.report_redundancy =
        static_cast<double>(reports_received_) / made / static_cast<double>(options_.nodes - 1) - 1;
}

// A node that knows one address.
void Crowd::join(Track& track) {
  const TimePoint now = schedule_.now();
  auto contact = static_cast<Index>(rng_.below(members_.size()));
  if (mute(contact)) --contact;  // whoever knows nobody else knows what that one says
  track.subject = enter();
  track.born = now;
  track.hops.assign(members_.size(), 0);
  Member& at = members_[track.subject];
  auto node = std::make_unique<Whole>(now, parts_of(track.subject), Training{}, Rng(rng_()));
  library_.keep(node->membership().self(), now);
  at.whole = node.get();
  at.node = std::move(node);
  track_ = &track;
  dial(track.subject, contact);
}

void Crowd::watch_joins(CrowdFigures& figures) {
  std::vector<double> known;
  double copies = 0;
  for (std::size_t i = 0; i < options_.joins; ++i) {
    Track track;
    join(track);
    run_for(options_.mute_every > 0 ? kBetweenJoinsAmongMutes : kBetweenJoins);
    track_ = nullptr;
    const std::size_t others = members_.size() - 1;
    figures.missed += others - track.heard;
    known.push_back(seconds(track.last - track.born));
    copies += static_cast<double>(track.copies - track.heard) / static_cast<double>(track.heard);
    figures.last_hop = std::max(figures.last_hop, *std::ranges::max_element(track.hops));
  }
  figures.known_p50 = quantile(known, 0.5);
  figures.known_p95 = quantile(known, 0.95);
  if (options_.joins > 0) figures.news_redundancy = copies / static_cast<double>(options_.joins);
}

CrowdFigures Crowd::run() {
  CrowdFigures figures;
  figures.nodes = options_.nodes;
  figures.whole = options_.whole;
  found();
  const TimePoint began = schedule_.now();
  run_for(options_.settle);
  measure(figures);
  watch_joins(figures);
  for (auto& member : members_) {
    if (member.whole == nullptr) continue;
    for (const auto& view : member.whole->membership().members())
      figures.accused += view.state == MemberState::suspect || view.state == MemberState::dead;
  }
  figures.events = schedule_.events();
  figures.virtual_seconds = seconds(schedule_.now() - began);
  return figures;
}

}  // namespace starling::sim
