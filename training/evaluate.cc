#include "training/evaluate.h"

#include "node/base/clock.h"
#include "training/batch_tensors.h"
#include "training/cpu/intra_op.h"
#include "training/cpu/tensor_memory.h"
#include "training/models/network.h"
#include "training/torch_guard.h"
#include "training/working_copy.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace starling::training {

struct Evaluation::Impl {
  Impl(const Model& model, const ResolvedDevice& device, const Replica& replica,
       std::unique_ptr<BatchSource> batches)
      : spec(model.plan.spec),
        threads(device.threads),
        network(model),
        working(model, device),
        source(std::move(batches)) {
    working.load(replica);
  }

  [[nodiscard]] Result<void> add(const Batch& batch);

  ModelSpec spec;
  int threads;
  Network network;
  WorkingCopy working;
  std::unique_ptr<BatchSource> source;
  EvaluationReport sums;  // loss, top1 and top5 are sums here
};

Result<void> Evaluation::Impl::add(const Batch& batch) {
  TRY(const BatchTensors tensors, tensors_of(batch, spec, working.device(), Doing::evaluating));
  const torch::NoGradGuard no_grad;
  use_intra_op_threads(threads);
  const at::Tensor logits = network.forward(working.weights(), tensors.images, Mode::evaluation);
  const at::Tensor loss = at::cross_entropy_loss(logits, tensors.labels, {}, at::Reduction::Sum);
  const auto best = std::get<1>(logits.topk(std::min<std::int64_t>(5, spec.classes), 1));
  const at::Tensor hits = best.eq(tensors.labels.unsqueeze(1));
  sums.images += static_cast<std::int64_t>(batch.size);
  sums.loss += loss.item<double>();
  sums.top1 += static_cast<double>(hits.narrow(1, 0, 1).sum().item<std::int64_t>());
  sums.top5 += static_cast<double>(hits.sum().item<std::int64_t>());
  return {};
}

Evaluation::Evaluation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Evaluation::~Evaluation() = default;
Evaluation::Evaluation(Evaluation&&) noexcept = default;
Evaluation& Evaluation::operator=(Evaluation&&) noexcept = default;

Result<Evaluation> Evaluation::create(const Model& model, const Replica& replica,
                                      const DeviceOptions& device,
                                      std::unique_ptr<BatchSource> source) {
  use_cached_tensor_memory();
  TRY(const ResolvedDevice resolved, resolve_device(device));
  return guarded(Doing::evaluating, [&]() -> Result<Evaluation> {
    return Evaluation(std::make_unique<Impl>(model, resolved, replica, std::move(source)));
  });
}

Result<Evaluation::Progress> Evaluation::advance() {
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  TRY(std::optional<Batch> batch, impl_->source->next());
  if (!batch) return Progress::finished;
  // A batch whose images were all unreadable is empty: nothing to count, but more may follow.
  if (batch->size > 0) {
    TRY_VOID(guarded(Doing::evaluating, [&] { return impl_->add(*batch); }));
  }
  impl_->source->recycle(*std::move(batch));
  impl_->sums.seconds += seconds(clock.now() - begin);
  return Progress::more;
}

EvaluationReport Evaluation::report() const {
  EvaluationReport report = impl_->sums;
  if (report.images == 0) return report;
  const auto images = static_cast<double>(report.images);
  report.loss /= images;
  report.top1 /= images;
  report.top5 /= images;
  return report;
}

Result<EvaluationReport> evaluate(const Model& model, const Replica& replica,
                                  const DeviceOptions& device,
                                  std::unique_ptr<BatchSource> source) {
  TRY(Evaluation evaluation, Evaluation::create(model, replica, device, std::move(source)));
  while (true) {
    TRY(const Evaluation::Progress progress, evaluation.advance());
    if (progress == Evaluation::Progress::finished) return evaluation.report();
  }
}

}  // namespace starling::training
