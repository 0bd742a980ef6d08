// Batch normalisation of a GPU, run here crew by crew, against the CPU's.
#include "training/cpu/norm.h"

#include "node/base/random.h"
#include "tests/training/cuda/aligned.h"
#include "tests/training/cuda/crews.h"
#include "training/cuda/norm_passes.h"
#include "training/models/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

using namespace starling;
using namespace starling::training;
using cuda::apart;

namespace {

// The values of one layer, before and behind.
template <class T>
struct Layer {
  Layer(std::size_t rows_of, std::size_t channels_of) : rows(rows_of), channels(channels_of) {
    Rng rng(5);
    const auto fill = [&](cuda::AlignedVector<T>& values, double spread, double mean) {
      values.resize(rows * channels);
      for (T& value : values)
        cuda::narrow(static_cast<float>((rng.unit() - 0.5) * spread + mean), value);
    };
    fill(x, 4, 3);
    fill(residual, 2, 0);
    fill(g, 2, 0);
    fill(more, 2, 0);
    y.resize(x.size());
    dx.resize(x.size());
    for (std::vector<float>* line : {&weight, &bias, &weight_gradient, &bias_gradient})
      line->resize(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      weight[c] = static_cast<float>(0.5 + rng.unit());
      bias[c] = static_cast<float>(rng.unit() - 0.5);
    }
  }
  std::size_t rows;
  std::size_t channels;
  cuda::AlignedVector<T> x, residual, g, more, y, dx;
  std::vector<float> weight, bias, weight_gradient, bias_gradient;
};

// The CPU adds up to 32,768 / 16 values of one magnitude in fp32 before it folds them.
constexpr double kLineBound = 2'048.0 / (1 << 24);

enum class Kind { plain, relu, residual, normalised_residual };

template <class T>
NormState run_cpu(Layer<T>& layer, Kind kind) {
  Norm<T> norm(layer.channels, gossip::Isa::scalar);
  const NormWeights weights{layer.weight, layer.bias, layer.weight_gradient, layer.bias_gradient};
  const Rows all{0, layer.rows};
  norm.measure(layer.x.data(), all);
  norm.end_measure(layer.rows, weights);
  const bool added = kind == Kind::residual || kind == Kind::normalised_residual;
  norm.apply({.x = layer.x.data(),
              .residual = added ? layer.residual.data() : nullptr,
              .residual_norm = kind == Kind::normalised_residual ? &norm : nullptr,
              .y = layer.y.data()},
             all);
  const typename Norm<T>::Backward backward{.x = layer.x.data(),
                                            .g = layer.g.data(),
                                            .more = added ? layer.more.data() : nullptr,
                                            .y = added ? layer.y.data() : nullptr,
                                            .dx = layer.dx.data(),
                                            .relu = kind != Kind::plain};
  norm.sum_gradient(backward, all);
  norm.end_gradient_sums(layer.rows, weights);
  norm.gradient(backward, all);
  return norm.state();
}

// The same by the passes of a GPU, one crew after the other. It goes on with the CPU's statistics:
// a value that lies at zero but for rounding would pass the gate on one side only.
template <class T>
void run_gpu(Layer<T>& layer, Kind kind, cuda::ItemOrder order, const NormState& cpu) {
  const auto plan = cuda::NormPlan::make({layer.rows, layer.channels});
  std::vector<float> partials(plan.partials());
  std::vector<cuda::AlignedVector<float>> lines(8, cuda::AlignedVector<float>(layer.channels));
  const cuda::NormLines l{lines[0].data(), lines[1].data(), lines[2].data(), lines[3].data(),
                          lines[4].data(), lines[5].data(), lines[6].data(), lines[7].data()};
  const cuda::NormChannels<T> norm{layer.x.data(),
                                   {layer.weight.data(), layer.bias.data(),
                                    layer.weight_gradient.data(), layer.bias_gradient.data()},
                                   l,
                                   kNormEpsilon};
  cuda::SerialCrew crew(order);
  cuda::NormMemory memory;
  const auto chunks = [&](auto body) {
    for (std::uint32_t i = 0; i < plan.chunks; ++i) body(cuda::NormChunk{plan, i, partials.data()});
  };
  const auto channels = static_cast<std::uint32_t>(layer.channels);
  const std::size_t packs = layer.x.size() / cuda::kNormPack;
  const bool added = kind == Kind::residual || kind == Kind::normalised_residual;

  chunks(
      [&](const cuda::NormChunk& job) { cuda::measure_chunk(crew, memory, job, layer.x.data()); });
  cuda::FoldMemory fold;
  const auto folds = [&](auto body) {
    for (std::uint32_t c = 0; c < channels; c += cuda::kFoldChannels)
      body(cuda::NormFold{plan, partials.data(), c});
  };
  folds([&](const cuda::NormFold& job) { cuda::settle_channels(crew, fold, job, norm); });
  const std::vector<float>* const found[] = {&cpu.mean, &cpu.variance, &cpu.inverse, &cpu.scale,
                                             &cpu.shift};
  for (std::size_t i = 0; i < std::size(found); ++i) {
    CHECK(apart(*found[i], lines[i]) < kLineBound);
    std::ranges::copy(*found[i], lines[i].begin());
  }
  const bool line = kind == Kind::normalised_residual;
  const NormApply<T> apply{layer.x.data(),
                           added ? layer.residual.data() : nullptr,
                           layer.y.data(),
                           l.scale,
                           l.shift,
                           line ? l.scale : nullptr,
                           line ? l.shift : nullptr};
  std::vector<std::uint8_t> open(packs);
  for (std::size_t i = 0; i < packs; ++i)
    cuda::apply_pack(apply, added ? open.data() : nullptr, channels, i);

  NormGate<T> gate{};
  if (kind == Kind::relu) gate = {nullptr, l.scale, l.shift};
  const cuda::GradientSums<T> sums{layer.x.data(),
                                   layer.g.data(),
                                   added ? layer.more.data() : nullptr,
                                   l.mean,
                                   added ? open.data() : nullptr,
                                   gate};
  chunks([&](const cuda::NormChunk& job) {
    if (added) {
      cuda::gradient_chunk<true>(crew, memory, job, sums);
    } else {
      cuda::gradient_chunk<false>(crew, memory, job, sums);
    }
  });
  folds([&](const cuda::NormFold& job) {
    cuda::settle_gradients(crew, fold, job, norm.learned, norm.lines);
  });
  const NormGradient<T> gradient{
      layer.x.data(), layer.g.data(), layer.dx.data(), l.a, l.b, l.c, gate};
  for (std::size_t i = 0; i < packs; ++i) cuda::gradient_pack(gradient, channels, i);
}

template <class T>
void compare(std::size_t rows, std::size_t channels, double value_bound) {
  for (const Kind kind : {Kind::plain, Kind::relu, Kind::residual, Kind::normalised_residual}) {
    CAPTURE(static_cast<int>(kind));
    CAPTURE(channels);
    Layer<T> cpu(rows, channels);
    const NormState found = run_cpu(cpu, kind);
    for (const auto order : {cuda::ItemOrder::rising, cuda::ItemOrder::falling}) {
      Layer<T> gpu(rows, channels);
      run_gpu(gpu, kind, order, found);
      // One rounding an operation, in the same order: equal.
      CHECK(apart(cpu.y, gpu.y) == 0);
      CHECK(apart(cpu.g, gpu.g) == 0);
      CHECK(apart(cpu.dx, gpu.dx) < value_bound);
      CHECK(apart(cpu.weight_gradient, gpu.weight_gradient) < kLineBound);
      CHECK(apart(cpu.bias_gradient, gpu.bias_gradient) < kLineBound);
    }
  }
}

}  // namespace

