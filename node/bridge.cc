#include "node/bridge.h"

#include "gossip/delta/parts.h"
#include "node/base/check.h"
#include "node/base/cpu_time.h"
#include "node/base/fault.h"
#include "node/base/start_threads.h"
#include "training/schedule.h"

#include <asio/post.hpp>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

namespace starling::node {

namespace {

// A std::function needs copyable captures; results that only move are wrapped once.
template <class T>
std::function<void()> call_with(std::function<void(T)> done, T value) {
  // Owners: the handler that Asio holds, and nobody else.
  auto shared = std::make_shared<T>(std::move(value));
  return [done = std::move(done), shared] { done(std::move(*shared)); };
}

}  // namespace

Bridge::Bridge(asio::io_context& io, BridgeOptions options, BridgeEvents& events, Log& log)
    : io_(io), options_(std::move(options)), events_(events), log_(log) {}

Bridge::~Bridge() { STARLING_CHECK(stopped_ || trainer_ == nullptr); }

Result<std::unique_ptr<Bridge>> Bridge::create(asio::io_context& io, BridgeOptions options,
                                               std::optional<training::Trainer::Start> begin,
                                               BridgeEvents& events, Log& log) {
  TRY(training::Model model, training::make_model(options.model));
  if (!begin)
    begin =
        training::Trainer::Start{.replica = training::genesis_replica(model, options.genesis_seed),
                                 .momenta = {},
                                 .state = {}};
  TRY(std::unique_ptr<Bridge> bridge, start_threads(Doing::starting, [&] {
        return std::unique_ptr<Bridge>(new Bridge(io, std::move(options), events, log));
      }));

  training::LoaderOptions loader = bridge->options_.loader;
  loader.start = begin->state.cursor;
  loader.first_side = training::image_side(bridge->options_.trainer.resize,
                                           begin->state.progress_share, loader.target);
  TRY_VOID(training::suit_loader(loader, bridge->options_.trainer.device));
  auto source = std::make_unique<training::LoaderSource>(
      std::make_unique<training::Loader>(*bridge->options_.train, loader, log));
  bridge->loader_ = &source->loader();
  bridge->data_members_ = loader.members;
  auto trainer =
      training::Trainer::create(std::move(model), bridge->options_.trainer, std::move(*begin),
                                {std::move(source), bridge->make_hooks(), log});
  if (!trainer) return fail(std::move(trainer).error());
  TRY(auto vectors, (*trainer)->make_vectors());

  // The genesis is drawn again when an edge opens with it: 0.15 s for ResNet-50, against a vector
  // of the model's size for the whole run.
  auto draw = [&drawn = (*trainer)->model(), seed = bridge->options_.genesis_seed](
                  std::span<float> out) { training::draw_genesis(drawn, seed, out); };
  bridge->references_ = std::make_unique<gossip::Replica>(
      (*trainer)->model().layout, std::move(vectors), std::move(draw),
      gossip::ReplicaOptions{.aggregator = bridge->options_.aggregator});
  bridge->trainer_ = std::move(*trainer);  // last: from now on it has to be stopped
  return bridge;
}

training::TrainerHooks Bridge::make_hooks() {
  return {.on_step = [this](const training::StepReport& report) { note_step(report); },
          .on_failed =
              [this](const Error& error) {
                notify_io([this, error] {
                  assert_io_thread();
                  events_.on_training_failed(error);
                });
              }};
}

Result<void> Bridge::start() { return trainer_->start(); }

transport::Task<> Bridge::stop() {
  if (stopped_) co_return;
  // The lane waits for the trainer, so what the trainer asks of io stays in order before the end.
  auto end_training = [this] {
    trainer_->stop();
    return true;
  };
  (void)co_await transport::on_pool(lane_, std::move(end_training));
  // Everything that was posted before runs before this resumes: one queue, first in, first out.
  // An outcome may post a report, and whatever runs here may ask for another job: only after two
  // turns without a job is nothing left.
  auto executor = io_.get_executor();
  for (int quiet = 0; quiet < 2; quiet = pending_ > 0 ? 0 : quiet + 1)
    co_await asio::post(executor, asio::use_awaitable);
  // From here to the end of the bridge, which its owner has to begin at once, nobody else runs.
  lane_.join();
  stopped_ = true;
}

void Bridge::run(gossip::CodecJob job) {
  auto work = [this, job = std::move(job)] {
    if (fault::maybe("lane.no_memory")) throw std::bad_alloc();
    const double begin_s = thread_cpu_seconds();
    gossip::CodecOutcome outcome = references_->run(job);
    outcome.cost = cost_of(thread_cpu_seconds() - begin_s);
    return outcome;
  };
  auto done = [this](gossip::CodecOutcome outcome) {
    assert_io_thread();
    events_.on_codec_done(std::move(outcome));
  };
  run_on_lane(std::move(work), std::move(done));
}

// The threads of the codec share its passes evenly, so the lane's own time stands for each, and
// where the train thread waits for a core that time is missing as often. Passes on a GPU cost
// training no processor.
Duration Bridge::cost_of(double lane_s) {
  const training::ResolvedDevice device = trainer_->device();
  if (device.cuda) return {};
  const double crowding = [&] {
    const MutexLock lock(mutex_);
    return crowding_;
  }();
  const int codec_threads = std::min(device.threads, gossip::kMostCodecThreads);
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(crowding * lane_s * codec_threads / device.threads));
}

