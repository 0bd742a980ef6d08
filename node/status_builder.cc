#include "node/status_builder.h"

#include "node/wall_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace starling::node {

namespace {

namespace consensus = gossip::consensus;

MemberState state_of(gossip::MemberState state) {
  switch (state) {
    case gossip::MemberState::joining:
      return MemberState::joining;
    case gossip::MemberState::alive:
      return MemberState::alive;
    case gossip::MemberState::suspect:
      return MemberState::suspect;
    case gossip::MemberState::dead:
      return MemberState::dead;
    case gossip::MemberState::left:
      return MemberState::left;
  }
  return MemberState::joining;
}

// How the phases of the protocol are told to people (design section 13).
std::string consensus_word(const consensus::ConsensusState& state) {
  switch (state.phase) {
    case consensus::Phase::idle:
      return "none";
    case consensus::Phase::collecting:
    case consensus::Phase::confirming:
    case consensus::Phase::freezing:
    case consensus::Phase::following:
      return "agreeing";
    case consensus::Phase::reducing:
    case consensus::Phase::fetching:
      return "reducing";
    case consensus::Phase::checking:
    case consensus::Phase::certifying:
      return "certifying";
    case consensus::Phase::lingering:
    case consensus::Phase::done:
      return state.role == consensus::Role::participant ? "certified" : "adopted";
    case consensus::Phase::failed:
      // A node that leaves before any end has begun stops its protocol, which is no failure.
      return state.epoch.value == 0 ? "none" : "failed";
  }
  return "none";
}

MemberStatus own_member(const StatusSources& sources) {
  const auto& record = sources.gossip.membership().self();
  MemberStatus own;
  own.id = to_hex(record.id.view());
  own.name = record.name;
  own.state = record.state == gossip::RecordState::alive  ? MemberState::alive
              : record.state == gossip::RecordState::left ? MemberState::left
                                                          : MemberState::joining;
  own.address = sources.figures.address;
  own.samples = sources.gossip.membership().progress().own_samples();
  own.incarnation = record.incarnation.value;
  own.self = true;
  return own;
}

void fill_members(const StatusSources& sources, StatusSnapshot& status) {
  status.members.push_back(own_member(sources));
  for (const auto& member : sources.gossip.membership().members()) {
    MemberStatus one;
    one.id = to_hex(member.record.id.view());
    one.name = member.record.name;
    one.state = state_of(member.state);
    if (!member.record.addresses.empty()) one.address = member.record.addresses.front();
    one.samples = member.samples;
    one.incarnation = member.record.incarnation.value;
    const auto reason = sources.figures.member_reasons.find(member.record.id);
    const bool doubted = one.state == MemberState::suspect || one.state == MemberState::dead;
    if (doubted && reason != sources.figures.member_reasons.end()) one.reason = reason->second;
    status.members.push_back(std::move(one));
  }
}

NeighbourStatus neighbour_status(TimePoint now, const gossip::NeighbourView& view,
                                 const std::optional<gossip::MemberView>& member) {
  NeighbourStatus one;
  one.id = to_hex(view.peer.view());
  if (member) {
    one.name = member->record.name;
    one.state = state_of(member->state);
    if (member->round_trip) one.rtt_ms = seconds(*member->round_trip) * 1e3;
  }
  one.edge = gossip::name_of(view.state);
  one.level = gossip::name_of(view.level);
  one.level_reason = gossip::name_of(view.level_reason);
  one.exchanges = view.exchanges;
  one.bytes_sent = view.bytes_sent;
  one.bytes_received = view.bytes_received;
  if (view.exchanges > 0) one.disagreement_ratio = view.disagreement_ratio;
  if (view.last_exchange) one.last_exchange_s = seconds(now - *view.last_exchange);
  one.resets = view.resets;
  one.clipped = view.clipped;
  if (view.clipped > 0) one.clip_ratio = static_cast<double>(view.last_scale);
  one.refused = view.refused;
  one.refused_why = view.refused_why;
  one.offences = view.offences;
  one.dropped = view.drops;
  if (view.closed_until > now) one.closed_for_s = seconds(view.closed_until - now);
  one.parked = view.parked;
  one.wanted = view.wanted;
  return one;
}

void fill_neighbours(TimePoint now, const StatusSources& sources, StatusSnapshot& status) {
  if (sources.gossip.mixer() == nullptr) return;
  const gossip::PeriodDecision period = sources.gossip.mixer()->period();
  status.period = {.steps = period.tau, .reason = std::string(gossip::name_of(period.reason))};
  std::vector<gossip::NeighbourView> views = sources.gossip.mixer()->neighbours();
  std::ranges::move(sources.gossip.mixer()->absent(), std::back_inserter(views));
  for (const auto& view : views) {
    const bool known = view.exchanges > 0 || view.refused > 0;
    if (view.state != gossip::EdgeState::open && !known) continue;
    status.neighbours.push_back(
        neighbour_status(now, view, sources.gossip.membership().find(view.peer)));
  }
  status.disagreement_ratio = median_disagreement(views);
}

NeighbourStatus* neighbour_in(StatusSnapshot& status, const NodeId& peer) {
  const auto found =
      std::ranges::find(status.neighbours, to_hex(peer.view()), &NeighbourStatus::id);
  return found == status.neighbours.end() ? nullptr : &*found;
}

void fill_queues(const StatusSources& sources, StatusSnapshot& status) ON_IO_THREAD {
  for (const auto& session : sources.transport.figures()) {
    const std::uint64_t bytes = session.queued_control_bytes + session.queued_bulk_bytes;
    status.traffic.queued_bytes += bytes;
    if (auto* neighbour = neighbour_in(status, session.peer); neighbour != nullptr)
      neighbour->queued_bytes = bytes;
  }
}

void fill_certificates(const StatusSources& sources, StatusSnapshot& status) ON_IO_THREAD {
  if (sources.figures.access.admin.empty()) return;
  for (const auto& session : sources.transport.sessions())
    if (auto* neighbour = neighbour_in(status, session.peer);
        neighbour != nullptr && session.certificate)
      neighbour->certificate = certificate_status(*session.certificate);
}

void fill_consensus(const StatusSources& sources, StatusSnapshot& status) {
  const NodeFigures& figures = sources.figures;
  status.consensus.hash = figures.final_hash;
  status.consensus.participants = figures.final_participants;
  status.consensus.identical = static_cast<std::uint32_t>(figures.final_participants.size());
  if (sources.gossip.final_consensus() == nullptr) return;
  const auto state = sources.gossip.final_consensus()->state();
  status.consensus.state = consensus_word(state);
  status.consensus.epoch = state.epoch.value;
  status.consensus.phase = consensus::name_of(state.phase);
  status.consensus.bytes_left = state.bytes_left;
  status.consensus.bytes_total = state.bytes_total;
  status.consensus.reason = state.reason;
  if (state.hash) status.consensus.hash = to_hex(state.hash->view());
  if (figures.final_participants.empty())
    for (const auto& id : state.participants)
      status.consensus.participants.push_back(to_hex(id.view()));
}

void fill_join(TimePoint now, const StatusSources& sources, StatusSnapshot& status) {
  const auto join = sources.join.status(now);
  if (join.phase == bootstrap::JoinPhase::member) return;
  status.join = {.phase = std::string(bootstrap::name_of(join.phase)),
                 .sponsor = join.sponsor ? to_hex(join.sponsor->view()) : "",
                 .bytes_done = join.transfer.bytes_done,
                 .bytes_total = join.transfer.bytes_total};
}

void fill_progress(TimePoint now, const StatusSources& sources, StatusSnapshot& status) {
  const NodeFigures& figures = sources.figures;
  const gossip::Progress& progress = sources.gossip.membership().progress();
  auto& p = status.progress;
  if (figures.last_steps) {
    p.step = static_cast<std::uint64_t>(figures.last_steps->step);
    p.last_step_s = seconds(now - figures.last_step_ended);
  }
  p.since_step_s = since_step_s(now, figures);
  p.samples = progress.own_samples();
  p.swarm_samples = std::max(sources.gossip.swarm_samples(now), figures.final_samples);
  const gossip::Budget& budget = sources.gossip.model().budget;
  p.budget_samples = budget.samples;
  p.share = sources.gossip.progress_share(now);
  if (budget.samples > 0 && figures.final_samples > 0)
    p.share =
        std::min(1.0, static_cast<double>(p.swarm_samples) / static_cast<double>(budget.samples));
  if (figures.images_per_epoch > 0)
    p.epoch = static_cast<double>(p.swarm_samples) / static_cast<double>(figures.images_per_epoch);
  const double rate = progress.rate(now);
  status.train.swarm_images_per_second = rate;
  if (still_trains(figures.phase))
    p.left_s = left_s(budget, {p.swarm_samples, rate, progress.run_age(now)});
}

// The average moves with steps alone: while none ends (storage that is away, an evaluation) the
// speed is at most one batch in that time.
double speed_now(TimePoint now, const NodeFigures& figures) {
  if (!figures.last_steps) return 0;
  const double waited_s = seconds(now - figures.last_step_ended);
  if (waited_s * figures.images_per_second <= figures.batch) return figures.images_per_second;
  return figures.batch / waited_s;
}

void fill_training(TimePoint now, const StatusSources& sources, StatusSnapshot& status) {
  const NodeFigures& figures = sources.figures;
  status.model.name = sources.gossip.model().name;
  auto& t = status.train;
  t.loss = figures.loss;
  t.images_per_second = speed_now(now, figures);
  t.gossip_wait_ratio = figures.gossip_wait_ratio;
  t.data_wait_ratio = figures.data_wait_ratio;
  t.batch = figures.batch;
  if (figures.last_steps) {
    t.learning_rate = figures.last_steps->learning_rate;
    t.bad_samples = figures.last_steps->bad_samples;
  }
  if (sources.bridge == nullptr && figures.final_hash.empty()) return;  // not known for sure yet
  const training::Model& model = sources.model;
  status.model.name = model.plan.spec.name;
  status.model.parameters = model.layout.parameters();
  status.model.classes = static_cast<std::uint32_t>(model.plan.spec.classes);
  status.model.img = static_cast<std::uint32_t>(model.plan.spec.image_size);
  if (sources.bridge == nullptr) return;
  const auto device = sources.bridge->device();
  t.device = training::name_of(device);
  t.precision = training::name_of(device.precision);
}

}  // namespace

