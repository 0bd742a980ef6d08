#include "training/trainer.h"

#include "node/base/check.h"
#include "node/base/mutex.h"
#include "node/base/start_threads.h"
#include "node/base/thread.h"
#include "training/cpu/intra_op.h"
#include "training/cpu/tensor_memory.h"
#include "training/requests.h"
#include "training/saver.h"
#include "training/stepper.h"
#include "training/torch_guard.h"

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace starling::training {
namespace {

enum class Phase : std::uint8_t { idle, running, pausing, paused, failed, stopping, stopped };

Error cancelled(Doing doing) { return {Errc::cancelled, doing, "the trainer stops"}; }

}  // namespace

struct Trainer::Impl {
  Impl(Model m, TrainerOptions o, std::unique_ptr<BatchSource> s, TrainerHooks h, Log& l)
      : model(std::move(m)),
        options(std::move(o)),
        source(std::move(s)),
        hooks(std::move(h)),
        log(l),
        saver(model, [this] {
          {
            const MutexLock lock(mutex);
          }  // whoever saw it busy waits by now
          wake();
        }) {}

  // On the train thread.
  void run();
  void work_once();
  void train_step();
  void fail_training(const Error& error);
  // After a batch was too large; false where nothing can be done about it.
  [[nodiscard]] bool halve_batch(const Error& error, const Batch& batch);
  void serve_requests();
  // The first request that can be served now: a checkpoint waits for the one that is being written,
  // an evaluation for the one that is running, and neither holds up the rest.
  [[nodiscard]] std::deque<Request>::iterator find_servable() STARLING_REQUIRES(mutex);
  [[nodiscard]] std::optional<Request> take_request();
  void serve(Adoption request);
  void serve(Saving request);
  void serve(Evaluating request);
  // False where it was woken before a batch was there.
  bool advance_evaluation();
  void evaluate_between_steps(double step_s);
  void settle_pause();
  void finish();

  void ask(Request request);
  // Moved from where there is no refusal.
  [[nodiscard]] std::optional<Error> take(Request& request);
  // The train thread has something to do that does not wait for data.
  void wake();
  void publish();
  [[nodiscard]] Phase phase_now();

  const Model model;
  const TrainerOptions options;
  const std::unique_ptr<BatchSource> source;
  const TrainerHooks hooks;
  Log& log;
  const SteadyClock clock;
  ResolvedDevice device;
  std::optional<Batch> ahead;  // of the train thread; the stepper copies it, so it outlives that
  std::unique_ptr<Stepper> stepper;
  std::thread thread;

  std::atomic<double> progress_share = 0;
  std::atomic<bool> drop = false;  // the step under way; true from a pause to the resume

  mutable Mutex mutex;
  CondVar changed;  // the phase, the requests, or what the saver is at
  Phase phase STARLING_GUARDED_BY(mutex) = Phase::idle;
  std::deque<Request> requests STARLING_GUARDED_BY(mutex);
  std::vector<OnDone> pausers STARLING_GUARDED_BY(mutex);
  TrainingState published STARLING_GUARDED_BY(mutex);
  BatchSource* evaluated STARLING_GUARDED_BY(mutex) = nullptr;  // by the evaluation that is running
  bool late STARLING_GUARDED_BY(mutex) = false;                 // a pause found it running

  // Of the train thread alone.
  struct Running {
    Evaluation evaluation;
    std::int64_t step;
    OnEvaluated on_evaluated;
  };
  std::optional<Running> running;
  [[nodiscard]] Running take_running();
  void drop_evaluation();
  double evaluation_credit_s = 0;  // time that the evaluation may still take before the next step
  double evaluation_spent_s = 0;   // since the last report
  Saver saver;
};

Phase Trainer::Impl::phase_now() {
  const MutexLock lock(mutex);
  return phase;
}

void Trainer::Impl::publish() {
  const MutexLock lock(mutex);
  published = stepper->state();
}

void Trainer::Impl::ask(Request request) {
  if (const std::optional<Error> refusal = take(request)) return refuse(request, *refusal);
  wake();
}

std::optional<Error> Trainer::Impl::take(Request& request) {
  const MutexLock lock(mutex);
  if (phase == Phase::stopping || phase == Phase::stopped) return cancelled(Doing::stopping);
  if (requests.size() >= kMaxRequests) {
    return Error{Errc::too_many, Doing::training,
                 std::to_string(kMaxRequests) + " requests wait for the trainer already"};
  }
  requests.push_back(std::move(request));
  return std::nullopt;
}

void Trainer::Impl::wake() {
  changed.notify_all();
  source->wake();
  const MutexLock lock(mutex);
  if (evaluated != nullptr) evaluated->wake();
}

void Trainer::Impl::run() {
  assert_train_thread();
  name_this_thread("train");
  use_intra_op_threads(1);  // until a step says otherwise; LibTorch's default is one for each core
  while (phase_now() != Phase::stopping) work_once();
  finish();
}

void Trainer::Impl::work_once() {
  serve_requests();
  settle_pause();
  switch (phase_now()) {
    case Phase::running:
      train_step();
      return;
    case Phase::paused:
    case Phase::failed: {
      if (running) {
        advance_evaluation();
        return;
      }
      const MutexLock lock(mutex);
      const bool idle = (phase == Phase::paused || phase == Phase::failed) && pausers.empty() &&
                        find_servable() == requests.end();
      if (idle) changed.wait(mutex);
      return;
    }
    case Phase::idle:
    case Phase::pausing:
    case Phase::stopping:
    case Phase::stopped:
      return;
  }
}

void Trainer::Impl::settle_pause() {
  std::vector<OnDone> done;
  bool drops = false;
  {
    const MutexLock lock(mutex);
    drops = late;
    if (phase == Phase::pausing) phase = Phase::paused;
    if (phase == Phase::paused || phase == Phase::failed) done = std::exchange(pausers, {});
  }
  // Unsliced, an evaluation that came before the pause would take all cores from whom it is for.
  if (drops) drop_evaluation();
  for (const OnDone& on_paused : done)
    if (on_paused) on_paused({});
}

void Trainer::Impl::train_step() {
  const TimePoint begin = clock.now();
  const auto full = static_cast<std::uint32_t>(model.plan.spec.image_size);
  source->set_side(image_side(options.resize, progress_share.load(), full));
  Result<std::optional<Batch>> batch = ahead ? std::exchange(ahead, std::nullopt) : source->next();
  const TimePoint loaded = clock.now();
  if (!batch || !*batch) {
    // Stopped, or woken for something else: that is no failure.
    if (!batch && batch.error().code == Errc::cancelled) return;
    return fail_training(
        batch ? Error{Errc::data_failed, Doing::training, "the stream of training batches ended"}
              : std::move(batch).error());
  }
  ahead = source->try_next();
  auto staged = ahead ? stepper->stage(*ahead) : Result<void>();
  auto report = staged ? stepper->step(**batch, progress_share.load(), drop)
                       : Result<StepReport>(fail(staged.error()));
  // A step that failed may still copy from what would be filled anew.
  const bool is_idle = report || stepper->forget_staged();
  if (!report && !(is_idle && halve_batch(report.error(), **batch))) fail_training(report.error());
  source->recycle(**std::move(batch));
  if (!report || report->outcome == StepOutcome::dropped) return;
  publish();

  const double step_s = seconds(clock.now() - begin);
  report->data_wait_s = seconds(loaded - begin);
  report->images_per_second = step_s > 0 ? static_cast<double>(report->batch) / step_s : 0;
  report->evaluation_s = std::exchange(evaluation_spent_s, 0);
  if (report->outcome == StepOutcome::skipped)
    log.warn("train.step_skipped", {{"step", report->step}, {"bad_steps", report->bad_steps}});
  if (hooks.on_step) hooks.on_step(*report);
  evaluate_between_steps(step_s);
}

bool Trainer::Impl::halve_batch(const Error& error, const Batch& batch) {
  if (!options.halve_batch || error.code != Errc::no_memory || !stepper->can_halve(batch))
    return false;
  const std::size_t images = batch.size;
  if (ahead) source->recycle(*std::exchange(ahead, std::nullopt));
  source->set_batch(images / 2);
  log.warn("train.batch_halved", {{"from", images}, {"to", images / 2}, {"why", error.detail}});
  return true;
}

void Trainer::Impl::fail_training(const Error& error) {
  {
    const MutexLock lock(mutex);
    if (phase == Phase::stopping) return;
    phase = Phase::failed;
  }
  log.error("train.failed", {{"reason", error.detail}, {"code", name_of(error.code)}});
  if (hooks.on_failed) hooks.on_failed(error);
}

std::deque<Request>::iterator Trainer::Impl::find_servable() {
  return std::ranges::find_if(requests, [this](const Request& request) {
    if (std::holds_alternative<Saving>(request)) return !saver.busy();
    if (std::holds_alternative<Evaluating>(request)) return !running.has_value();
    return true;
  });
}

std::optional<Request> Trainer::Impl::take_request() {
  const MutexLock lock(mutex);
  if (phase == Phase::stopping) return std::nullopt;
  const auto found = find_servable();
  if (found == requests.end()) return std::nullopt;
  Request request = std::move(*found);
  requests.erase(found);
  return request;
}

void Trainer::Impl::serve_requests() {
  while (auto request = take_request()) {
    std::visit([this](auto&& one) { serve(std::forward<decltype(one)>(one)); },
               *std::move(request));
  }
}

void Trainer::Impl::serve(Adoption request) {
  auto adopted = guarded(Doing::joining, [&]() -> Result<void> {
    const Model& m = model;
    if (request.replica.parameters.size() != m.layout.size() ||
        request.replica.bn_mean.size() != m.layout.bn_channels() ||
        request.replica.bn_variance.size() != m.layout.bn_channels()) {
      return fail(Errc::bad_argument, Doing::joining, "a replica of another model");
    }
    stepper->adopt(request.replica);
    return {};
  });
  publish();
  if (request.on_adopted) request.on_adopted(std::move(adopted));
}

void Trainer::Impl::serve(Saving request) {
  auto copied = guarded(Doing::saving_checkpoint,
                        [&]() -> Result<Checkpoint> { return stepper->checkpoint(); });
  if (!copied) {
    if (request.on_saved) request.on_saved(fail(std::move(copied).error()));
    return;
  }
  copied->state.progress_map = std::move(request.request.progress_map);
  copied->state.settings_fingerprint = std::move(request.request.settings_fingerprint);
  assert_train_thread();
  saver.start(*std::move(copied), request.request.where, request.on_saved);
}

void Trainer::Impl::serve(Evaluating request) {
  BatchSource* batches = nullptr;
  auto evaluation = guarded(Doing::evaluating, [&]() -> Result<Evaluation> {
    const SharedReplica replica =
        request.replica ? std::move(request.replica)
                        : std::make_shared<const Replica>(stepper->engine().snapshot());
    auto made = request.make_source();
    batches = made.get();
    return Evaluation::create(model, *replica, options.device, std::move(made));
  });
  if (!evaluation) {
    if (request.on_evaluated) request.on_evaluated(fail(std::move(evaluation).error()));
    return;
  }
  running.emplace(*std::move(evaluation), stepper->state().step, std::move(request.on_evaluated));
  evaluation_credit_s = 0;
  const MutexLock lock(mutex);
  evaluated = batches;
}

bool Trainer::Impl::advance_evaluation() {
  auto progress = running->evaluation.advance();
  if (progress && *progress == Evaluation::Progress::more) return true;
  if (!progress && progress.error().code == Errc::cancelled) return false;
  // Moved out first: what the callback asks for next finds the place free.
  Running done = take_running();
  auto report = progress ? Result<EvaluationReport>(done.evaluation.report())
                         : fail(std::move(progress).error());
  if (report) report->step = done.step;
  if (done.on_evaluated) done.on_evaluated(std::move(report));
  return true;
}

Trainer::Impl::Running Trainer::Impl::take_running() {
  {
    const MutexLock lock(mutex);
    evaluated = nullptr;
    late = false;
  }
  return *std::exchange(running, std::nullopt);
}

void Trainer::Impl::drop_evaluation() {
  if (!running) return;
  const Running done = take_running();
  if (done.on_evaluated)
    done.on_evaluated(fail(Errc::cancelled, Doing::evaluating, "training pauses or stops"));
}

void Trainer::Impl::evaluate_between_steps(double step_s) {
  if (!running) return;
  // Of every second, `share` is the evaluation's: a step of s seconds earns s share / (1 - share).
  const double share = std::clamp(options.evaluation_share, 0.001, 0.9);
  evaluation_credit_s += step_s * share / (1 - share);
  while (running && evaluation_credit_s > 0 && !drop) {
    const TimePoint begin = clock.now();
    const bool went_on = advance_evaluation();
    const double spent = seconds(clock.now() - begin);
    evaluation_credit_s -= spent;
    evaluation_spent_s += spent;
    if (!went_on) return;
  }
}

void Trainer::Impl::finish() {
  std::deque<Request> open;
  std::vector<OnDone> waiting;
  {
    const MutexLock lock(mutex);
    phase = Phase::stopped;
    open = std::exchange(requests, {});
    waiting = std::exchange(pausers, {});
  }
  for (Request& request : open) refuse(request, cancelled(Doing::stopping));
  for (const OnDone& on_paused : waiting)
    if (on_paused) on_paused(fail(cancelled(Doing::stopping)));
  drop_evaluation();
  saver.join();
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Trainer::~Trainer() { stop(); }

Result<std::unique_ptr<Trainer>> Trainer::create(Model model, TrainerOptions options, Start start,
                                                 Surroundings around) {
  auto impl = std::make_unique<Impl>(std::move(model), std::move(options), std::move(around.source),
                                     std::move(around.hooks), around.log);
  use_cached_tensor_memory();
  TRY(impl->device, resolve_device(impl->options.device));
  if (const std::string why = refused_gpu(impl->options.device); !why.empty())
    impl->log.warn("train.gpu_refused", {{"reason", why}, {"did", "trains on the CPU"}});
  // The caller's thread builds alone: where OpenMP is refused a thread, it ends the process.
  use_intra_op_threads(1);
  TRY(impl->stepper, guarded(Doing::building_model, [&]() -> Result<std::unique_ptr<Stepper>> {
        return std::make_unique<Stepper>(impl->model, impl->device, impl->options, start);
      }));
  impl->progress_share = start.state.progress_share;
  impl->publish();
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Result<void> Trainer::start() {
  // Held meanwhile, so that nobody sees it run before it does.
  const MutexLock lock(impl_->mutex);
  if (impl_->phase != Phase::idle) return {};
  TRY(impl_->thread, start_threads(Doing::starting, [impl = impl_.get()] {
        return std::thread([impl] { impl->run(); });
      }));
  impl_->phase = Phase::running;
  return {};
}

void Trainer::stop() {
  {
    const MutexLock lock(impl_->mutex);
    const bool never_started = impl_->phase == Phase::idle || impl_->phase == Phase::stopped;
    impl_->phase = never_started ? Phase::stopped : Phase::stopping;
    impl_->drop = true;
  }
  impl_->wake();
  impl_->source->stop();
  if (impl_->thread.joinable()) return impl_->thread.join();
  impl_->finish();
}

void Trainer::pause(const OnDone& on_paused) {
  bool stopped = false;
  {
    const MutexLock lock(impl_->mutex);
    stopped = impl_->phase == Phase::stopping || impl_->phase == Phase::stopped;
    if (!stopped) {
      if (impl_->phase == Phase::running) {
        impl_->phase = Phase::pausing;
        impl_->drop = true;
        impl_->late = impl_->evaluated != nullptr;
      }
      impl_->pausers.push_back(on_paused);
    }
  }
  if (stopped && on_paused) on_paused(fail(cancelled(Doing::stopping)));
  impl_->wake();
}

void Trainer::resume() {
  std::vector<OnDone> overtaken;
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->phase != Phase::pausing && impl_->phase != Phase::paused) return;
    if (impl_->phase == Phase::pausing) overtaken = std::exchange(impl_->pausers, {});
    impl_->phase = Phase::running;
    impl_->drop = false;
  }
  impl_->changed.notify_all();
  for (const OnDone& on_paused : overtaken)
    if (on_paused)
      on_paused(fail(Errc::cancelled, Doing::training, "training was resumed before it paused"));
}

void Trainer::set_progress(double share) { impl_->progress_share = share; }

void Trainer::request_evaluation(MakeSource source, OnEvaluated on_evaluated) {
  impl_->ask(Evaluating{nullptr, std::move(source), std::move(on_evaluated)});
}

void Trainer::request_evaluation_of(SharedReplica replica, MakeSource source,
                                    OnEvaluated on_evaluated) {
  impl_->ask(Evaluating{std::move(replica), std::move(source), std::move(on_evaluated)});
}

void Trainer::request_checkpoint(CheckpointRequest request, OnSaved on_saved) {
  impl_->ask(Saving{std::move(request), std::move(on_saved)});
}

void Trainer::request_adoption(Replica replica, OnDone on_adopted) {
  impl_->ask(Adoption{std::move(replica), std::move(on_adopted)});
}

Replica Trainer::snapshot() { return impl_->stepper->engine().snapshot(); }

void Trainer::with_master(const std::function<void(gossip::MasterView)>& job) {
  impl_->stepper->engine().master().with_master(job);
}

Result<std::unique_ptr<gossip::ReplicaVectors>> Trainer::make_vectors() {
  return impl_->stepper->engine().make_vectors();
}

TrainingState Trainer::state() const {
  const MutexLock lock(impl_->mutex);
  return impl_->published;
}

const Model& Trainer::model() const { return impl_->model; }
ResolvedDevice Trainer::device() const { return impl_->device; }

}  // namespace starling::training