void Bridge::pause(std::function<void(Result<void>)> on_paused) {
  trainer_->pause([this, on_paused = std::move(on_paused)](const Result<void>& paused) {
    notify_io([on_paused, paused] { on_paused(paused); });
  });
}

void Bridge::adopt(training::Replica replica, std::function<void(const Result<void>&)> on_adopted) {
  ++adopting_;
  auto told = [this, on_adopted = std::move(on_adopted)](const Result<void>& adopted) {
    notify_io([this, on_adopted, adopted] {
      assert_io_thread();
      end_adoption();
      on_adopted(adopted);
    });
  };
  // Through the lane: behind the jobs that are on their way, which are about the old replica.
  asio::post(lane_, [this, replica = std::move(replica), told = std::move(told)]() mutable {
    trainer_->request_adoption(std::move(replica), std::move(told));
  });
}

void Bridge::when_adopted(Held task) {
  if (adopting_ == 0) return task();
  held_.push_back(std::move(task));
}

void Bridge::end_adoption() {
  if (--adopting_ > 0) return;
  for (Held& task : std::exchange(held_, {})) task();
}

training::MakeSource Bridge::evaluation_source() const {
  return [this]() -> std::unique_ptr<training::BatchSource> {
    const auto& spec = options_.model;
    auto options = training::loader_options_for(*options_.val, training::Pass::evaluation,
                                                static_cast<std::uint32_t>(spec.image_size),
                                                static_cast<std::uint32_t>(spec.channels));
    options.batch = options_.loader.batch;
    options.threads = 1;
    options.max_bad = options_.loader.max_bad;
    auto loader = std::make_unique<training::Loader>(*options_.val, options, log_);
    return std::make_unique<training::LoaderSource>(std::move(loader));
  };
}

void Bridge::evaluate(OnEvaluated done) {
  if (auto reply = evaluation_reply(std::move(done)))
    trainer_->request_evaluation(evaluation_source(), std::move(reply));
}

// The copy of the replica becomes the mean where it lies: no further vector of the model's size.
void Bridge::evaluate_neighbourhood(OnNeighbourhood done) {
  struct Estimate {
    training::SharedReplica replica;
    std::size_t references = 0;
  };
  auto work = [this]() -> Result<Estimate> {
    training::Replica copy = trainer_->snapshot();
    TRY(const std::size_t references, references_->neighbourhood_mean(copy.parameters));
    return Estimate{std::make_shared<const training::Replica>(std::move(copy)), references};
  };
  auto evaluate = [this, done = std::move(done)](Result<Estimate> made) {
    assert_io_thread();
    if (!made) return done(fail(std::move(made).error()), 0);
    evaluate_replica(std::move(made->replica), [done, references = made->references](
                                                   Result<training::EvaluationReport> report) {
      done(std::move(report), references);
    });
  };
  run_on_lane(std::move(work), std::move(evaluate));
}