std::optional<double> since_step_s(TimePoint now, const NodeFigures& figures) {
  if (figures.training_began == TimePoint{}) return std::nullopt;
  return seconds(now - std::max(figures.last_step_ended, figures.training_began));
}

std::optional<double> median_disagreement(std::span<const gossip::NeighbourView> views) {
  std::vector<double> found;
  for (const auto& view : views)
    if (view.state != gossip::EdgeState::closed && view.exchanges > 0)
      found.push_back(view.disagreement_ratio);
  if (found.empty()) return std::nullopt;
  const auto middle = found.begin() + static_cast<std::ptrdiff_t>(found.size() / 2);
  std::nth_element(found.begin(), middle, found.end());
  return *middle;
}

bool still_trains(Phase phase) {
  return phase == Phase::starting || phase == Phase::joining || phase == Phase::training;
}

std::optional<double> left_s(const gossip::Budget& budget, const RunSoFar& run) {
  if (budget.samples > run.samples && run.rate > 0)
    return static_cast<double>(budget.samples - run.samples) / run.rate;
  if (budget.time > Duration::zero()) return std::max(0.0, seconds(budget.time - run.age));
  return std::nullopt;
}

Troubles troubles_at(TimePoint now, const NodeFigures& figures) {
  const auto is_new = [now](const std::optional<TimePoint>& seen) {
    return seen && now - *seen < kTroubleLasts;
  };
  Troubles troubles = figures.troubles;
  troubles.cloned = is_new(figures.clone_seen);
  if (!is_new(figures.events_lost_at)) troubles.events_lost = 0;
  return troubles;
}

