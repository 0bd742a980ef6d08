#include "training/arena.h"

#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/base/clock.h"

#include <algorithm>

namespace starling::training {
namespace {

at::Tensor flat_of(std::span<const float> values, std::size_t size) {
  at::Tensor flat = at::zeros({static_cast<std::int64_t>(size)}, at::kFloat);
  STARLING_CHECK(values.empty() || values.size() == size);
  std::ranges::copy(values, floats_of(flat).begin());
  return flat;
}

template <class T>
std::span<T> elements_of(const at::Tensor& flat);
template <>
std::span<float> elements_of<float>(const at::Tensor& flat) {
  return floats_of(flat);
}
template <>
std::span<Bf16> elements_of<Bf16>(const at::Tensor& flat) {
  return bf16s_of(flat);
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
      places_(model.layout.tensors().begin(), model.layout.tensors().end()),
      lease_(gossip::MasterView{floats_of(master_), bn_mean_, bn_variance_}) {
  STARLING_CHECK(!device.cuda);
  STARLING_CHECK_OP(bn_mean_.size(), ==, model.layout.bn_channels());
  STARLING_CHECK_OP(bn_variance_.size(), ==, model.layout.bn_channels());
  working_.load(replica);
  gradients_.push_back(make_set());
}

Arena::GradientSet Arena::make_set() {
  GradientSet set;
  set.big = at::zeros_like(working_.big().host);
  set.small = at::zeros_like(working_.small().host);
  for (const gossip::TensorPlace& place : places_) {
    set.views.push_back(WorkingCopy::view(place.is_small() ? set.small : set.big,
                                          place.is_small() ? working_.small() : working_.big(),
                                          place));
  }
  return set;
}

const std::vector<at::Tensor>& Arena::gradients(std::size_t set) {
  while (gradients_.size() <= set) gradients_.push_back(make_set());
  return gradients_[set].views;
}

bool Arena::gradients_finite(std::size_t set) const {
  return finite(gradients_.at(set).big) && finite(gradients_.at(set).small);
}

PassTimes Arena::optimizer_pass(const Rates& rates, std::size_t sets, Team* team) {
  const SteadyClock clock;
  const TimePoint asked = clock.now();
  TimePoint got = asked;
  lease_.with_master([&](const gossip::MasterView&) {
    got = clock.now();
    const int shares = team == nullptr ? 1 : team->size();
    const auto share = [&](int number) {
      const auto part = static_cast<std::size_t>(number);
      const auto parts = static_cast<std::size_t>(shares);
      pass_stretch(stretch_of(working_.big(), &GradientSet::big, part, parts), sets, rates.big);
      pass_stretch(stretch_of(working_.small(), &GradientSet::small, part, parts), sets,
                   rates.small);
    };
    if (team == nullptr) {
      share(0);
    } else {
      team->run(share);
    }
    merge_statistics();
  });
  return {seconds(got - asked), seconds(clock.now() - got)};
}

Arena::Stretch Arena::stretch_of(const WorkingPart& part, at::Tensor GradientSet::* gradients,
                                 std::size_t number, std::size_t shares) {
  // Whole cache lines in every type, so that no two threads write to one.
  constexpr std::size_t kLine = 64;
  const auto from = [&](std::size_t share) {
    return share == shares ? part.size : part.size / kLine * share / shares * kLine;
  };
  return {part, gradients, from(number), from(number + 1) - from(number)};
}

void Arena::pass_stretch(const Stretch& stretch, std::size_t sets, const SgdStep& step) {
  if (stretch.part.host.scalar_type() == at::kBFloat16) {
    pass_stretch_of<Bf16>(stretch, sets, step);
  } else {
    pass_stretch_of<float>(stretch, sets, step);
  }
}

template <class T>
void Arena::pass_stretch_of(const Stretch& stretch, std::size_t sets, const SgdStep& step) {
  std::vector<std::span<const T>> gradients;
  for (std::size_t i = 0; i < sets; ++i) {
    const at::Tensor& flat = gradients_.at(i).*stretch.gradients;
    gradients.push_back(elements_of<T>(flat).subspan(stretch.begin, stretch.size));
  }
  const std::size_t begin = stretch.part.begin + stretch.begin;
  sgd_pass(SgdRange<T>{floats_of(master_).subspan(begin, stretch.size), gradients.front(),
                       floats_of(momenta_).subspan(begin, stretch.size),
                       elements_of<T>(stretch.part.host).subspan(stretch.begin, stretch.size),
                       std::span(gradients).subspan(1)},
           step);
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
  // Huge pages, because 25,000 faults of small ones take longer than the copy itself.
  const std::size_t size = floats_of(master_).size();
  replica.parameters.reserve(size);
  prefer_huge_pages(replica.parameters.data(), size * sizeof(float));
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
