// Where batches come from: a port, so that training and evaluation run on a Loader, or on anything
// a test makes up.
#pragma once

#include "node/base/result.h"
#include "training/data/loader.h"

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
  // Batches that are begun from now on have images of this side; up to the model's own. Those that
  // are prepared already come first.
  virtual void set_side(std::uint32_t) {}
  // Makes a next() that waits, and all later ones, fail with Errc::cancelled.
  virtual void stop() = 0;
};

// The ordinary source: owns a Loader.
class LoaderSource final : public BatchSource {
 public:
  explicit LoaderSource(std::unique_ptr<Loader> loader) : loader_(std::move(loader)) {}

  [[nodiscard]] Result<std::optional<Batch>> next() override { return loader_->next(); }
  [[nodiscard]] std::optional<Batch> try_next() override {
    return loader_->form() == BatchForm::pixels ? loader_->try_next() : std::nullopt;
  }
  void recycle(Batch batch) override { loader_->recycle(std::move(batch)); }
  void set_side(std::uint32_t side) override { loader_->set_side(side); }
  void stop() override { loader_->stop(); }

  // For set_members() and bad_samples().
  [[nodiscard]] Loader& loader() { return *loader_; }

 private:
  std::unique_ptr<Loader> loader_;
};

}  // namespace starling::training
