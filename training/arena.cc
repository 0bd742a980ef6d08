#include "training/arena.h"

#include "node/base/check.h"
#include "node/base/clock.h"

#include <algorithm>

namespace starling::training {
namespace {

at::Tensor zeros_like_on(const at::Tensor& tensor, const at::Device& device) {
  return at::zeros(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(device));
}

at::Tensor flat_of(std::span<const float> values, std::size_t size) {
  at::Tensor flat = at::zeros({static_cast<std::int64_t>(size)}, at::kFloat);
  STARLING_CHECK(values.empty() || values.size() == size);
  std::ranges::copy(values, floats_of(flat).begin());
  return flat;
}

bool finite(const at::Tensor& flat) {
  return flat.scalar_type() == at::kBFloat16 ? all_finite(bf16s_of(flat))
                                             : all_finite(floats_of(flat));
}

}  // namespace

Arena::Arena(const Model& model, const ResolvedDevice& device, const Replica& replica,
             std::span<const float> momenta)
    : master_(flat_of(replica.parameters, model.layout.size())),
      momenta_(flat_of(momenta, model.layout.size())),
      bn_mean_(replica.bn_mean),
      bn_variance_(replica.bn_variance),
      mean_before_(replica.bn_mean),
      variance_before_(replica.bn_variance),
      batches_tracked_(replica.batches_tracked),
      working_(model, device),
      lease_(gossip::MasterView{floats_of(master_), bn_mean_, bn_variance_}) {
  STARLING_CHECK_OP(bn_mean_.size(), ==, model.layout.bn_channels());
  STARLING_CHECK_OP(bn_variance_.size(), ==, model.layout.bn_channels());
  working_.load(replica);
  attach_gradients(model);
}

void Arena::attach_gradients(const Model& model) {
  big_gradients_ = zeros_like_on(working_.big().host, working_.device());
  small_gradients_ = zeros_like_on(working_.small().host, working_.device());
  const bool on_host = working_.device().is_cpu();
  big_host_gradients_ = on_host ? big_gradients_ : zeros_like_on(big_gradients_, at::kCPU);
  small_host_gradients_ = on_host ? small_gradients_ : zeros_like_on(small_gradients_, at::kCPU);

  const auto places = model.layout.tensors();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const bool small = places[i].is_small();
    gradient_views_.push_back(WorkingCopy::view(small ? small_gradients_ : big_gradients_,
                                                small ? working_.small() : working_.big(),
                                                places[i]));
    at::Tensor parameter = working_.weights().parameters[i];
    parameter.requires_grad_(true);
    parameter.mutable_grad() = gradient_views_[i];
  }
}

void Arena::zero_gradients() {
  const torch::NoGradGuard no_grad;
  big_gradients_.zero_();
  small_gradients_.zero_();
}

bool Arena::collect_gradients() {
  if (!working_.device().is_cpu()) {
    const torch::NoGradGuard no_grad;
    big_host_gradients_.copy_(big_gradients_);
    small_host_gradients_.copy_(small_gradients_);
  }
  return finite(big_host_gradients_) && finite(small_host_gradients_);
}

bool Arena::gradients_in_place() const {
  const auto& parameters = working_.weights().parameters;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    const at::Tensor& expected = gradient_views_[i];
    if (!gradient.defined() || gradient.data_ptr() != expected.data_ptr() ||
        gradient.strides() != expected.strides()) {
      return false;
    }
  }
  return true;
}

Arena::PassTimes Arena::optimizer_pass(const Rates& rates) {
  const SteadyClock clock;
  const TimePoint asked = clock.now();
  TimePoint got = asked;
  lease_.with_master([&](const gossip::MasterView&) {
    got = clock.now();
    pass_part(working_.big(), big_host_gradients_, rates.big);
    pass_part(working_.small(), small_host_gradients_, rates.small);
    merge_statistics();
  });
  const TimePoint done = clock.now();
  working_.upload();
  return {seconds(got - asked), seconds(done - got)};
}

void Arena::pass_part(WorkingPart& part, const at::Tensor& gradients, const SgdStep& step) {
  const auto parameters = floats_of(master_).subspan(part.begin, part.size);
  const auto momenta = floats_of(momenta_).subspan(part.begin, part.size);
  if (part.host.scalar_type() == at::kBFloat16) {
    sgd_pass(SgdRange<Bf16>{parameters, bf16s_of(gradients), momenta, bf16s_of(part.host)}, step);
  } else {
    sgd_pass(SgdRange<float>{parameters, floats_of(gradients), momenta, floats_of(part.host)},
             step);
  }
}

void Arena::merge_statistics() {
  constexpr auto kKept = static_cast<float>(1.0 - kNormMomentum);
  std::vector<float> mean(bn_mean_.size());
  std::vector<float> variance(bn_variance_.size());
  working_.read_statistics(mean, variance);
  for (std::size_t c = 0; c < mean.size(); ++c) {
    bn_mean_[c] = mean[c] + kKept * (bn_mean_[c] - mean_before_[c]);
    // Rounding may leave a hair below zero where the master's variance is close to none.
    bn_variance_[c] = std::max(0.0F, variance[c] + kKept * (bn_variance_[c] - variance_before_[c]));
  }
  ++batches_tracked_;
  mean_before_ = bn_mean_;
  variance_before_ = bn_variance_;
  working_.write_statistics(bn_mean_, bn_variance_);
}

void Arena::discard_statistics() { working_.write_statistics(mean_before_, variance_before_); }

void Arena::adopt(const Replica& replica) {
  lease_.with_master([&](const gossip::MasterView& master) {
    STARLING_CHECK_OP(replica.parameters.size(), ==, master.parameters.size());
    STARLING_CHECK_OP(replica.bn_mean.size(), ==, master.bn_mean.size());
    STARLING_CHECK_OP(replica.bn_variance.size(), ==, master.bn_variance.size());
    std::ranges::copy(replica.parameters, master.parameters.begin());
    std::ranges::copy(replica.bn_mean, master.bn_mean.begin());
    std::ranges::copy(replica.bn_variance, master.bn_variance.begin());
    batches_tracked_ = replica.batches_tracked;
  });
  std::ranges::fill(floats_of(momenta_), 0.0F);
  mean_before_ = replica.bn_mean;
  variance_before_ = replica.bn_variance;
  working_.load(replica);
}

Replica Arena::snapshot() {
  Replica replica;
  lease_.with_master([&](const gossip::MasterView& master) {
    replica.parameters.assign(master.parameters.begin(), master.parameters.end());
    replica.bn_mean.assign(master.bn_mean.begin(), master.bn_mean.end());
    replica.bn_variance.assign(master.bn_variance.begin(), master.bn_variance.end());
    replica.batches_tracked = batches_tracked_;
  });
  return replica;
}

std::vector<float> Arena::momenta() const {
  const auto values = floats_of(momenta_);
  return {values.begin(), values.end()};
}

}  // namespace starling::training
