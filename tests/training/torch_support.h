// Batches that a test makes up: images whose class can be learned, without files or randomness from
// outside; and how far two tensors are apart.
#pragma once

#include "node/base/mutex.h"
#include "node/base/random.h"
#include "training/batch_source.h"
#include "training/genesis.h"
#include "training/trainer.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace starling::training {

inline constexpr std::int64_t kClasses = 4;

// A small model for images of 12 x 12 pixels: a step takes a few milliseconds.
inline Model tiny_model() {
  auto model = make_model({"small", kClasses, 1, 12});
  REQUIRE(model.has_value());
  return *std::move(model);
}

// One class lights up one quarter of the image; the rest is noise.
inline Batch quarter_batch(Rng& rng, std::size_t size, std::int64_t pixels) {
  Batch batch;
  const auto side = static_cast<std::size_t>(pixels);
  batch.images = AlignedFloats(size * side * side);
  batch.size = size;
  float* out = batch.images.data();
  for (std::size_t n = 0; n < size; ++n) {
    const auto label = static_cast<std::size_t>(rng.below(kClasses));
    batch.labels.push_back(static_cast<std::int64_t>(label));
    for (std::size_t y = 0; y < side; ++y) {
      for (std::size_t x = 0; x < side; ++x) {
        const std::size_t quarter = 2 * (2 * y / side) + 2 * x / side;
        const double light = quarter == label ? 1.0 : 0.0;
        *out++ = static_cast<float>(light + rng.unit() - 0.5);
      }
    }
  }
  return batch;
}

// An endless stream (or one of `batches`) of such batches.
class QuarterSource final : public BatchSource {
 public:
  struct Options {
    std::uint64_t seed = 1;
    std::size_t size = 16;
    std::int64_t batches = std::numeric_limits<std::int64_t>::max();
    std::int64_t poison_from = std::numeric_limits<std::int64_t>::max();  // not a number from here
    std::int64_t poison_to = std::numeric_limits<std::int64_t>::max();
  };
  explicit QuarterSource(Options options) : options_(options), rng_(options.seed) {}

  Result<std::optional<Batch>> next() override {
    if (stopped_) return fail(Errc::cancelled, Doing::loading_data, "stopped");
    if (given_ == options_.batches) return std::nullopt;
    Batch batch = quarter_batch(rng_, options_.size, 12);
    if (given_ >= options_.poison_from && given_ < options_.poison_to) {
      batch.images.data()[5] = std::numeric_limits<float>::quiet_NaN();
    }
    ++given_;
    batch.end = {0, static_cast<std::uint64_t>(given_) * options_.size};
    return batch;
  }
  void stop() override { stopped_ = true; }

 private:
  Options options_;
  Rng rng_;
  std::int64_t given_ = 0;
  std::atomic<bool> stopped_ = false;
};

inline std::unique_ptr<BatchSource> quarters(QuarterSource::Options options = {}) {
  return std::make_unique<QuarterSource>(options);
}

// A result that another thread delivers once.
template <class T>
class Promise {
 public:
  void set(T value) {
    {
      const MutexLock lock(mutex_);
      value_.emplace(std::move(value));
    }
    changed_.notify_all();
  }
  T wait() {
    const MutexLock lock(mutex_);
    while (!value_) changed_.wait(mutex_);
    return *std::exchange(value_, std::nullopt);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<T> value_ STARLING_GUARDED_BY(mutex_);
};

inline TrainerOptions tiny_options() {
  TrainerOptions options;
  options.device.device = "cpu";
  options.schedule = {.peak = 0.05, .warmup_share = 0, .floor_share = 0};
  return options;
}

inline Trainer::Start start_of(const Model& model, std::uint64_t seed = 1) {
  return {make_genesis(model, seed).replica, {}, {}};
}

// |a - b| over |b|; 0 where both are nothing but zeros.
inline double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  const auto distance = (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>();
  return distance / std::max(1e-12, b.to(at::kDouble).norm().item<double>());
}

}  // namespace starling::training
