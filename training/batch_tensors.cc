#include "training/batch_tensors.h"

#include <algorithm>
#include <string>

namespace starling::training {

Result<BatchTensors> tensors_of(const Batch& batch, const ModelSpec& spec, const at::Device& device,
                                Doing doing) {
  const auto count = static_cast<std::int64_t>(batch.size);
  const std::int64_t side = batch.side > 0 ? batch.side : spec.image_size;
  const std::int64_t floats = count * side * side * spec.channels;
  if (count < 1 || static_cast<std::int64_t>(batch.images.size()) < floats ||
      batch.labels.size() < batch.size) {
    return fail(Errc::data_failed, doing,
                "a batch of " + std::to_string(count) + " images holds " +
                    std::to_string(batch.images.size()) + " values, expected " +
                    std::to_string(floats));
  }
  const auto* const bad = std::ranges::find_if(
      batch.labels.data(), batch.labels.data() + count,
      [&spec](std::int64_t label) { return label < 0 || label >= spec.classes; });
  if (bad != batch.labels.data() + count) {
    return fail(Errc::data_failed, doing,
                "a label is " + std::to_string(*bad) + ", but the model has " +
                    std::to_string(spec.classes) + " classes");
  }
  BatchTensors tensors;
  tensors.images =
      at::from_blob(batch.images.data(), {count, side, side, spec.channels}, at::kFloat)
          .permute({0, 3, 1, 2});
  // torch reads these labels and never writes them.
  tensors.labels =
      at::from_blob(const_cast<std::int64_t*>(batch.labels.data()), {count}, at::kLong);
  if (!device.is_cpu()) {
    tensors.images = tensors.images.to(device);
    tensors.labels = tensors.labels.to(device);
  }
  return tensors;
}

}  // namespace starling::training
