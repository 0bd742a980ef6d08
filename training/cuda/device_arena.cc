#include "training/cuda/device_arena.h"

#include "node/base/check.h"
#include "node/base/clock.h"
#include "training/cuda/device_memory.h"
#include "training/cuda/launch_optimizer.h"
#include "training/working_copy.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <exception>

namespace starling::training::cuda {
namespace {

Stream current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

std::int64_t signed_of(std::size_t count) { return static_cast<std::int64_t>(count); }

template <class T>
SgdArgs<T> sgd_args(float* x, const at::Tensor& gradient, float* v, const at::Tensor& working) {
  SgdArgs<T> args{};
  args.x = x;
  args.g = static_cast<const T*>(gradient.const_data_ptr());
  args.v = v;
  args.w = static_cast<T*>(working.data_ptr());
  args.n = static_cast<std::size_t>(gradient.numel());
  return args;
}

template <class T>
const char* check_finite(const at::Tensor& values, std::uint32_t* refused) {
  return launch_finite_check(static_cast<const T*>(values.const_data_ptr()),
                             static_cast<std::size_t>(values.numel()), refused, current_stream());
}

void copy_to(std::span<const float> values, const at::Tensor& device) {
  const at::Tensor host =
      at::from_blob(const_cast<float*>(values.data()), {signed_of(values.size())}, at::kFloat);
  device.copy_(host);
}

}  // namespace

DeviceArena::DeviceArena(const Model& model, const ResolvedDevice& device, const Replica& replica,
                         std::span<const float> momenta)
    : model_(model),
      device_(torch_device(device)),
      split_(model.layout.first_small_block() * gossip::kBlock),
      set_(model, device_, device.precision == Precision::bf16 ? at::kBFloat16 : at::kFloat,
           wanted()),
      lease_(gossip::MasterView{}),
      host_master_(*this) {
  const c10::DeviceGuard guard(device_);
  load(replica, momenta);
}

std::vector<WorkingSet::Want> DeviceArena::wanted() {
  const std::int64_t size = signed_of(model_.layout.size());
  return {{&master_, size + 2 * model_.bn_channels, at::kFloat},
          {&momenta_, size, at::kFloat},
          {&rate_, 1, at::kFloat},
          {&refused_, 1, at::kInt}};
}

void DeviceArena::load(const Replica& replica, std::span<const float> momenta) {
  const std::int64_t size = signed_of(model_.layout.size());
  STARLING_CHECK_OP(replica.parameters.size(), ==, model_.layout.size());
  STARLING_CHECK_OP(replica.bn_mean.size(), ==, model_.layout.bn_channels());
  STARLING_CHECK_OP(replica.bn_variance.size(), ==, model_.layout.bn_channels());
  STARLING_CHECK(momenta.empty() || momenta.size() == model_.layout.size());
  copy_to(replica.parameters, master_.narrow(0, 0, size));
  copy_to(replica.bn_mean, master_.narrow(0, size, model_.bn_channels));
  copy_to(replica.bn_variance, master_.narrow(0, size + model_.bn_channels, model_.bn_channels));
  if (momenta.empty()) {
    momenta_.zero_();
  } else {
    copy_to(momenta, momenta_);
  }
  batches_tracked_ = replica.batches_tracked;
  write_working_copy();
  written_.record();
  written_.synchronize();
}

void DeviceArena::write_working_copy() {
  const auto* x = master_.data_ptr<float>();
  const std::size_t small = model_.layout.size() - split_;
  const auto& [big_copy, small_copy] = set_.working();
  const Stream stream = current_stream();
  launched(set_.is_bf16()
               ? launch_working_copy(x, split_, static_cast<Bf16*>(big_copy.data_ptr()), stream)
               : launch_working_copy(x, split_, big_copy.data_ptr<float>(), stream));
  launched(launch_working_copy(x + split_, small, small_copy.data_ptr<float>(), stream));
}

bool DeviceArena::is_finite() {
  refused_.zero_();
  auto* const refused = reinterpret_cast<std::uint32_t*>(refused_.data_ptr<std::int32_t>());
  const auto& [big, small] = set_.flat_gradients();
  launched(set_.is_bf16() ? check_finite<Bf16>(big, refused) : check_finite<float>(big, refused));
  launched(check_finite<float>(small, refused));
  // An infinite variance is one that nothing else tells of: what it normalises is zero.
  launched(check_finite<float>(set_.statistics(), refused));
  return refused_.item<std::int32_t>() == 0;
}

PassTimes DeviceArena::optimizer_pass(const Rates& rates) {
  const SteadyClock clock;
  const TimePoint asked = clock.now();
  TimePoint got = asked;
  lease_.with_master([&](const gossip::MasterView&) {
    got = clock.now();
    rate_.fill_(rates.big.learning_rate);
    float* const x = master_.data_ptr<float>();
    float* const v = momenta_.data_ptr<float>();
    const auto launch = [&](auto args, const SgdStep& step) {
      args.learning_rate = rate_.data_ptr<float>();
      args.refused = reinterpret_cast<const std::uint32_t*>(refused_.data_ptr<std::int32_t>());
      args.momentum = step.momentum;
      args.weight_decay = step.weight_decay;
      launched(launch_sgd(args, current_stream()));
      // Here too, in case that what follows throws: this one writes.
      written_.record();
    };
    const WorkingSet::Flat& g = set_.flat_gradients();
    const WorkingSet::Flat& w = set_.working();
    if (set_.is_bf16()) {
      launch(sgd_args<Bf16>(x, g.big, v, w.big), rates.big);
    } else {
      launch(sgd_args<float>(x, g.big, v, w.big), rates.big);
    }
    launch(sgd_args<float>(x + split_, g.small, v + split_, w.small), rates.small);
    // The forward pass does not read running statistics, so a batch moves the master's directly.
    master_.narrow(0, signed_of(model_.layout.size()), 2 * model_.bn_channels)
        .lerp_(set_.statistics(), kNormMomentum);
    ++batches_tracked_;
    written_.record();
  });
  return {seconds(got - asked), seconds(clock.now() - got)};
}

void DeviceArena::adopt(const Replica& replica) {
  lease_.with_master([&](const gossip::MasterView&) { load(replica, {}); });
}

Replica DeviceArena::snapshot() {
  const c10::DeviceGuard guard(device_);
  Replica replica;
  lease_.with_master([&](const gossip::MasterView&) {
    written_.synchronize();
    const at::Tensor host = master_.to(at::kCPU);
    const std::span<const float> values = floats_of(host);
    const std::size_t size = model_.layout.size();
    const std::size_t channels = model_.layout.bn_channels();
    const auto take = [&](std::size_t begin, std::size_t count, std::vector<float>& to) {
      to.assign(values.begin() + signed_of(begin), values.begin() + signed_of(begin + count));
    };
    take(0, size, replica.parameters);
    take(size, channels, replica.bn_mean);
    take(size + channels, channels, replica.bn_variance);
    replica.batches_tracked = batches_tracked_;
  });
  return replica;
}

std::vector<float> DeviceArena::momenta() const {
  const at::Tensor host = momenta_.to(at::kCPU);
  const std::span<const float> values = floats_of(host);
  return {values.begin(), values.end()};
}

void DeviceArena::with_device_master(const std::function<void(const MasterPlaces&)>& job) {
  const c10::DeviceGuard guard(device_);
  lease_.with_master([&](const gossip::MasterView&) {
    float* const x = master_.data_ptr<float>();
    float* const mean = x + model_.layout.size();
    job({x, mean, mean + model_.layout.bn_channels(), written_.event()});
  });
}

void DeviceArena::give_back_idle() {
  const c10::DeviceGuard guard(device_);
  const MutexLock lock(memory_mutex());
  try {
    c10::cuda::CUDACachingAllocator::emptyCache();
  } catch (const std::exception&) {
    // There is as little room as before, and whoever asked is told so.
  }
}

void DeviceArena::HostMaster::with_master(const std::function<void(gossip::MasterView)>& job) {
  arena_.with_device_master([&](const MasterPlaces&) {
    arena_.written_.synchronize();
    if (!staging_.defined()) {
      const MutexLock lock(memory_mutex());
      staging_ =
          at::empty(arena_.master_.sizes(), at::TensorOptions(at::kFloat).pinned_memory(true));
    }
    staging_.copy_(arena_.master_);
    const std::span<float> values = floats_of(staging_);
    const std::size_t size = arena_.model_.layout.size();
    const std::size_t channels = arena_.model_.layout.bn_channels();
    job({values.first(size), values.subspan(size, channels),
         values.subspan(size + channels, channels)});
    arena_.master_.copy_(staging_);
  });
}

}  // namespace starling::training::cuda