void Bridge::evaluate_replica(training::SharedReplica replica, OnEvaluated done) {
  if (auto reply = evaluation_reply(std::move(done)))
    trainer_->request_evaluation_of(std::move(replica), evaluation_source(), std::move(reply));
}

Bridge::OnEvaluated Bridge::evaluation_reply(OnEvaluated done) {
  if (options_.val == nullptr) {
    done(fail(Errc::not_found, Doing::evaluating,
              "the data has no validation part; name one with --val"));
    return {};
  }
  return [this, done = std::move(done)](Result<training::EvaluationReport> report) {
    notify_io(call_with(done, std::move(report)));
  };
}

void Bridge::save(training::CheckpointRequest request,
                  std::function<void(Result<std::filesystem::path>)> done) {
  auto told = [this, done = std::move(done)](Result<std::filesystem::path> saved) {
    notify_io(call_with(done, std::move(saved)));
  };
  when_adopted([this, request = std::move(request), told = std::move(told)]() mutable {
    trainer_->request_checkpoint(std::move(request), std::move(told));
  });
}

void Bridge::snapshot(std::function<void(training::Replica)> done) {
  auto work = [this] { return trainer_->snapshot(); };
  run_on_lane(std::move(work), std::move(done));
}

void Bridge::set_data_members(const std::vector<NodeId>& members) {
  if (members == data_members_) return;
  data_members_ = members;
  // Not here: a thread of the loader holds its mutex while a batch is begun.
  auto tell = [this, members] {
    loader_->set_members(members);
    return members.size();
  };
  auto told = [this](std::size_t count) { log_.info("data.shared", {{"members", count}}); };
  run_on_lane(std::move(tell), std::move(told));
}

void Bridge::note_step(const training::StepReport& report) {
  const std::uint64_t bad_samples = loader_->bad_samples();
  const double total = report.data_wait_s + report.compute_s + report.lease_wait_s +
                       report.optimizer_s + report.evaluation_s;
  bool post = false;
  {
    const MutexLock lock(mutex_);
    gathered_.step = report.step;
    gathered_.samples = report.samples;
    gathered_.learning_rate = report.learning_rate;
    gathered_.bad_samples = bad_samples;
    gathered_.steps += 1;
    gathered_.batch = static_cast<std::uint32_t>(report.batch);
    gathered_.loss += report.loss;
    gathered_.images_per_second += static_cast<double>(report.batch);
    gathered_.lease_wait_share += report.lease_wait_s;
    gathered_.data_wait_share += report.data_wait_s;
    gathered_.compute_s += report.compute_s;
    gathered_.optimizer_s += report.optimizer_s;
    gathered_s_ += total;
    gathered_cpu_s_ += report.cpu_s;
    post = !std::exchange(report_posted_, true);
  }
  if (post) {
    notify_io([this] {
      assert_io_thread();
      report_steps();
    });
  }
}

void Bridge::report_steps() {
  StepFigures figures;
  double time_s = 0;
  {
    const MutexLock lock(mutex_);
    figures = std::exchange(gathered_, StepFigures{});
    time_s = std::exchange(gathered_s_, 0);
    const double cpu_s = std::exchange(gathered_cpu_s_, 0);
    if (cpu_s > 0) crowding_ = std::max(1.0, (figures.compute_s + figures.optimizer_s) / cpu_s);
    report_posted_ = false;
  }
  const auto steps = static_cast<double>(figures.steps);
  const double time = std::max(time_s, 1e-9);
  figures.loss /= steps;
  figures.step_s = time / steps;
  figures.compute_s /= steps;
  figures.optimizer_s /= steps;
  figures.images_per_second /= time;
  figures.lease_wait_share /= time;
  figures.data_wait_share /= time;
  events_.on_steps(figures);
}

void Bridge::post_to_io(std::function<void()> job) {
  asio::post(io_, [this, job = std::move(job)] {
    --pending_;
    job();
  });
}

void Bridge::fail_on_lane() {
  post_to_io([this, error = current_error(Doing::training, Errc::device_failed)] {
    assert_io_thread();
    events_.on_training_failed(error);
  });
}

void Bridge::notify_io(std::function<void()> job) { asio::post(io_, std::move(job)); }

}  // namespace starling::node
