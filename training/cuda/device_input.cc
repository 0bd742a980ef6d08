#include "training/cuda/device_input.h"

#include "training/cuda/launch_input.h"
#include "training/cuda/norm_layer.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <exception>

namespace starling::training::cuda {

DeviceInput::DeviceInput(at::Device device, c10::cuda::CUDAStream computing)
    : device_(device),
      computing_(computing),
      copying_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

DeviceInput::~DeviceInput() {
  try {
    copying_.synchronize();
  } catch (const std::exception&) {
    // A copy that failed has nothing left to read.
  }
}

DeviceInput::Place* DeviceInput::place_of(const std::byte* batch) {
  auto* const found = std::ranges::find(places_, batch, &Place::of);
  return found == places_.end() ? nullptr : found;
}

void DeviceInput::stage(const Batch& batch) {
  if (batch.pixels.empty()) return;
  // Memory of this stream: given back, it is not used again before what was launched on it.
  const c10::cuda::CUDAStreamGuard guard(copying_);
  Place* const free = place_of(nullptr);
  TORCH_CHECK(free != nullptr, "two batches are staged already");
  Place& to = *free;
  const auto used = static_cast<std::int64_t>(batch.pixels.used);
  if (!to.bytes.defined() || to.bytes.numel() < used) {
    to.bytes = at::Tensor();
    to.bytes = at::empty({used + used / 4}, at::TensorOptions(at::kByte).device(device_));
  }
  C10_CUDA_CHECK(cudaMemcpyAsync(to.bytes.data_ptr(), batch.pixels.data(), batch.pixels.used,
                                 cudaMemcpyHostToDevice, copying_.stream()));
  to.copied.record(copying_);
  to.of = batch.pixels.data();
}

void DeviceInput::forget_staged() {
  copying_.synchronize();
  // It reads the bytes of a batch that was loaded, and nobody waited for it where a step failed.
  computing_.synchronize();
  for (Place& place : places_) place.of = nullptr;
}

void DeviceInput::load(const Batch& batch, std::int64_t first, const InputTensors& to) {
  if (place_of(batch.pixels.data()) == nullptr) stage(batch);
  Place& from = *place_of(batch.pixels.data());
  from.of = nullptr;
  from.copied.block(computing_);
  const auto* const bytes = static_cast<const std::byte*>(from.bytes.const_data_ptr());
  const auto launch = [&](auto* out) {
    const auto args =
        input_args(bytes, batch.pixels.form, out, static_cast<std::uint32_t>(first), to.layout);
    launched(launch_input(args, static_cast<std::size_t>(to.images.size(0)), computing_.stream()));
  };
  if (to.images.scalar_type() == at::kBFloat16) {
    launch(static_cast<Bf16*>(to.images.data_ptr()));
  } else {
    launch(to.images.data_ptr<float>());
  }
  constexpr auto kLabel = static_cast<std::int64_t>(sizeof(std::int64_t));
  const std::int64_t offset =
      static_cast<std::int64_t>(batch.pixels.labels_offset()) + first * kLabel;
  const std::int64_t label_bytes = to.labels.numel() * kLabel;
  to.labels.copy_(from.bytes.narrow(0, offset, label_bytes).view(at::kLong));
}

}  // namespace starling::training::cuda
