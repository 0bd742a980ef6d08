#include "tests/sim/process.h"

#include "node/base/check.h"
#include "node/base/fault.h"

#include <algorithm>
#include <utility>

namespace starling::sim {

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kIncarnations = 1'000;

gossip::SelfDescription describe(const ProcessSetup& setup, Instance instance, Disk& disk) {
  const Incarnation first{std::max<std::uint64_t>(disk.ceiling.value, 1)};
  // As node/run_verb.cc: on disk before anything of it is used.
  if (!fault::planted("node.incarnations_not_kept")) disk.ceiling = {first.value + kIncarnations};
  return {.name = "m" + std::to_string(setup.host),
          .addresses = {},
          .instance = instance,
          .capabilities = 0,
          .data_set = {},
          .first = first,
          .ceiling = {first.value + kIncarnations}};
}

}  // namespace

Process::Process(const Services& services, ProcessSetup setup, Disk& disk, const Burden& burden,
                 Rng rng)
    : services_(services),
      setup_(std::move(setup)),
      disk_(disk),
      burden_(burden),
      rng_(rng),
      self_(setup_.signer->id()),
      instance_{rng_() | 1U},
      started_(services.schedule.now()),
      sessions_(services.schedule, services.wire, services.hosts, *this,
                {setup_.host, setup_.number, self_, instance_, setup_.endpoint}),
      gossip_(std::make_unique<gossip::Gossip>(
          local(),
          gossip::GossipParts{.swarm = {},
                              .self = describe(setup_, instance_, disk_),
                              .options = setup_.gossip,
                              .signer = *setup_.signer,
                              .verifier = services.verifier},
          Rng(rng_()))),
      join_(std::make_unique<bootstrap::Join>(
          local(),
          bootstrap::JoinParts{
              .own = services.problem.settings(),
              .forced = {},
              .start = disk_.checkpoint ? bootstrap::Start::checkpoint : bootstrap::Start::genesis,
              .options = setup_.join},
          Rng(rng_()))) {}

Process::~Process() = default;

std::string Process::name() const { return "m" + std::to_string(setup_.host); }

void Process::begin() {
  if (setup_.traits.dialable) {
    auto effects = gossip_->set_addresses(local(), {transport::to_string(setup_.endpoint)});
    STARLING_CHECK(effects.has_value());
    carry_out(std::move(*effects));
  }
  if (disk_.final) serve();
  std::vector<bootstrap::Seed> seeds;
  for (const auto& endpoint : setup_.seeds) {
    bootstrap::Seed seed;
    seed.endpoint = endpoint;
    seeds.push_back(std::move(seed));
  }
  auto seeded = join_->add_seeds(local(), seeds);
  STARLING_CHECK(seeded.has_value());
  carry_out(std::move(*seeded));
  carry_out(join_->add_address_book(local(), disk_.book));
  carry_out(join_->update(local(), local_facts()));
  carry_out(join_->begin(local()));
  after(Duration(static_cast<std::int64_t>(rng_.below(1'000'000))), [this] { every_second(); });
}

void Process::end(Exit how, const std::string& why) {
  if (ending_) return;
  ending_ = how;
  training_ = Training::stopped;
  ++bridge_;
  sessions_.stop();
  services_.watch.on_exit(*this, how, why);
}

// ---- time

TimePoint Process::local() const {
  const Duration passed = services_.schedule.now() - started_;
  const std::int64_t drift = passed.count() / 1'000 * setup_.traits.clock_ppm / 1'000;
  return started_ + setup_.traits.clock_offset + burden_.clock_ahead + passed + Duration(drift);
}

// The first moment at which local() is not before this one.
TimePoint Process::global(TimePoint local_time) const {
  const Duration passed = local_time - started_ - setup_.traits.clock_offset - burden_.clock_ahead;
  const std::int64_t ppm = 1'000'000 + setup_.traits.clock_ppm;
  return started_ + Duration(passed.count() / 1'000 * 1'000'000 / ppm * 1'000) + 2ms;
}

void Process::after(Duration delay, Action action) {
  services_.schedule.after(delay, [&hosts = services_.hosts, host = setup_.host,
                                   number = setup_.number, action = std::move(action)]() mutable {
    hosts.run(host, number, std::move(action));
  });
}

void Process::on_lane(Lane& lane, Duration takes, Action action) {
  lane.waiting.emplace_back(takes * burden_.slowness, std::move(action));
  if (!lane.busy) next_of(lane);
}

void Process::next_of(Lane& lane) {
  lane.busy = !lane.waiting.empty();
  if (!lane.busy) return;
  const Duration takes = lane.waiting.front().first;
  after(takes, [this, &lane] {
    Action action = std::move(lane.waiting.front().second);
    lane.waiting.pop_front();
    action();
    next_of(lane);
  });
}

Duration Process::job_time() {
  return Duration(100 + static_cast<std::int64_t>(rng_.below(3'000)));
}

void Process::arm() {
  const TimePoint due = std::min(gossip_->next_deadline(), join_->next_deadline());
  if (due == kNever || ending_) return;
  const TimePoint at = std::max(global(due), services_.schedule.now() + 20us);
  if (armed_ <= at && armed_ > services_.schedule.now()) return;
  armed_ = at;
  services_.schedule.at(at, [&hosts = services_.hosts, host = setup_.host, number = setup_.number,
                             this, at] { hosts.run(host, number, [this, at] { tick(at); }); });
}

void Process::tick(TimePoint armed) {
  if (armed_ != armed || ending_) return;
  wake();
}

void Process::wake() {
  armed_ = kNever;
  ++ticks_;
  if (gossip_->next_deadline() <= local()) carry_out(gossip_->on_tick(local()));
  if (join_->next_deadline() <= local()) carry_out(join_->on_tick(local()));
  arm();
}

void Process::every_second() {
  if (ending_) return;
  after(1s, [this] { every_second(); });
  sessions_.tick();
  for (const auto& [peer, goodput] : sessions_.goodputs()) gossip_->on_goodput(peer, goodput);
  if (phase_ == bootstrap::RunPhase::training && services_.schedule.now() >= next_checkpoint_)
    save_checkpoint([] {});
  carry_out(join_->update(local(), local_facts()));
}

// ---- training

void Process::schedule_step() {
  const auto jitter = static_cast<std::int64_t>(
      rng_.below(static_cast<std::uint64_t>(setup_.traits.step_time.count()) / 5 + 1));
  const Duration takes = (setup_.traits.step_time + Duration(jitter)) * burden_.slowness;
  after(takes, [this, bridge = bridge_] {
    if (bridge == bridge_ && training_ != Training::stopped) step();
  });
}

void Process::step() {
  services_.problem.step(weights_, rng_);
  steps_ += 1;
  own_steps_ += 1;
  samples_ += setup_.traits.batch;
  const gossip::TrainingFigures figures{.steps = steps_,
                                        .samples = samples_,
                                        .step_time = setup_.traits.step_time * burden_.slowness};
  carry_out(gossip_->on_steps(local(), figures));
  if (training_ == Training::pausing) {
    training_ = Training::stopped;
    carry_out(gossip_->on_training_paused(local()));
  } else if (training_ == Training::running) {
    schedule_step();
  }
}

void Process::with_master(const std::function<void(gossip::MasterView)>& job) {
  job({weights_.parameters, weights_.mean, weights_.variance});
}

}  // namespace starling::sim
