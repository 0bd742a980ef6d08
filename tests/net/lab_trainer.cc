// training::Trainer without LibTorch: the same promises to the node, kept by a noisy quadratic.
//
// f(x) = |x - own optimum|^2 / 2, and a step sees its gradient with noise. Every node's optimum is
// the common one and an offset of its own, as different data would give: replicas drift apart
// unless they are averaged, and their mean comes near the common optimum. A step takes no batch
// from its source and the time that LAB_STEP_MS says, most of it waiting, so that many nodes fit
// one machine. What its thread waited for (the lease, who hears of the step) comes on top: a node
// that falls behind does so because something held it up.
#include "gossip/delta/host_vectors.h"
#include "node/base/mutex.h"
#include "node/base/random.h"
#include "tests/net/lab.h"
#include "training/lease.h"
#include "training/requests.h"
#include "training/trainer.h"

#include <algorithm>
#include <deque>
#include <fstream>
#include <iterator>
#include <span>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace starling::training {
namespace {

constexpr double kOwnOffset = 0.25;      // half the width of what sets a node's optimum apart
constexpr double kNoise = 0.2;           // half the width of a gradient's noise
constexpr std::size_t kLossStride = 64;  // the loss looks at every 64th parameter
constexpr std::size_t kSampleStride = 4'096;
constexpr float kNear = 0.1F;  // "accuracy": the share of parameters this near the optimum

enum class Phase : std::uint8_t { idle, running, paused, stopping, stopped };

struct Pausing {
  OnDone on_paused;
};
using LabRequest = std::variant<Adoption, Saving, Evaluating, Pausing>;

Error cancelled() { return {Errc::cancelled, Doing::stopping, "the trainer stops"}; }

void refuse(const Pausing& asked, const Error& error) {
  if (asked.on_paused) asked.on_paused(fail(error));
}

void refuse(const LabRequest& request) {
  std::visit([](const auto& one) { refuse(one, cancelled()); }, request);
}

std::vector<float> uniform_values(std::size_t count, std::uint64_t seed, double half_width) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>((2 * rng.unit() - 1) * half_width);
  return values;
}

}  // namespace

