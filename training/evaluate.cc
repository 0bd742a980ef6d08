#include "training/evaluate.h"

#include "node/base/clock.h"
#include "node/base/team.h"
#include "training/batch_tensors.h"
#include "training/cpu/intra_op.h"
#include "training/cpu/slices.h"
#include "training/cpu/tensor_memory.h"
#include "training/models/network.h"
#include "training/torch_guard.h"
#include "training/working_copy.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace starling::training {

struct Evaluation::Impl {
  Impl(const Model& model, const ResolvedDevice& device, const Replica& replica,
       std::unique_ptr<BatchSource> batches)
      : spec(model.plan.spec),
        network(model),
        working(model, device),
        team("train", device.cuda ? 1 : device.threads),
        source(std::move(batches)) {
    working.load(replica);
  }

  [[nodiscard]] Result<void> add(const Batch& batch);
  // Sums over some images: loss, hits among the first and the first five. Thread: any.
  [[nodiscard]] EvaluationReport sums_of(const at::Tensor& images, const at::Tensor& labels);

  ModelSpec spec;
  Network network;
  WorkingCopy working;
  // As in training (cpu/slices.h): parts of a batch side by side, no barrier inside an operation.
  Team team;
  std::unique_ptr<BatchSource> source;
  EvaluationReport sums;  // loss, top1 and top5 are sums here
};

Result<void> Evaluation::Impl::add(const Batch& batch) {
  TRY(const BatchTensors tensors, tensors_of(batch, spec, working.device(), Doing::evaluating));
  const std::size_t count = slice_count(batch.size, team.size());
  const int intra_op = team.size() / static_cast<int>(count);
  std::vector<EvaluationReport> parts(count);
  team.run([&](int number) {
    const auto part = static_cast<std::size_t>(number);
    if (part >= count) return;
    use_intra_op_threads(intra_op);
    const SlicePlace place = slice_place(batch.size, part, count);
    parts[part] = sums_of(tensors.images.narrow(0, place.begin, place.size),
                          tensors.labels.narrow(0, place.begin, place.size));
  });
  sums.images += static_cast<std::int64_t>(batch.size);
  for (const EvaluationReport& part : parts) {
    sums.loss += part.loss;
    sums.top1 += part.top1;
    sums.top5 += part.top5;
  }
  return {};
}

EvaluationReport Evaluation::Impl::sums_of(const at::Tensor& images, const at::Tensor& labels) {
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = network.forward(working.weights(), images, Mode::evaluation);
  const at::Tensor loss = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
  const auto best = std::get<1>(logits.topk(std::min<std::int64_t>(5, spec.classes), 1));
  const at::Tensor hits = best.eq(labels.unsqueeze(1));
  EvaluationReport part;
  part.loss = loss.item<double>();
  part.top1 = static_cast<double>(hits.narrow(1, 0, 1).sum().item<std::int64_t>());
  part.top5 = static_cast<double>(hits.sum().item<std::int64_t>());
  return part;
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
  if (!batch) {
    // No share can be told of no images; 0 would look like a bad model.
    if (impl_->sums.images == 0)
      return fail(Errc::data_failed, Doing::evaluating, "no image came to evaluate on");
    return Progress::finished;
  }
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
  report.left_out = static_cast<std::int64_t>(impl_->source->left_out());
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
