// The max pool of a GPU on a CPU, crew by crew: for what compares it with a CPU's code, and for
// what compares a GPU with it.
#pragma once

#include "node/base/random.h"
#include "tests/training/cuda/aligned.h"
#include "tests/training/cuda/crews.h"
#include "training/cpu/norm.h"
#include "training/cuda/pool_passes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace starling::training::cuda {

// A stem's normalisation and pool: values, and room for what is made of them. All values are small
// multiples of 1/8, so that many are equal, and sums of four gradients are exact in bf16.
template <class T>
struct PoolLayerData {
  PoolLayerData(const PoolShape& the_shape, std::uint64_t seed)
      : shape(the_shape),
        x(shape.rows() * shape.channels),
        dx(x.size()),
        y(shape.pooled_rows() * shape.channels),
        g(y.size()),
        places(y.size()),
        lines(8, AlignedVector<float>(shape.channels)),
        gradients(2, AlignedVector<float>(shape.channels)) {
    Rng rng(seed);
    const auto eighths = [&rng](std::uint64_t most) {
      const std::uint64_t drawn = rng.below(2 * most + 1);
      return (static_cast<float>(drawn) - static_cast<float>(most)) / 8;
    };
    for (T& value : x) narrow(eighths(16), value);
    for (T& value : g) narrow(eighths(7), value);
    for (std::uint32_t c = 0; c < shape.channels; ++c) {
      weight.push_back(c % 3 == 0 ? -0.75F : 0.5F + eighths(2));
      bias.push_back(eighths(4));
    }
  }
  // What launch_norm_measure() would leave: found by the CPU's code.
  Norm<T> measure() {
    Norm<T> norm(shape.channels, gossip::Isa::scalar);
    norm.measure(x.data(), {0, shape.rows()});
    norm.end_measure(shape.rows(), {weight, bias, gradients[0], gradients[1]});
    const NormState& found = norm.state();
    const std::vector<float>* const state[] = {&found.mean, &found.variance, &found.inverse,
                                               &found.scale, &found.shift};
    for (std::size_t i = 0; i < std::size(state); ++i)
      std::ranges::copy(*state[i], lines[i].begin());
    return norm;
  }

  PoolShape shape;
  AlignedVector<T> x, dx, y, g;
  AlignedVector<std::uint8_t> places;
  std::vector<float> weight, bias;
  std::vector<AlignedVector<float>> lines;      // in the order of NormLines
  std::vector<AlignedVector<float>> gradients;  // of weight and bias
};

template <class T>
void pool_as_gpu(PoolLayerData<T>& data) {
  const PoolApply<T> args{data.x.data(), data.lines[3].data(), data.lines[4].data(), data.y.data(),
                          data.places.data()};
  const auto packs = static_cast<std::uint32_t>(data.shape.pooled_packs());
  for (std::uint32_t i = 0; i < packs; ++i) pool_pack(args, data.shape, i);
}

// From g and the places to dx and the gradients of what is learned.
template <class T>
void pool_gradient_as_gpu(PoolLayerData<T>& data, ItemOrder order) {
  auto& l = data.lines;
  const NormLines lines{l[0].data(), l[1].data(), l[2].data(), l[3].data(),
                        l[4].data(), l[5].data(), l[6].data(), l[7].data()};
  const NormLearned learned{data.weight.data(), data.bias.data(), data.gradients[0].data(),
                            data.gradients[1].data()};
  const PoolGradientOf<T> of{data.x.data(), data.g.data(), data.places.data()};
  NormPlan plan = NormPlan::make({data.shape.pooled_rows(), data.shape.channels});
  std::vector<float> partials(plan.partials());
  SerialCrew crew(order);
  NormMemory memory;
  const PoolGradientSums<T> sums{of, lines.mean};
  for (std::uint32_t i = 0; i < plan.chunks; ++i)
    pool_gradient_chunk(crew, memory, {plan, i, partials.data()}, data.shape, sums);
  plan.rows = data.shape.rows();
  FoldMemory fold_memory;
  for (std::uint32_t c = 0; c < data.shape.channels; c += kFoldChannels)
    settle_gradients(crew, fold_memory, {plan, partials.data(), c}, learned, lines);
  const PoolGradient<T> gradient{of, data.dx.data(), lines.a, lines.b, lines.c};
  const auto packs = static_cast<std::uint32_t>(data.shape.pooled_packs());
  for (std::uint32_t i = 0; i < packs; ++i) pool_gradient_pack(gradient, data.shape, i);
}

}  // namespace starling::training::cuda
