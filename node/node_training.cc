// From settings to a trainer that runs, and what training reports.
#include "node/base/fault.h"
#include "node/config/values.h"
#include "node/node.h"
#include "node/options.h"
#include "node/precision.h"
#include "node/state_transfer_bytes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

namespace starling::node {

namespace {

// Gain of the averages that people see: about the last fifty steps.
constexpr double kFigureGain = 0.02;

void average_in(std::optional<double>& average, double value, double steps) {
  if (!std::isfinite(value)) return;
  const double gain = 1 - std::pow(1 - kFigureGain, steps);
  average = average ? *average + gain * (value - *average) : value;
}

std::string_view name_of(gossip::Origin origin) {
  switch (origin) {
    case gossip::Origin::genesis:
      return "genesis";
    case gossip::Origin::transferred:
      return "transferred";
    case gossip::Origin::restored:
      return "restored";
  }
  return "";
}

}  // namespace

BridgeOptions Node::bridge_options() const {
  const training::ModelSpec& model = settings_.model;
  BridgeOptions options;
  options.model = model;
  options.genesis_seed = settings_.seed;
  options.aggregator = gossip_options(config_).exchange.edge.aggregator;
  options.trainer.device = device_options(config_);
  options.trainer.schedule = settings_.schedule;
  options.trainer.optimizer = settings_.optimizer;
  options.trainer.label_smoothing = settings_.label_smoothing;
  options.trainer.resize = settings_.resize;
  options.trainer.halve_batch = !config_.train.batch.has_value();
  options.trainer.evaluation_share = config_.eval.share;
  options.train = parts_.data.train.get();
  options.val = parts_.data.val.get();
  options.loader = training::loader_options_for(*parts_.data.train, training::Pass::training,
                                                static_cast<std::uint32_t>(model.image_size),
                                                static_cast<std::uint32_t>(model.channels));
  options.loader.batch = batch_of(config_, model);
  options.loader.threads = data_threads(config_);
  options.loader.max_bad = config_.data.max_bad;
  options.loader.sampler.seed = settings_.seed;
  options.loader.sampler.node = parts_.identity.id();
  options.loader.sampler.partition = config_.data.partition == DataPartition::members
                                         ? training::Partition::members
                                         : training::Partition::none;
  options.loader.members = data_members();
  return options;
}

// Who shares out the epochs of this node's data set: all that say they have it and train the same.
std::vector<NodeId> Node::data_members() const {
  std::vector<NodeId> members;
  if (config_.data.partition != DataPartition::members) return members;
  const Hash settings = join_.settings().fingerprint();
  for (const auto& member : gossip_.membership().members()) {
    const bool here =
        member.state == gossip::MemberState::alive || member.state == gossip::MemberState::suspect;
    const gossip::MemberRecord& record = member.record;
    if (here && record.data_set == parts_.data.train->id() && record.settings == settings)
      members.push_back(record.id);
  }
  members.push_back(parts_.identity.id());
  std::ranges::sort(members);
  return members;
}

gossip::ModelFacts Node::model_facts() const {
  const gossip::Layout& layout = parts_.model.layout;
  return {
      .name = settings_.model.name,
      .fingerprint = join_.settings().fingerprint(),
      .manifest = layout.manifest(),
      .shape = shape_of(parts_.model),
      .blocks = static_cast<std::uint32_t>(layout.blocks()),
      .max_payload = gossip::max_payload_bytes(layout, gossip::Level::l6, gossip::Statistics::with),
      .degree = settings_.degree,
      .rule = settings_.rule,
      .budget = settings_.budget,
      .admin = ends_by_order_of(settings_, parts_.membership)};
}

transport::Task<> Node::build_and_start(Beginning beginning) {
  assert_io_thread();
  auto build_ends = wait_for_build();
  co_await std::move(build_ends);
  const bool over = exit_ || beginning.settings != join_.settings().fingerprint();
  if (bridge_ && !over && beginning.origin == gossip::Origin::transferred)
    adopt_replica(std::move(beginning.start->replica), beginning.age);
  if (bridge_ || over) co_return free_on(pool_, std::move(beginning.start));
  // Owners: this coroutine and the job on the pool.
  auto start =
      std::make_shared<std::optional<training::Trainer::Start>>(std::move(beginning.start));
  auto precision = std::make_shared<PrecisionChoice>();
  build_ = {};
  auto create = [this, start, precision, options = bridge_options(), file = parts_.dir.precision(),
                 stop = build_.get_token()]() mutable -> Result<std::unique_ptr<Bridge>> {
    std::optional<training::Trainer::Start> begin = std::move(*start);  // freed here, if unused
    if (fault::maybe("build.no_memory")) throw std::bad_alloc();
    training::DeviceOptions& device = options.trainer.device;
    *precision = choose_precision({device, options.model, options.loader.batch, stop}, file, log_);
    device.precision = precision->precision;
    if (stop.stop_requested()) return fail(Errc::cancelled, Doing::building_model, "not needed");
    return Bridge::create(io_, options, std::move(begin), *this, log_);
  };
  Result<std::unique_ptr<Bridge>> created;
  building_ = true;
  try {
    created = co_await transport::on_pool(pool_, std::move(create));
  } catch (...) {  // not let go: others wait for the end of this
    created = fail(current_error(Doing::building_model, Errc::device_failed));
  }
  building_ = false;
  build_over_.cancel();
  if (!created && created.error().code == Errc::cancelled) co_return;
  if (!created) co_return end_with(created.error());
  bridge_ = std::move(*created);
  log_device(precision->why);
  if (build_.stop_requested() || exit_ || figures_.phase == Phase::leaving) co_return;
  const TimePoint now = clock_.now();
  if (const auto late = why_too_late(now, beginning.origin)) co_return end_with(*late);
  figures_.batch = static_cast<std::uint32_t>(batch_of(config_, settings_.model));
  next_checkpoint_ = next_due(now, config_.checkpoint.every);
  next_evaluation_ = next_due(now, config_.eval.every);
  tell_run(1);
  const training::TrainingState state = bridge_->state();
  const gossip::Beginning told{.origin = beginning.origin,
                               .age = beginning.age,
                               .steps = static_cast<std::uint64_t>(state.step),
                               .samples = state.samples};
  // Before the first step: only now progress is that of this run.
  auto averaging = gossip_.begin_averaging(now, model_facts(), told);
  bridge_->set_progress(gossip_.share_of(now, settings_.budget));
  health_.beat_train(now);  // the first step may never come
  figures_.training_began = now;
  if (const auto started = bridge_->start(); !started) co_return end_with(started.error());
  set_phase(Phase::training);
  keep_settings();
  gossip_driver_.carry_out(std::move(averaging));
  tell_replica(beginning.origin, beginning.age);
  if (beginning.origin == gossip::Origin::transferred)
    bootstrap_driver_.carry_out(join_.on_state_installed(now));
  bootstrap_driver_.carry_out(join_.update(now, local_facts()));
}

// A run by time whose time was over before this node could begin, and of which nobody else has a
// model: it would wait minutes for one.
std::optional<Error> Node::why_too_late(TimePoint now, gossip::Origin origin) {
  const Duration age = gossip_.membership().progress().run_age(now);
  const bool over = settings_.budget.time > Duration::zero() && age >= settings_.budget.time;
  if (!over || origin != gossip::Origin::genesis || !transport_.sessions().empty())
    return std::nullopt;
  return Error{Errc::bad_config, Doing::starting,
               fmt::format("a run of time={} was over before training began, {:.1f} s after the "
                           "start (waiting for peers and building the model), and nobody else is "
                           "here: give --until more time{}",
                           show_duration(settings_.budget.time), seconds(age),
                           parts_.seeds.empty() ? "" : ", or wait less for peers (--join-grace)")};
}

void Node::log_device(std::string_view why) {
  log_.info("training.device", {{"device", training::name_of(bridge_->device())},
                                {"precision", training::name_of(bridge_->device().precision)},
                                {"why", why},
                                {"threads", bridge_->device().threads}});
  if (!training::cpu_hides_tiles()) return;
  log_.warn("training.tiles_hidden",
            {{"what", "this machine announces AMX and hides its tiles"},
             {"done", "LibTorch is kept to AVX-512 (ONEDNN_MAX_CPU_ISA)"},
             {"remedy", "a hypervisor that passes CPUID leaf 0x1D on makes bf16 faster"}});
}

// A model of size takes seconds to build, and much can arrive meanwhile: other settings, a state.
transport::Task<> Node::wait_for_build() {
  while (building_) {
    const auto [error] = co_await build_over_.async_wait(transport::as_result);
    (void)error;  // cancelled: a build has ended, which the condition sees
    assert_io_thread();
  }
}

// The edges are void as soon as it begins: an answer that comes meanwhile is about the replica
// before, and would move the new one by it.
void Node::adopt_replica(training::Replica replica, double age) {
  const double age_before = gossip_.mixer() != nullptr ? gossip_.mixer()->age() : 0;
  bridge_->adopt(std::move(replica), [this, age, age_before](const Result<void>& adopted) {
    assert_io_thread();
    const TimePoint now = clock_.now();
    if (adopted) {
      tell_replica(gossip::Origin::transferred, age);
      return bootstrap_driver_.carry_out(join_.on_state_installed(now));
    }
    // Training ends, for other settings or for good: nobody waits for a state any more.
    if (adopted.error().code == Errc::cancelled) return;
    gossip_driver_.carry_out(gossip_.on_adopted(now, age_before));
    bootstrap_driver_.carry_out(join_.on_state_unusable(now, adopted.error()));
  });
  gossip_driver_.carry_out(gossip_.on_adopted(clock_.now(), age));
}

// Once for each process that trains, and again where it takes over another replica later.
void Node::tell_replica(gossip::Origin origin, double age) {
  parts_.events.append("replica", {{"origin", std::string(name_of(origin))}, {"age_steps", age}});
}

transport::Task<> Node::drop_bridge() {
  assert_io_thread();
  build_.request_stop();
  auto build_ends = wait_for_build();
  co_await std::move(build_ends);
  if (!bridge_) co_return;
  // Two may come at once, as an end does while settings are adopted: the second waits, as for a
  // build.
  building_ = true;
  tell_run(0);
  auto ends = bridge_->stop();
  co_await std::move(ends);
  health_.rest_train();  // what comes next may train never again, or wait long for a state
  // A dozen vectors of the model's size, which a device or small pages are slow to take back.
  auto give_back = [bridge = std::move(bridge_)]() mutable {
    bridge.reset();
    return true;
  };
  (void)co_await transport::on_pool(pool_, std::move(give_back));
  assert_io_thread();
  building_ = false;
  build_over_.cancel();
}

void Node::tell_run(double value) {
  metrics_.set_only(
      Metric::run_info, value,
      {bridge_->model().plan.spec.name, figures_.mode, training::name_of(bridge_->device())});
}

void Node::save_checkpoint(std::function<void(const Result<void>&)> done) {
  next_checkpoint_ = next_due(clock_.now(), config_.checkpoint.every);
  if (!bridge_ || saving_) return done({});
  saving_ = true;
  training::CheckpointRequest request;
  request.where = {.folder = parts_.dir.checkpoints(), .keep = config_.checkpoint.keep};
  request.progress_map =
      format_progress({.counters = gossip_.membership().progress().saved(),
                       .age = gossip_.mixer() != nullptr ? gossip_.mixer()->age() : 0,
                       .run_age = gossip_.membership().progress().own_age(clock_.now()),
                       .sponsors_age = gossip_.membership().progress().sponsors_age(clock_.now())});
  request.settings_fingerprint = to_hex(join_.settings().fingerprint().view());
  bridge_->save(std::move(request), [this, done = std::move(done)](
                                        const Result<std::filesystem::path>& saved) {
    assert_io_thread();
    saving_ = false;
    // Training that ends, for other settings or for good, takes back what was not begun.
    const bool dropped = !saved && saved.error().code == Errc::cancelled;
    if (!dropped) figures_.troubles.checkpoint = saved ? "" : to_string(saved.error());
    if (saved) {
      figures_.checkpoint = saved->string();
      metrics_.set(Metric::checkpoint_last_success,
                   static_cast<double>(std::chrono::duration_cast<std::chrono::seconds>(
                                           wall_now().time_since_epoch())
                                           .count()));
      log_.info("checkpoint.saved", {{"folder", saved->string()}});
    } else if (!dropped) {
      metrics_.add(Metric::checkpoint_failures, 1);
      log_.warn("checkpoint.failed", {{"why", to_string(saved.error())},
                                      {"did", "went on; what was saved before is whole"}});
    }
    if (const auto next = std::exchange(after_save_, {})) next();
    if (!saved) return done(fail(saved.error()));
    done({});
  });
}

void Node::evaluate_now() {
  next_evaluation_ = next_due(clock_.now(), config_.eval.every);
  if (!bridge_ || evaluating_ || !parts_.data.val) return;
  evaluating_ = true;
  // After the end what counts is the model that was certified, not what this node gave to it.
  if (finished_) {
    const auto told = [this](const Result<training::EvaluationReport>& report) {
      assert_io_thread();
      evaluating_ = false;
      note_evaluation(report, {.of = Evaluated::consensus});
    };
    auto certified = result_of(consensus_memory(gossip::consensus::RunKind::finish));
    return bridge_->evaluate_replica(std::move(certified), told);
  }
  const auto done = [this](const Result<training::EvaluationReport>& report,
                           std::size_t references) {
    assert_io_thread();
    evaluating_ = false;
    note_evaluation(report,
                    {references > 0 ? Evaluated::neighbourhood : Evaluated::replica, references});
  };
  if (config_.eval.of == EvalOf::neighbourhood) return bridge_->evaluate_neighbourhood(done);
  bridge_->evaluate([done](const Result<training::EvaluationReport>& report) { done(report, 0); });
}

void Node::note_evaluation(const Result<training::EvaluationReport>& report, Subject subject) {
  if (!report) {
    if (report.error().code != Errc::cancelled)
      log_.warn("eval.failed", {{"why", to_string(report.error())}});
    for (auto& reply : std::exchange(waiting_for_eval_, {})) reply.fail(report.error());
    return;
  }
  figures_.eval = StatusSnapshot::Eval{.accuracy_ratio = report->top1,
                                       .accuracy_top5_ratio = report->top5,
                                       .loss = report->loss,
                                       .images = static_cast<std::uint64_t>(report->images),
                                       .step = static_cast<std::uint64_t>(report->step),
                                       .of = subject.of,
                                       .references = subject.references};
  const nlohmann::json body{{"accuracy_ratio", report->top1},
                            {"accuracy_top5_ratio", report->top5},
                            {"loss", report->loss},
                            {"images", report->images},
                            {"left_out", report->left_out},
                            {"step", report->step},
                            {"seconds", report->seconds},
                            {"of", std::string(name_of(subject.of))},
                            {"references", subject.references}};
  parts_.events.append("eval", body);
  log_.info("eval", {{"step", report->step},
                     {"of", std::string(name_of(subject.of))},
                     {"accuracy", report->top1},
                     {"loss", report->loss},
                     {"images", report->images},
                     {"left_out", report->left_out}});
  for (auto& reply : std::exchange(waiting_for_eval_, {})) reply.done(body);
}

void Node::on_codec_done(gossip::CodecOutcome outcome) {
  gossip_driver_.carry_out(gossip_.on_codec_done(clock_.now(), std::move(outcome)));
}

void Node::on_steps(const StepFigures& figures) {
  const TimePoint now = clock_.now();
  health_.beat_train(now);
  const bool first = !figures_.last_steps;
  const Trained trained = trained_in(figures, figures_.last_steps);
  metrics_.add(Metric::train_steps, static_cast<double>(trained.steps));
  metrics_.add(Metric::train_samples, static_cast<double>(trained.samples));
  metrics_.add(Metric::data_bad_samples, static_cast<double>(trained.bad_samples));
  figures_.last_steps = figures;
  figures_.batch = figures.batch;
  figures_.last_step_ended = now;
  const auto steps = static_cast<double>(figures.steps);
  average_in(figures_.loss, figures.loss, steps);
  average_in(images_per_second_, figures.images_per_second, steps);
  average_in(gossip_wait_, figures.lease_wait_share, steps);
  average_in(data_wait_, figures.data_wait_share, steps);
  figures_.images_per_second = images_per_second_.value_or(0);
  figures_.gossip_wait_ratio = gossip_wait_.value_or(0);
  figures_.data_wait_ratio = data_wait_.value_or(0);
  const auto observe = [&](std::string_view phase, double part_s) {
    metrics_.observe(Metric::train_step_duration, part_s, {phase}, figures.steps);
  };
  observe("data", figures.data_wait_share * figures.step_s);
  metrics_.add(Metric::data_wait_seconds, figures.data_wait_share * figures.step_s * steps);
  observe("lease", figures.lease_wait_share * figures.step_s);
  observe("compute", figures.compute_s);
  observe("optimizer", figures.optimizer_s);
  const gossip::TrainingFigures told{.steps = static_cast<std::uint64_t>(figures.step),
                                     .samples = figures.samples,
                                     .step_time = std::chrono::duration_cast<Duration>(
                                         std::chrono::duration<double>(figures.step_s))};
  gossip_driver_.carry_out(gossip_.on_steps(now, told));
  if (bridge_) bridge_->set_progress(gossip_.progress_share(now));
  if (first) publish_status();  // what people wait for at a start
}

void Node::on_training_failed(const Error& error) {
  log_.error("train.failed", {{"why", to_string(error)}});
  // What diverged is nothing to go on with, neither here nor for a neighbour. Otherwise the replica
  // is as good as before the step that failed.
  if (error.code == Errc::diverged) return end_with(error);
  leave_with(error);
}

}  // namespace starling::node
