// Saver: writes checkpoints one at a time, on a thread of its own.
#pragma once

#include "training/checkpoint.h"
#include "training/trainer.h"

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

namespace starling::training {

// Owned by the trainer. A machine that allows no more threads writes on the caller's: training
// waits for the disk then, and nothing is lost.
class Saver {
 public:
  // `done` is called after each checkpoint, once busy() is false, on the thread that wrote it.
  // `model` outlives the Saver.
  Saver(const Model& model, std::function<void()> done) : model_(model), done_(std::move(done)) {}
  ~Saver() { join(); }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Thread:  any.
  [[nodiscard]] bool busy() const { return busy_; }
  // Not while busy(). `on_saved` is told the folder, or save_checkpoint()'s error.
  void start(Checkpoint checkpoint, const CheckpointOptions& where,
             const OnSaved& on_saved) ON_TRAIN_THREAD;
  // Waits for the one that is being written.
  void join();

 private:
  void write(const Checkpoint& checkpoint, const CheckpointOptions& where, const OnSaved& on_saved);

  const Model& model_;
  const std::function<void()> done_;
  std::atomic<bool> busy_ = false;
  std::thread thread_;
};

}  // namespace starling::training