struct Trainer::Impl {
  Impl(Model m, TrainerOptions o, Start begin, Surroundings around)
      : model(std::move(m)),
        options(std::move(o)),
        source(std::move(around.source)),
        hooks(std::move(around.hooks)),
        log(around.log),
        replica(std::move(begin.replica)),
        optimum(uniform_values(model.layout.size(), 1, 1)),
        own_offset(uniform_values(model.layout.size(), lab::lab_options().seed + 1, kOwnOffset)),
        noise(uniform_values(4'096, lab::lab_options().seed + 2, kNoise)),
        rng(lab::lab_options().seed + 3),
        lease({replica.parameters, replica.bn_mean, replica.bn_variance}),
        counters(std::move(begin.state)),
        published(counters) {
    if (!lab::lab_options().steps_file.empty())
      steps.open(lab::lab_options().steps_file, std::ios::app);
    if (!lab::lab_options().samples_file.empty())
      samples.open(lab::lab_options().samples_file, std::ios::app);
  }

  // On the train thread.
  void run();
  void train_step();
  double descend(double rate);
  void write_sample(std::span<const float> parameters);
  void serve(Adoption request);
  void serve(Saving request);
  void serve(Evaluating request);
  void serve(const Pausing& request);
  [[nodiscard]] std::optional<LabRequest> take_request();
  void wait_for_work();
  void finish();

  void ask(LabRequest request);
  [[nodiscard]] Replica copy();
  [[nodiscard]] EvaluationReport evaluate(const Replica& of) const;
  void publish();

  const Model model;
  const TrainerOptions options;
  const std::unique_ptr<BatchSource> source;
  const TrainerHooks hooks;
  Log& log;
  const SteadyClock clock;
  Replica replica;  // through the lease
  const std::vector<float> optimum;
  const std::vector<float> own_offset;
  const std::vector<float> noise;
  Rng rng;
  MasterLease lease;
  TrainingState counters;  // the train thread's
  TimePoint next_step;
  std::ofstream steps;
  std::ofstream samples;
  std::thread thread;
  std::thread saver;

  mutable Mutex mutex;
  CondVar changed;
  Phase phase STARLING_GUARDED_BY(mutex) = Phase::idle;
  std::deque<LabRequest> requests STARLING_GUARDED_BY(mutex);
  bool saving STARLING_GUARDED_BY(mutex) = false;
  TrainingState published STARLING_GUARDED_BY(mutex);
  double progress_share STARLING_GUARDED_BY(mutex) = 0;
};

void Trainer::Impl::publish() {
  const MutexLock lock(mutex);
  published = counters;
}

void Trainer::Impl::ask(LabRequest request) {
  {
    const MutexLock lock(mutex);
    if (phase != Phase::stopping && phase != Phase::stopped) {
      requests.push_back(std::move(request));
      changed.notify_all();
      return;
    }
  }
  refuse(request);
}

void Trainer::Impl::run() {
  name_this_thread("train");
  next_step = clock.now();
  while (true) {
    while (auto request = take_request())
      std::visit([this](auto&& one) { serve(std::forward<decltype(one)>(one)); },
                 *std::move(request));
    bool running = false;
    {
      const MutexLock lock(mutex);
      if (phase == Phase::stopping) break;
      running = phase == Phase::running;
    }
    if (running && clock.now() >= next_step) train_step();
    wait_for_work();
  }
  finish();
}

// Until the next step is due, or a request can be served.
void Trainer::Impl::wait_for_work() {
  const MutexLock lock(mutex);
  const bool only_saves_wait = saving && std::ranges::all_of(requests, [](const auto& one) {
                                 return std::holds_alternative<Saving>(one);
                               });
  if (phase == Phase::stopping || (!requests.empty() && !only_saves_wait)) return;
  if (phase != Phase::running) return changed.wait(mutex);
  const Duration left = next_step - clock.now();
  if (left > Duration::zero()) (void)changed.wait_for(mutex, left);
}

std::optional<LabRequest> Trainer::Impl::take_request() {
  const MutexLock lock(mutex);
  if (phase == Phase::stopping) return std::nullopt;
  const auto found = std::ranges::find_if(requests, [busy = saving](const LabRequest& request) {
    return !busy || !std::holds_alternative<Saving>(request);
  });
  if (found == requests.end()) return std::nullopt;
  LabRequest request = std::move(*found);
  requests.erase(found);
  return request;
}

void Trainer::Impl::train_step() {
  const TimePoint begin = clock.now();
  // Steps that were missed (a pause, a stopped process) are not made up for.
  const Duration length = lab::lab_options().step;
  next_step = std::max(next_step + length, begin);
  {
    const MutexLock lock(mutex);
    counters.progress_share = progress_share;
  }
  double rate = learning_rate(options.schedule, counters.progress_share);
  if (counters.steps_since_adoption < kAdoptionWarmupSteps)
    rate *= adoption_factor(counters.steps_since_adoption + 1);
  StepReport report;
  TimePoint granted = begin;
  lease.with_master([&](const gossip::MasterView&) {
    granted = clock.now();
    report.loss = descend(rate);
    if (samples.is_open()) write_sample(replica.parameters);
  });
  counters.step += 1;
  counters.samples += lab::kBatch;
  counters.steps_since_adoption =
      std::min(counters.steps_since_adoption + 1, TrainingState::kStepsSettled);
  publish();
  report.step = counters.step;
  report.samples = counters.samples;
  report.batch = lab::kBatch;
  report.learning_rate = rate;
  report.lease_wait_s = seconds(granted - begin);
  report.optimizer_s = seconds(clock.now() - granted);
  report.compute_s = std::max(0.0, seconds(length) - report.lease_wait_s - report.optimizer_s);
  report.images_per_second = static_cast<double>(lab::kBatch) / seconds(length);
  if (steps.is_open())
    steps << std::fixed << seconds(clock.now().time_since_epoch()) << ' ' << report.step << ' '
          << report.loss << std::endl;
  const TimePoint told = clock.now();
  if (hooks.on_step) hooks.on_step(report);
  next_step += (granted - begin) + (clock.now() - told);
}

// One step down this node's own gradient; the mean square of the way to the common optimum before.
double Trainer::Impl::descend(double rate) {
  const auto r = static_cast<float>(rate);
  double squares = 0;
  std::size_t looked = 0;
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    const std::size_t end = place.offset + place.count;
    const std::size_t phase_of_noise = rng.below(noise.size());
    for (std::size_t i = place.offset; i < end; ++i) {
      float& x = replica.parameters[i];
      const float way = x - optimum[i];
      if (i % kLossStride == 0) {
        squares += static_cast<double>(way) * static_cast<double>(way);
        ++looked;
      }
      x -= r * (way - own_offset[i] + noise[(i + phase_of_noise) % noise.size()]);
    }
  }
  const auto batch = static_cast<float>(rng.unit());
  for (float& mean : replica.bn_mean) mean += 0.1F * (batch - mean);
  for (float& variance : replica.bn_variance) variance += 0.1F * (0.5F + batch - variance);
  replica.batches_tracked += 1;
  return looked > 0 ? squares / static_cast<double>(looked) : 0;
}

void Trainer::Impl::write_sample(std::span<const float> parameters) {
  for (std::size_t i = 0; i < parameters.size(); i += kSampleStride)
    samples << (i > 0 ? " " : "") << parameters[i];
  samples << std::endl;
}

EvaluationReport Trainer::Impl::evaluate(const Replica& of) const {
  EvaluationReport report;
  report.step = counters.step;
  std::int64_t near = 0;
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    for (std::size_t i = place.offset; i < place.offset + place.count; i += kLossStride) {
      const float way = of.parameters[i] - optimum[i];
      report.loss += static_cast<double>(way) * static_cast<double>(way);
      near += way < kNear && way > -kNear ? 1 : 0;
      report.images += 1;
    }
  }
  report.loss /= static_cast<double>(std::max<std::int64_t>(report.images, 1));
  report.top1 = static_cast<double>(near) / static_cast<double>(report.images);
  report.top5 = report.top1;
  return report;
}

