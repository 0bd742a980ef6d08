// Where batches come from: a port, so that training and evaluation run on a Loader, or on anything
// a test makes up.
#pragma once

#include "node/base/result.h"
#include "training/data/loader.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace starling::training {

// A stream of batches: endless for training, one pass for an evaluation.
//
// Thread:  next() and recycle() belong to one thread; stop() may be called by any.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // The next batch; may wait for it. Nothing at the end of a pass.
  [[nodiscard]] virtual Result<std::optional<Batch>> next() = 0;
  // The next batch if it is there already and its way to the device may begin while another is
  // computed: waits for nobody. Errors are left to next().
  [[nodiscard]] virtual std::optional<Batch> try_next() { return std::nullopt; }
  // Gives a batch's memory back. Optional.
  virtual void recycle(Batch) {}
  // Samples of a pass that could not be read and are in no batch.
  [[nodiscard]] virtual std::size_t left_out() const { return 0; }
  // Batches that are begun from now on have images of this side; up to the model's own. Those that
  // are prepared already come first.
  virtual void set_side(std::uint32_t) {}
  // No batch from now on has more images; up to what the source began with. Larger ones that are
  // prepared already are left out: their images wait for the next epoch. Thread: that of next().
  // To be there where TrainerOptions::halve_batch is wanted.
  virtual void set_batch(std::size_t) {}
  // Makes a next() that waits fail with Errc::cancelled, or else the first one that would have to:
  // its thread has something else to do first. The stream stands where it stood.
  virtual void wake() {}
  // Makes a next() that waits, and all later ones, fail with Errc::cancelled.
  virtual void stop() = 0;
};

// The ordinary source: owns a Loader.
class LoaderSource final : public BatchSource {
 public:
  explicit LoaderSource(std::unique_ptr<Loader> loader) : loader_(std::move(loader)) {}

  [[nodiscard]] Result<std::optional<Batch>> next() override {
    while (true) {
      auto batch = loader_->next();
      if (!batch || !*batch || (*batch)->size <= most_) return batch;
      loader_->recycle(**std::move(batch));
    }
  }
  [[nodiscard]] std::optional<Batch> try_next() override {
    if (loader_->form() != BatchForm::pixels) return std::nullopt;
    auto batch = loader_->try_next();
    if (!batch || batch->size <= most_) return batch;
    loader_->recycle(*std::move(batch));
    return std::nullopt;
  }
  void recycle(Batch batch) override { loader_->recycle(std::move(batch)); }
  [[nodiscard]] std::size_t left_out() const override { return loader_->bad_samples(); }
  void set_side(std::uint32_t side) override { loader_->set_side(side); }
  void set_batch(std::size_t images) override {
    most_ = images;
    loader_->set_batch(images);
  }
  void wake() override { loader_->wake(); }
  void stop() override { loader_->stop(); }

  // For set_members() and bad_samples().
  [[nodiscard]] Loader& loader() { return *loader_; }

 private:
  std::unique_ptr<Loader> loader_;
  std::size_t most_ = std::numeric_limits<std::size_t>::max();
};

}  // namespace starling::training
