// Bridge: the one place where training and gossip meet.
#pragma once

#include "gossip/delta/jobs.h"
#include "gossip/delta/replica.h"
#include "node/base/log.h"
#include "node/base/mutex.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "training/data/dataset.h"
#include "training/genesis.h"
#include "training/trainer.h"
#include "transport/task.h"

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/thread_pool.hpp>

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace starling::node {

// Frees what is of the model's size on a thread of the pool, which outlives the call: ResNet-50's
// vectors take the io thread 5 to 10 ms each to give back, page by page.
template <class T>
void free_on(asio::thread_pool& pool, T value) {
  asio::post(pool, [value = std::move(value)] {});
}

// The same for whoever turns out to be its last owner. The pool outlives them all.
template <class T>
std::shared_ptr<T> freed_on(asio::thread_pool& pool, std::unique_ptr<T> value) {
  const auto give_back = [&pool](T* last) { free_on(pool, std::unique_ptr<T>(last)); };
  return {value.release(), give_back};
}

// What this node trains, once its settings are known. The data sets outlive the bridge.
struct BridgeOptions {
  training::ModelSpec model;
  std::uint64_t genesis_seed = 1;
  gossip::Aggregator aggregator = gossip::Aggregator::mean;
  training::TrainerOptions trainer;
  training::LoaderOptions loader;  // of the training pass; `start` comes from the checkpoint
  const training::Dataset* train = nullptr;
  const training::Dataset* val = nullptr;  // null: nothing to evaluate on
};

// Steps that were taken since the last report, averaged.
struct StepFigures {
  std::int64_t step = 0;      // of this replica
  std::uint64_t samples = 0;  // that this node trained on, in all
  std::uint64_t steps = 0;    // in this report
  std::uint32_t batch = 0;    // images of the last one
  double loss = 0;            // mean over them
  double learning_rate = 0;
  double images_per_second = 0;
  double step_s = 0;
  double lease_wait_share = 0;  // of the time: waiting for a codec job
  double data_wait_share = 0;
  double compute_s = 0;    // of one step, forward and backward
  double optimizer_s = 0;  // of one step, holding the master
  std::uint64_t bad_samples = 0;
};

// What the bridge reports. Thread: io.
class BridgeEvents {
 public:
  virtual ~BridgeEvents() = default;
  virtual void on_codec_done(gossip::CodecOutcome outcome) ON_IO_THREAD = 0;
  virtual void on_steps(const StepFigures& figures) ON_IO_THREAD = 0;
  virtual void on_training_failed(const Error& error) ON_IO_THREAD = 0;
};

// Owner of trainer, references and codec lane for one run of settings.
//
// Made by create() when the settings are known, start()ed once the first replica is there; stop()
// must have finished before it is destroyed, which is work of the model's size and best left to the
// thread that made it. When other settings are adopted the node makes a new one.
// Thread:  every function but create() is called on the io thread; nothing here makes it wait. The
//          destructor may run on any.
//          Jobs run on the codec lane, one at a time, in the order of the calls.
// Cost:    the trainer's vectors, one reference for each edge.
class Bridge {
 public:
  // Makes model and trainer.
  //
  // `begin`: where training starts; nothing: at genesis.
  // Errors:  bad_config for a model that there is not; those of training::Trainer::create(). An
  //          allocation may throw.
  // Cost:    seconds for a large model. Thread: any.
  [[nodiscard]] static Result<std::unique_ptr<Bridge>> create(
      asio::io_context& io, BridgeOptions options, std::optional<training::Trainer::Start> begin,
      BridgeEvents& events, Log& log);
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // Errors:  those of Trainer::start().
  [[nodiscard]] Result<void> start() ON_IO_THREAD;
  // Ends training and every job, those too that are asked for meanwhile; afterwards nothing is
  // reported any more. Whoever called it takes the bridge out of use in the turn in which it
  // resumes: a job that is asked for after that is lost. Idempotent, one after the other.
  transport::Task<> stop();

  // Queues a job; its outcome is on_codec_done.
  void run(gossip::CodecJob job) ON_IO_THREAD;
  // Queues anything else that walks model-sized memory; `done` is called on the io thread. Where
  // `work` throws, as an allocation can, that is its error if it returns a Result; otherwise
  // training has failed.
  template <class Work, class Done>
  void run_on_lane(Work work, Done done) {
    using Outcome = std::invoke_result_t<Work&>;
    ++pending_;
    auto task = [this, work = std::move(work), done = std::move(done)]() mutable {
      std::optional<Outcome> outcome;
      try {
        outcome.emplace(work());
      } catch (...) {
        if constexpr (std::is_constructible_v<Outcome, std::unexpected<Error>>) {
          outcome.emplace(fail(current_error(Doing::training, Errc::device_failed)));
        } else {
          return fail_on_lane();
        }
      }
      post_to_io([done = std::move(done), outcome = std::move(*outcome)]() mutable {
        done(std::move(outcome));
      });
    };
    when_adopted([this, task = std::move(task)]() mutable { asio::post(lane_, std::move(task)); });
  }

  // Who shares the data set with this node, itself included, ascending; counts where the data is
  // partitioned. Costs nothing where nothing changed.
  void set_data_members(const std::vector<NodeId>& members) ON_IO_THREAD;
  // The swarm's share of the budget, for the learning rate.
  void set_progress(double share) { trainer_->set_progress(share); }
  // For good. `on_paused` on the io thread, once no step is running; cancelled where training ends
  // instead.
  void pause(std::function<void(Result<void>)> on_paused) ON_IO_THREAD;
  // Replaces the replica between two steps; `on_adopted` on the io thread. What was asked for
  // before, jobs and checkpoints, is done with the old replica, what is asked for from now on with
  // the new one: an increment of the old one, added to the new one, would undo a part of it.
  //
  // Errors, of the outcome: bad_argument for a replica of another model, cancelled where training
  //          ends instead, too_many, no_memory, device_failed. The old replica goes on then.
  void adopt(training::Replica replica,
             std::function<void(const Result<void>&)> on_adopted) ON_IO_THREAD;
  // Outcomes on the io thread. Without a validation set evaluate() fails at once with not_found.
  using OnEvaluated = std::function<void(Result<training::EvaluationReport>)>;
  void evaluate(OnEvaluated done) ON_IO_THREAD;
  // Evaluates the neighbourhood mean (gossip::Replica) with this replica's BatchNorm statistics;
  // `references` is how many it is the mean of. 0: there is none yet, so it was the replica itself.
  using OnNeighbourhood =
      std::function<void(Result<training::EvaluationReport>, std::size_t references)>;
  void evaluate_neighbourhood(OnNeighbourhood done) ON_IO_THREAD;
  void evaluate_replica(training::SharedReplica replica, OnEvaluated done) ON_IO_THREAD;
  void save(training::CheckpointRequest request,
            std::function<void(Result<std::filesystem::path>)> done) ON_IO_THREAD;
  // A copy of the replica, made on the lane.
  void snapshot(std::function<void(training::Replica)> done) ON_IO_THREAD;

  [[nodiscard]] const training::Model& model() const { return trainer_->model(); }
  [[nodiscard]] training::TrainingState state() const { return trainer_->state(); }
  [[nodiscard]] training::ResolvedDevice device() const { return trainer_->device(); }
  [[nodiscard]] training::Trainer& trainer() { return *trainer_; }

 private:
  Bridge(asio::io_context& io, BridgeOptions options, BridgeEvents& events, Log& log);

  [[nodiscard]] training::TrainerHooks make_hooks();
  [[nodiscard]] training::MakeSource evaluation_source() const;
  // What the trainer calls with the report; empty, and `done` told, without a validation set.
  [[nodiscard]] OnEvaluated evaluation_reply(OnEvaluated done);
  // By how much a job holds training up that took the lane `lane_s` of processor time.
  [[nodiscard]] Duration cost_of(double lane_s);
  void note_step(const training::StepReport& report);
  void report_steps() ON_IO_THREAD;
  // Does it now, or as soon as no replica is being put in place, in the order of the calls.
  using Held = std::move_only_function<void()>;
  void when_adopted(Held task);
  void end_adoption() ON_IO_THREAD;
  // Runs `job` on the io thread and counts it as finished.
  void post_to_io(std::function<void()> job);
  // Ends training with the exception that is being handled: `done` of that job is never called.
  void fail_on_lane();
  // Runs `job` on the io thread, called from the train thread or the lane.
  void notify_io(std::function<void()> job);

  asio::io_context& io_;
  BridgeOptions options_;
  BridgeEvents& events_;
  Log& log_;
  std::unique_ptr<training::Trainer> trainer_;
  training::Loader* loader_ = nullptr;  // the trainer's
  std::vector<NodeId> data_members_;    // that the loader was told; io thread
  std::unique_ptr<gossip::Replica> references_;
  asio::thread_pool lane_{1};

  Mutex mutex_;
  StepFigures gathered_ STARLING_GUARDED_BY(mutex_);
  double gathered_s_ STARLING_GUARDED_BY(mutex_) = 0;
  double gathered_cpu_s_ STARLING_GUARDED_BY(mutex_) = 0;  // of the train thread
  // How many times as long as its processor time a step computes: more than 1 where it shares its
  // cores.
  double crowding_ STARLING_GUARDED_BY(mutex_) = 1;
  bool report_posted_ STARLING_GUARDED_BY(mutex_) = false;

  std::uint32_t adopting_ = 0;  // replicas that are being put in place; io thread
  std::vector<Held> held_;      // what waits for that; io thread
  std::uint64_t pending_ = 0;   // jobs of the lane whose outcome was not delivered yet; io thread
  bool stopped_ = false;
};

}  // namespace starling::node