Trained trained_in(const StepFigures& report, const std::optional<StepFigures>& before) {
  const auto grown = [](std::uint64_t now, std::uint64_t then) {
    return now >= then ? now - then : now;  // another loader counts from nothing
  };
  Trained trained{.steps = report.steps, .samples = report.steps * report.batch, .bad_samples = 0};
  // What came before the first report, and before another replica, is not of these steps.
  if (before && report.samples >= before->samples)
    trained.samples = std::min(report.samples - before->samples,
                               report.steps * std::max(report.batch, before->batch));
  trained.bad_samples = grown(report.bad_samples, before ? before->bad_samples : 0);
  return trained;
}

void NodeFigures::forget_run() {
  last_steps.reset();
  loss.reset();
  images_per_second = gossip_wait_ratio = data_wait_ratio = 0;
  eval.reset();
  checkpoint.clear();
}

CertificateStatus certificate_status(const transport::CertificateChain& chain) {
  const auto& own = chain.own;
  return {.role = std::string(transport::name_of(own.role)),
          .serial = fmt::format("{:016x}", own.serial),
          .until = show_seconds(WallTime(std::chrono::seconds(own.until_s)))};
}

StatusSnapshot build_status(TimePoint now, const StatusSources& sources) {
  const NodeFigures& figures = sources.figures;
  StatusSnapshot status;
  status.node = {
      .id = to_hex(sources.gossip.membership().self().id.view()),
      .name = figures.name,
      .version = STARLING_VERSION,
      .uptime_s = seconds(now - figures.started),
      .instance = fmt::format("{:016x}", sources.gossip.membership().self().instance.value)};
  status.phase = figures.phase;
  status.address = figures.address;
  status.http = figures.http;
  status.swarm = {.id = to_hex(figures.swarm.view()),
                  .mode = figures.mode,
                  .fingerprint = to_hex(sources.gossip.model().fingerprint.view())};
  status.swarm.settings = sources.join.settings().values();
  fill_join(now, sources, status);
  fill_training(now, sources, status);
  fill_progress(now, sources, status);
  fill_members(sources, status);
  fill_neighbours(now, sources, status);
  fill_consensus(sources, status);
  status.access = figures.access;
  fill_certificates(sources, status);
  status.eval = figures.eval;
  status.checkpoint = figures.checkpoint;
  status.reachable = figures.reachable;
  status.warnings = warnings_of(troubles_at(now, figures));
  const auto totals = sources.transport.totals();
  status.traffic = {.bytes_sent = totals.sent.total(),
                    .bytes_received = totals.received.total(),
                    .delta_bytes_sent = figures.delta_bytes_sent,
                    .delta_bytes_received = figures.delta_bytes_received,
                    .exchanges = figures.exchanges};
  fill_queues(sources, status);
  if (figures.host)
    status.host = {.cpu_ratio = figures.host->cpu_ratio, .rss_bytes = figures.host->resident_bytes};
  return status;
}

}  // namespace starling::node
