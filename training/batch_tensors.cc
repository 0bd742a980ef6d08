#include "training/batch_tensors.h"

#include "training/cuda/input_passes.h"

#include <algorithm>
#include <string>

namespace starling::training {

std::int64_t side_of(const Batch& batch, const ModelSpec& spec) {
  return batch.side > 0 ? batch.side : spec.image_size;
}

Result<void> check_batch(const Batch& batch, const ModelSpec& spec, Doing doing) {
  const auto count = static_cast<std::int64_t>(batch.size);
  const std::int64_t side = side_of(batch, spec);
  const std::int64_t floats = count * side * side * spec.channels;
  const bool enough = batch.pixels.empty()
                          ? static_cast<std::int64_t>(batch.images.size()) >= floats
                          : batch.pixels.images() >= batch.size && batch.pixels.form.side == side &&
                                batch.pixels.form.channels == spec.channels;
  if (count < 1 || !enough || batch.labels.size() < batch.size) {
    const std::string holds =
        batch.pixels.empty() ? std::to_string(batch.images.size()) + " values"
                             : "room for " + std::to_string(batch.pixels.images()) + " images of " +
                                   std::to_string(batch.pixels.form.side) + " pixels a side and " +
                                   std::to_string(batch.pixels.form.channels) + " channels";
    return fail(Errc::data_failed, doing,
                "a batch of " + std::to_string(count) + " images holds " + holds + ", expected " +
                    std::to_string(floats) + " values");
  }
  const auto* const bad = std::ranges::find_if(
      batch.labels.data(), batch.labels.data() + count,
      [&spec](std::int64_t label) { return label < 0 || label >= spec.classes; });
  if (bad != batch.labels.data() + count) {
    return fail(Errc::data_failed, doing,
                "a label is " + std::to_string(*bad) + ", but the model has " +
                    std::to_string(spec.classes) + " classes");
  }
  return {};
}

Result<BatchTensors> tensors_of(const Batch& batch, const ModelSpec& spec, const at::Device& device,
                                Doing doing) {
  TRY_VOID(check_batch(batch, spec, doing));
  const auto count = static_cast<std::int64_t>(batch.size);
  const std::int64_t side = side_of(batch, spec);
  const std::int64_t sizes[] = {count, side, side, spec.channels};
  at::Tensor images;
  if (batch.pixels.empty()) {
    images = at::from_blob(batch.images.data(), sizes, at::kFloat);
  } else {
    images = at::empty(sizes, at::kFloat);
    cuda::input_on_cpu(
        cuda::input_args(batch.pixels.data(), batch.pixels.form, images.data_ptr<float>()),
        batch.size);
  }
  BatchTensors tensors;
  tensors.images = images.permute({0, 3, 1, 2});
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