Replica Trainer::Impl::copy() {
  Replica copied;
  lease.with_master([&](const gossip::MasterView&) { copied = replica; });
  return copied;
}

void Trainer::Impl::serve(Adoption request) {
  if (request.replica.parameters.size() != model.layout.size() ||
      request.replica.bn_mean.size() != model.layout.bn_channels() ||
      request.replica.bn_variance.size() != model.layout.bn_channels()) {
    if (request.on_adopted)
      request.on_adopted(fail(Errc::bad_argument, Doing::joining, "a replica of another model"));
    return;
  }
  lease.with_master([&](const gossip::MasterView& master) {
    // In place: the lease shows this memory.
    std::ranges::copy(request.replica.parameters, master.parameters.begin());
    std::ranges::copy(request.replica.bn_mean, master.bn_mean.begin());
    std::ranges::copy(request.replica.bn_variance, master.bn_variance.begin());
    replica.batches_tracked = request.replica.batches_tracked;
  });
  counters.steps_since_adoption = 0;
  publish();
  if (request.on_adopted) request.on_adopted({});
}

void Trainer::Impl::serve(Saving request) {
  Checkpoint checkpoint{counters, copy(), std::vector<float>(model.layout.size(), 0.0F)};
  checkpoint.state.progress_map = std::move(request.request.progress_map);
  checkpoint.state.settings_fingerprint = std::move(request.request.settings_fingerprint);
  {
    const MutexLock lock(mutex);
    saving = true;
  }
  if (saver.joinable()) saver.join();  // it is done: saving was false
  saver = std::thread([this, checkpoint = std::move(checkpoint), where = request.request.where,
                       on_saved = std::move(request.on_saved)] {
    name_this_thread("checkpoint");
    auto saved = save_checkpoint(where, model, checkpoint);
    if (on_saved) on_saved(std::move(saved));
    {
      const MutexLock lock(mutex);
      saving = false;
    }
    changed.notify_all();
  });
}

