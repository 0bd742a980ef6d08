#include "training/working_copy.h"

#include "gossip/delta/format.h"
#include "node/base/check.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace starling::training {
namespace {

static_assert(sizeof(Bf16) == sizeof(c10::BFloat16));

WorkingPart make_part(std::size_t begin, std::size_t size, at::ScalarType type,
                      const at::Device& device) {
  WorkingPart part{begin, size, {}, {}};
  part.host = at::zeros({static_cast<std::int64_t>(size)}, type);
  part.device = device.is_cpu() ? part.host : part.host.to(device);
  return part;
}

void load_part(const WorkingPart& part, std::span<const float> parameters) {
  const auto values = parameters.subspan(part.begin, part.size);
  if (part.host.scalar_type() == at::kBFloat16) {
    write_working_copy(values, bf16s_of(part.host));
  } else {
    write_working_copy(values, floats_of(part.host));
  }
}

}  // namespace

std::span<float> floats_of(const at::Tensor& flat) {
  return {flat.data_ptr<float>(), static_cast<std::size_t>(flat.numel())};
}

std::span<Bf16> bf16s_of(const at::Tensor& flat) {
  STARLING_CHECK(flat.scalar_type() == at::kBFloat16);
  return {static_cast<Bf16*>(flat.data_ptr()), static_cast<std::size_t>(flat.numel())};
}

at::Device torch_device(const ResolvedDevice& device) {
  if (!device.cuda) return at::Device(at::kCPU);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(device.index)};
}

at::Tensor WorkingCopy::view(const at::Tensor& flat, const WorkingPart& part,
                             const gossip::TensorPlace& place) {
  const std::vector<std::int64_t>& sizes = place.dims;
  std::vector<std::int64_t> strides(sizes.size(), 1);
  if (sizes.size() == 4) {
    const std::int64_t in = sizes[1];
    strides = {in * sizes[2] * sizes[3], 1, sizes[3] * in, in};
  } else {
    for (std::size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  }
  // detach(): a leaf of its own that shares the memory, so that autograd sees no view of a view.
  // An offset counts from the start of the memory, of which `flat` may be a later part.
  const auto offset = flat.storage_offset() + static_cast<std::int64_t>(place.offset - part.begin);
  return flat.as_strided(sizes, strides, offset).detach();
}

WorkingCopy::WorkingCopy(const Model& model, const ResolvedDevice& device)
    : device_(torch_device(device)) {
  const gossip::Layout& layout = model.layout;
  const std::size_t split = layout.first_small_block() * gossip::kBlock;
  const auto type = device.precision == Precision::bf16 ? at::kBFloat16 : at::kFloat;
  big_ = make_part(0, split, type, device_);
  small_ = make_part(split, layout.size() - split, at::kFloat, device_);
  for (const gossip::TensorPlace& place : layout.tensors()) {
    const WorkingPart& part = place.is_small() ? small_ : big_;
    weights_.parameters.push_back(view(part.device, part, place));
  }
  const auto options = at::TensorOptions(at::kFloat).device(device_);
  means_ = at::zeros({model.bn_channels}, options);
  variances_ = at::ones({model.bn_channels}, options);
  for (const NormSpec& norm : model.norms) {
    weights_.means.push_back(means_.narrow(0, norm.offset, norm.channels));
    weights_.variances.push_back(variances_.narrow(0, norm.offset, norm.channels));
  }
}

void WorkingCopy::load(const Replica& replica) {
  STARLING_CHECK_OP(replica.parameters.size(), ==, big_.size + small_.size);
  STARLING_CHECK_OP(replica.bn_mean.size(), ==, static_cast<std::size_t>(means_.numel()));
  STARLING_CHECK_OP(replica.bn_variance.size(), ==, static_cast<std::size_t>(means_.numel()));
  load_part(big_, replica.parameters);
  load_part(small_, replica.parameters);
  write_statistics(replica.bn_mean, replica.bn_variance);
  upload();
}

void WorkingCopy::upload() {
  if (device_.is_cpu()) return;
  const torch::NoGradGuard no_grad;
  big_.device.copy_(big_.host);
  small_.device.copy_(small_.host);
}

void WorkingCopy::read_statistics(std::span<float> mean, std::span<float> variance) const {
  const at::Tensor host_mean = means_.to(at::kCPU);
  const at::Tensor host_variance = variances_.to(at::kCPU);
  std::ranges::copy(floats_of(host_mean), mean.begin());
  std::ranges::copy(floats_of(host_variance), variance.begin());
}

void WorkingCopy::write_statistics(std::span<const float> mean, std::span<const float> variance) {
  const auto set = [](const at::Tensor& target, std::span<const float> values) {
    const at::Tensor host = at::empty({static_cast<std::int64_t>(values.size())}, at::kFloat);
    std::ranges::copy(values, floats_of(host).begin());
    target.copy_(host);
  };
  const torch::NoGradGuard no_grad;
  set(means_, mean);
  set(variances_, variance);
}

}  // namespace starling::training
