// Trainer: the training thread. It owns the model and every tensor, and never waits for the
// network.
#pragma once

#include "gossip/delta/master.h"
#include "gossip/delta/vectors.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/base/result.h"
#include "training/batch_source.h"
#include "training/checkpoint.h"
#include "training/device.h"
#include "training/evaluate.h"
#include "training/models/tensor_table.h"
#include "training/optimizer.h"
#include "training/replica.h"
#include "training/schedule.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace starling::training {

struct TrainerOptions {
  DeviceOptions device;
  ScheduleOptions schedule;
  OptimizerOptions optimizer;
  // Share of the target probability spread over all classes. Raising it evens out confidence and
  // raises the loss that is shown; 0 is plain cross-entropy.
  double label_smoothing = 0.1;
  // Where a batch does not fit into the device's memory, go on with half as many images. Off where
  // a person said how many: that is then an error.
  bool halve_batch = false;
  // Smaller images for the first part of the run; the model's own side after them.
  std::vector<ImageStage> resize;
  // Steps in a row whose loss, gradients or statistics are not finite before the run ends as
  // diverged. Such steps change nothing, so one bad batch costs one step.
  int max_bad_steps = 10;
  // Share of the thread's time that an evaluation between steps may take (rulings 43).
  double evaluation_share = 0.1;
};

enum class StepOutcome : std::uint8_t {
  trained,
  skipped,  // the loss, a gradient or a statistic was not finite: nothing was changed
  dropped,  // a pause or the end came before it had gradients: nothing was changed
};

// What one step did and where its time went. All times in seconds. Nobody is told of a step that
// was dropped.
struct StepReport {
  std::int64_t step = 0;      // steps of this replica, this one included if it was trained
  std::uint64_t samples = 0;  // images that this node trained on, in all
  std::size_t batch = 0;
  StepOutcome outcome = StepOutcome::trained;
  double loss = 0;  // of this batch, with label smoothing
  double learning_rate = 0;
  double images_per_second = 0;  // batch / total time of the step
  double data_wait_s = 0;        // waiting for the loader
  double compute_s = 0;          // forward and backward
  double lease_wait_s = 0;       // waiting for the master while a codec job ran
  double optimizer_s = 0;        // holding the master
  double cpu_s = 0;              // processor time of the train thread in compute and optimizer
  double evaluation_s = 0;       // slice of an evaluation after the last step
  std::uint64_t bad_steps = 0;   // skipped steps since the start
};

// Called on the train thread at the step boundary. They must be quick and must not call stop().
struct TrainerHooks {
  std::function<void(const StepReport&)> on_step;
  // Training ended by itself: diverged, data_failed, device_failed. The thread still serves
  // requests as if paused.
  std::function<void(const Error&)> on_failed;
};

// Results of requests: called once, on the train thread or, for checkpoints, on the thread that
// wrote it. A request that stop() (or, for a pause, resume()) overtakes gets Errc::cancelled; one
// beyond kMaxRequests gets Errc::too_many at once, on the caller's thread.
using OnEvaluated = std::function<void(Result<EvaluationReport>)>;
using OnSaved = std::function<void(Result<std::filesystem::path>)>;
using OnDone = std::function<void(Result<void>)>;

inline constexpr std::size_t kMaxRequests = 64;

// Makes the source of an evaluation when its turn comes; called on the train thread.
using MakeSource = std::function<std::unique_ptr<BatchSource>()>;

struct CheckpointRequest {
  CheckpointOptions where;
  // Taken over into state.json as they are; see TrainingState.
  std::string progress_map;
  std::string settings_fingerprint;
};

// Trains one replica until it is stopped.
//
// Owned by the node. create() builds the model (seconds for a large one), start() begins to train,
// stop() joins the thread; the destructor stops. To train something else (other settings were
// adopted) destroy it and make a new one. Neither stop() nor a pause waits for a whole step, which
// may take a slow machine half a minute while a swarm waits for its contribution: a step that has
// no gradients yet is dropped, and its images wait for the next epoch.
// Threads: all public functions may be called from any thread; those that say so wait. The train
//          thread alone touches tensors.
// Truth:   this node's replica. The fp32 master lives behind the lease, in host memory or on the
//          GPU.
// Cost:    vectors of the model's size: master, momenta, gradients, working copy; one more while a
//          snapshot is out or an evaluation runs.
//
// States and events (others are ignored):
//   state     start()   pause()   resume()  step done       failure    stop()
//   idle      running   -         -         -               -          stopped
//   running   -         pausing   -         running         failed     stopped
//   pausing   -         -         running   paused          failed     stopped
//   paused    -         -         running   -               -          stopped
//   failed    -         -         -         -               -          stopped
// Requests are served between steps while running, and at once while paused or failed, where an
// evaluation is not sliced. A pause cancels the evaluation that runs.
class Trainer final : public gossip::MasterPort {
 public:
  // What the trainer begins with: a genesis, a snapshot of a sponsor, or a checkpoint.
  struct Start {
    Replica replica;
    std::vector<float> momenta;  // empty: zero
    TrainingState state;
  };

  // Where its images come from, and whom it tells. `log` outlives the trainer.
  struct Surroundings {
    std::unique_ptr<BatchSource> source;
    TrainerHooks hooks;
    Log& log;
  };

  // Errors:  those of resolve_device(); no_memory, device_failed.
  [[nodiscard]] static Result<std::unique_ptr<Trainer>> create(Model model, TrainerOptions options,
                                                               Start start, Surroundings around);
  ~Trainer() override;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Errors:  no_memory where the machine refuses the train thread; the trainer is idle as before.
  [[nodiscard]] Result<void> start();
  // Answers every open request, waits for a checkpoint that is being written, joins. Again is
  // harmless.
  void stop();

  // Asks for a pause; `on_paused` is called on the train thread once no step is running (at once if
  // paused already).
  void pause(const OnDone& on_paused);
  void resume();

  // The swarm's share of the budget, 0 to 1: sets the learning rate from the next step on. Quick.
  void set_progress(double share);

  // Evaluates a copy of the replica as it is when the request is served. Requests queue.
  void request_evaluation(MakeSource source, OnEvaluated on_evaluated);
  // Evaluates these values instead (a merged model).
  void request_evaluation_of(SharedReplica replica, MakeSource source, OnEvaluated on_evaluated);
  // Copies the state at a step boundary and writes it on another thread while training goes on.
  void request_checkpoint(CheckpointRequest request, OnSaved on_saved);

  // Takes over all values of a replica between two steps: momenta become zero, and the learning
  // rate warms up over 200 steps.
  void request_adoption(Replica replica, OnDone on_adopted);

  // A copy of the replica, not torn: the master under the lease. Waits for one holder at most.
  [[nodiscard]] Replica snapshot();

  // gossip::MasterPort: any thread; waits for the holders that asked before.
  void with_master(const std::function<void(gossip::MasterView)>& job) override;

  // What a gossip::Replica works on: vectors beside the master, on the CPU or the GPU. The trainer
  // must outlive them.
  //
  // Errors:  no_memory, device_failed.
  [[nodiscard]] Result<std::unique_ptr<gossip::ReplicaVectors>> make_vectors();

  // Where training is; safe from any thread, waits for nothing but a copy of a few words.
  [[nodiscard]] TrainingState state() const;
  [[nodiscard]] const Model& model() const;
  [[nodiscard]] ResolvedDevice device() const;

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace starling::training
