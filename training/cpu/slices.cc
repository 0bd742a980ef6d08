#include "training/cpu/slices.h"

#include "training/cpu/intra_op.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace starling::training {

std::size_t slice_count(std::size_t images, int threads) {
  return std::clamp<std::size_t>(images / kMinSliceImages, 1, static_cast<std::size_t>(threads));
}

Slices::Slices(const Model& model, Arena& arena, int threads)
    : model_(model), arena_(arena), threads_(threads), team_("train", threads) {}

void Slices::grow(std::size_t count) {
  while (slices_.size() < count) {
    slices_.push_back(Slice::make(model_, arena_.weights(), arena_.gradients(slices_.size())));
  }
}

std::optional<Slices::Outcome> Slices::run(const BatchTensors& batch, double label_smoothing,
                                           const std::atomic<bool>& drop) {
  const auto images = static_cast<std::size_t>(batch.images.size(0));
  const std::size_t count = slice_count(images, threads_);
  const int intra_op = std::max(1, threads_ / static_cast<int>(count));
  grow(count);
  std::vector<std::optional<Outcome>> outcomes(count);
  team_.run([&](int number) {
    const auto slice = static_cast<std::size_t>(number);
    if (slice >= count) return;
    use_intra_op_threads(intra_op);
    const SlicePlace place = slice_place(images, slice, count);
    const std::optional<double> loss = slices_[slice]->forward_backward(
        {batch.images.narrow(0, place.begin, place.size),
         batch.labels.narrow(0, place.begin, place.size), static_cast<std::int64_t>(images),
         label_smoothing, &drop});
    if (!loss) return;
    outcomes[slice] = {*loss, std::isfinite(*loss) && arena_.gradients_finite(slice), 1};
  });
  Outcome whole{0, true, count};
  for (const std::optional<Outcome>& one : outcomes) {
    if (!one) return std::nullopt;
    whole.loss += one->loss;
    whole.finite = whole.finite && one->finite;
  }
  // An infinite variance is one that nothing else tells of: what it normalises is zero.
  whole.finite = move_statistics(count, images) && whole.finite;
  return whole;
}

bool Slices::move_statistics(std::size_t slices, std::size_t images) {
  const Weights& weights = arena_.weights();
  bool finite = true;
  std::vector<double> shares;
  for (std::size_t s = 0; s < slices; ++s)
    shares.push_back(static_cast<double>(slice_place(images, s, slices).size) /
                     static_cast<double>(images));
  for (std::size_t norm = 0; norm < model_.norms.size(); ++norm) {
    float* const mean = weights.means[norm].data_ptr<float>();
    float* const variance = weights.variances[norm].data_ptr<float>();
    const auto channels = static_cast<std::size_t>(model_.norms[norm].channels);
    for (std::size_t c = 0; c < channels; ++c) {
      // In evaluation these stand for what a slice's own statistics are on average.
      double batch_mean = 0;
      double batch_variance = 0;
      for (std::size_t s = 0; s < slices; ++s) {
        const NormState& found = slices_[s]->statistics(norm);
        batch_mean += shares[s] * static_cast<double>(found.mean[c]);
        batch_variance += shares[s] * static_cast<double>(found.variance[c]);
      }
      mean[c] += static_cast<float>(kNormMomentum * (batch_mean - static_cast<double>(mean[c])));
      variance[c] +=
          static_cast<float>(kNormMomentum * (batch_variance - static_cast<double>(variance[c])));
    }
    finite = finite && all_finite(std::span(mean, channels)) &&
             all_finite(std::span(variance, channels));
  }
  return finite;
}

}  // namespace starling::training