void Trainer::Impl::serve(Evaluating request) {
  if (!request.replica) request.replica = std::make_shared<const Replica>(copy());
  if (request.on_evaluated) request.on_evaluated(evaluate(*request.replica));
}

void Trainer::Impl::serve(const Pausing& request) {
  {
    const MutexLock lock(mutex);
    if (phase == Phase::running) phase = Phase::paused;
  }
  if (request.on_paused) request.on_paused({});
}

void Trainer::Impl::finish() {
  std::deque<LabRequest> open;
  {
    const MutexLock lock(mutex);
    phase = Phase::stopped;
    open = std::exchange(requests, {});
  }
  for (LabRequest& request : open) refuse(request);
  if (saver.joinable()) saver.join();
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Trainer::~Trainer() { stop(); }

Result<std::unique_ptr<Trainer>> Trainer::create(Model model, TrainerOptions options, Start start,
                                                 Surroundings around) {
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(
      std::move(model), std::move(options), std::move(start), std::move(around))));
}

Result<void> Trainer::start() {
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->phase != Phase::idle) return {};
    impl_->phase = Phase::running;
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
  return {};
}

void Trainer::stop() {
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->phase != Phase::stopped) impl_->phase = Phase::stopping;
  }
  impl_->changed.notify_all();
  impl_->source->stop();
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  } else {
    impl_->finish();
  }
}

void Trainer::pause(const OnDone& on_paused) { impl_->ask(Pausing{on_paused}); }

void Trainer::resume() {
  std::deque<LabRequest> overtaken;
  {
    const MutexLock lock(impl_->mutex);
    const auto is_pause = [](const LabRequest& one) {
      return std::holds_alternative<Pausing>(one);
    };
    std::ranges::copy_if(impl_->requests, std::back_inserter(overtaken), is_pause);
    std::erase_if(impl_->requests, is_pause);
    if (impl_->phase == Phase::paused) impl_->phase = Phase::running;
  }
  impl_->changed.notify_all();
  for (LabRequest& request : overtaken) refuse(request);
}

void Trainer::set_progress(double share) {
  const MutexLock lock(impl_->mutex);
  impl_->progress_share = share;
}

// NOLINTBEGIN(performance-unnecessary-value-param): the signatures are training/trainer.h's.
void Trainer::request_evaluation(MakeSource, OnEvaluated on_evaluated) {
  impl_->ask(Evaluating{nullptr, {}, std::move(on_evaluated)});
}

void Trainer::request_evaluation_of(SharedReplica replica, MakeSource, OnEvaluated on_evaluated) {
  impl_->ask(Evaluating{std::move(replica), {}, std::move(on_evaluated)});
}

// NOLINTEND(performance-unnecessary-value-param)

void Trainer::request_checkpoint(CheckpointRequest request, OnSaved on_saved) {
  impl_->ask(Saving{std::move(request), std::move(on_saved)});
}

void Trainer::request_adoption(Replica replica, OnDone on_adopted) {
  impl_->ask(Adoption{std::move(replica), std::move(on_adopted)});
}

Replica Trainer::snapshot() { return impl_->copy(); }

void Trainer::with_master(const std::function<void(gossip::MasterView)>& job) {
  impl_->lease.with_master(job);
}

Result<std::unique_ptr<gossip::ReplicaVectors>> Trainer::make_vectors() {
  return std::make_unique<gossip::HostVectors>(model().layout, *this, gossip::detected_isa());
}

TrainingState Trainer::state() const {
  const MutexLock lock(impl_->mutex);
  return impl_->published;
}

const Model& Trainer::model() const { return impl_->model; }
ResolvedDevice Trainer::device() const { return {}; }

}  // namespace starling::training