TEST_SUITE("training/cuda/norm") {
  TEST_CASE("normalisation of a GPU, forward and backward, differs from the CPU's by rounding") {
    compare<float>(1'000, 64, kLineBound);
    compare<float>(37, 512, kLineBound);
    compare<float>(5, 2'048, kLineBound);
    compare<float>(20'000, 16, kLineBound);
    // One step of bf16: 2^-8 of the largest value.
    compare<Bf16>(1'000, 64, 1.0 / 256);
    compare<Bf16>(200, 48, 1.0 / 256);
  }

  TEST_CASE("a plan covers every row once and depends on the shape alone") {
    for (const std::size_t channels : {16U, 48U, 64U, 256U, 2'048U}) {
      for (const std::size_t rows : {1U, 7U, 49U * 8, 112U * 112 * 16}) {
        CAPTURE(channels);
        CAPTURE(rows);
        const auto plan = cuda::NormPlan::make({rows, channels});
        CHECK(plan.chunks >= 1);
        CHECK(plan.chunks <= cuda::kMostChunks);
        CHECK(plan.groups * plan.row_lanes <= cuda::kNormThreads);
        std::vector<bool> seen(std::size_t{plan.tiles} * plan.row_lanes);
        for (std::uint32_t chunk = 0; chunk < plan.chunks; ++chunk) {
          for (std::uint32_t row_lane = 0; row_lane < plan.row_lanes; ++row_lane) {
            std::size_t row = plan.first_row(chunk, row_lane * plan.groups);
            for (std::uint32_t turn = 0; turn < plan.tiles_of(chunk); ++turn) {
              REQUIRE(row < seen.size());
              REQUIRE_FALSE(seen[row]);
              seen[row] = true;
              row -= plan.rows_between();
            }
          }
        }
        CHECK(std::ranges::count(seen, true) == static_cast<std::ptrdiff_t>(seen.size()));
        CHECK(seen.size() >= rows);
        CHECK(seen.size() - rows < plan.row_lanes);
      }
    }
  }
}
