// Batch normalisation with relu and residual on a GPU: what one crew or one thread does.
//
// The twin of training/cpu/norm.h, with the same arguments and formulas: rows x channels values,
// channels innermost (NHWC). Sums are fp32 within a chunk of rows and doubles over the chunks, in
// an order that follows from the shape alone: a GPU gives the same bits every time, and they differ
// from the CPU's by rounding only.
#pragma once

#include "training/cpu/norm_kernels.h"
#include "training/cuda/crew.h"
#include "training/cuda/sgd.h"
#include "training/norm_formulas.h"

#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

// Channels that one thread handles at once, and threads of a crew.
inline constexpr std::uint32_t kNormPack = 8;
inline constexpr std::uint32_t kNormThreads = 256;
inline constexpr std::uint32_t kMostChannels = kNormPack * kNormThreads;
// Chunks that rows are cut into at most: enough for eight crews on each unit of the largest GPUs.
inline constexpr std::size_t kMostChunks = 1'056;

// How a crew walks over its chunk: `lanes` threads, each with its group of channels, `row_lanes`
// rows at a time.
struct NormPlan {
  std::size_t rows = 0;
  std::uint32_t channels = 0;  // a multiple of 16, at most kMostChannels
  std::uint32_t groups = 0;
  std::uint32_t row_lanes = 0;
  std::uint32_t chunks = 0;
  std::size_t chunk_rows = 0;

  STARLING_BOTH static NormPlan make(const NormShape& shape) {
    NormPlan plan;
    plan.rows = shape.rows;
    plan.channels = static_cast<std::uint32_t>(shape.channels);
    plan.groups = plan.channels / kNormPack;
    plan.row_lanes = kNormThreads / plan.groups;
    // Eight rows a lane at least, so that the fold is not longer than the walk.
    const std::size_t least = std::size_t{8} * plan.row_lanes;
    const std::size_t even = (plan.rows + kMostChunks - 1) / kMostChunks;
    plan.chunk_rows = even > least ? even : least;
    plan.chunks = static_cast<std::uint32_t>((plan.rows + plan.chunk_rows - 1) / plan.chunk_rows);
    return plan;
  }
  // Floats of the partial sums of all chunks.
  STARLING_BOTH std::size_t partials() const { return std::size_t{2} * channels * chunks; }
};

// What a crew shares while it sums: 16 KB.
struct NormMemory {
  float first[kNormThreads][kNormPack];
  float second[kNormThreads][kNormPack];
};

template <class T>
using NormValues = Pack<T, kNormPack>;

template <class T>
STARLING_DEVICE NormValues<float> load_pack(const T* values, std::size_t at) {
  const auto stored = *reinterpret_cast<const NormValues<T>*>(values + at);
  NormValues<float> wide;
  for (std::uint32_t k = 0; k < kNormPack; ++k) wide.at[k] = widened(stored.at[k]);
  return wide;
}
template <class T>
STARLING_DEVICE void store_pack(T* values, std::size_t at, const NormValues<float>& wide) {
  NormValues<T> stored;
  for (std::uint32_t k = 0; k < kNormPack; ++k) narrow(wide.at[k], stored.at[k]);
  *reinterpret_cast<NormValues<T>*>(values + at) = stored;
}
// A line of values for each channel, from channel c on; null: zeros.
STARLING_DEVICE inline NormValues<float> load_line(const float* line, std::uint32_t c) {
  return line == nullptr ? NormValues<float>{} : load_pack(line, c);
}

// What a crew works on: chunk number `chunk`, whose sums go to partials[chunk][first, second][c].
struct NormChunk {
  NormPlan plan;
  std::uint32_t chunk;
  float* partials;
};

// The sums of a chunk of what visit(place, first, second) adds; prepare(c) makes the visit for the
// channels from c on.
template <class Crew, class Prepare>
STARLING_DEVICE void sum_chunk(Crew& crew, NormMemory& memory, const NormChunk& job,
                               Prepare prepare) {
  const NormPlan& plan = job.plan;
  crew.each(plan.groups * plan.row_lanes, [&](std::uint32_t lane) {
    const std::uint32_t c = lane % plan.groups * kNormPack;
    const std::size_t begin = job.chunk * plan.chunk_rows;
    const std::size_t end =
        begin + plan.chunk_rows < plan.rows ? begin + plan.chunk_rows : plan.rows;
    NormValues<float> first{};
    NormValues<float> second{};
    const auto visit = prepare(c);
    for (std::size_t row = begin + lane / plan.groups; row < end; row += plan.row_lanes)
      visit(row * plan.channels + c, first, second);
    for (std::uint32_t k = 0; k < kNormPack; ++k) {
      memory.first[lane][k] = first.at[k];
      memory.second[lane][k] = second.at[k];
    }
  });
  float* const out = job.partials + std::size_t{2} * plan.channels * job.chunk;
  crew.each(2 * plan.channels, [&](std::uint32_t i) {
    const std::uint32_t c = i % plan.channels;
    const auto& lanes = i < plan.channels ? memory.first : memory.second;
    float sum = 0;
    for (std::uint32_t row = 0; row < plan.row_lanes; ++row)
      sum += lanes[row * plan.groups + c / kNormPack][c % kNormPack];
    out[i] = sum;
  });
}

// Sum of x - pivot and of its square, the pivot being the first row.
template <class T, class Crew>
STARLING_DEVICE void measure_chunk(Crew& crew, NormMemory& memory, const NormChunk& job,
                                   const T* x) {
  sum_chunk(crew, memory, job, [x](std::uint32_t c) {
    return [x, pivot = load_pack(x, c)](std::size_t at, NormValues<float>& sum,
                                        NormValues<float>& squares) {
      const NormValues<float> value = load_pack(x, at);
      for (std::uint32_t k = 0; k < kNormPack; ++k) {
        const float d = value.at[k] - pivot.at[k];
        sum.at[k] += d;
        squares.at[k] += d * d;
      }
    };
  });
}

// The values of each channel that the passes hand on, all of length `channels`.
struct NormLines {
  float* mean;
  float* variance;  // unbiased
  float* inverse;
  float* scale;
  float* shift;
  float* a;  // dx = a g + b x + c
  float* b;
  float* c;
};
// The learned values, and where their gradients go.
struct NormLearned {
  const float* weight;
  const float* bias;
  float* weight_gradient;
  float* bias_gradient;
};

// The sum over all chunks of one channel's first (which 0) or second partial.
template <class Crew>
STARLING_DEVICE double fold(Crew& crew, const NormPlan& plan, const float* partials,
                            std::uint32_t at) {
  return crew.template sum<double>(plan.chunks, [&](std::uint32_t chunk) {
    return static_cast<double>(partials[std::size_t{2} * plan.channels * chunk + at]);
  });
}

// One normalisation: its learned values, its lines, and x where the pivot is taken from.
template <class T>
struct NormChannels {
  const T* x;
  NormLearned learned;
  NormLines lines;
  double epsilon;
};

// The statistics of channel c, from the sums of measure_chunk().
template <class T, class Crew>
STARLING_DEVICE void settle_channel(Crew& crew, const NormChunk& job, const NormChannels<T>& norm,
                                    std::uint32_t c) {
  const auto& [x, learned, lines, epsilon] = norm;
  const double sum = fold(crew, job.plan, job.partials, c);
  const double squares = fold(crew, job.plan, job.partials, job.plan.channels + c);
  crew.once([&] {
    const ChannelFound found = found_in(
        {static_cast<double>(job.plan.rows), static_cast<double>(widened(x[c])), sum, squares},
        {static_cast<double>(learned.weight[c]), static_cast<double>(learned.bias[c])}, epsilon);
    lines.mean[c] = found.mean;
    lines.variance[c] = found.variance;
    lines.inverse[c] = found.inverse;
    lines.scale[c] = found.scale;
    lines.shift[c] = found.shift;
  });
}

// y of pack number i: see NormApply.
template <class T>
STARLING_DEVICE void apply_pack(const NormApply<T>& args, std::uint32_t channels, std::size_t i) {
  const std::size_t at = i * kNormPack;
  const auto c = static_cast<std::uint32_t>(at % channels);
  const NormValues<float> scale = load_line(args.scale, c);
  const NormValues<float> shift = load_line(args.shift, c);
  NormValues<float> y = load_pack(args.x, at);
  for (std::uint32_t k = 0; k < kNormPack; ++k) y.at[k] = y.at[k] * scale.at[k] + shift.at[k];
  if (args.residual != nullptr) {
    const NormValues<float> beside = load_pack(args.residual, at);
    const NormValues<float> beside_scale = load_line(args.residual_scale, c);
    const NormValues<float> beside_shift = load_line(args.residual_shift, c);
    for (std::uint32_t k = 0; k < kNormPack; ++k)
      y.at[k] += args.residual_scale == nullptr
                     ? beside.at[k]
                     : beside.at[k] * beside_scale.at[k] + beside_shift.at[k];
  }
  for (std::uint32_t k = 0; k < kNormPack; ++k) y.at[k] = y.at[k] <= 0 ? 0.0F : y.at[k];
  store_pack(args.y, at, y);
}

// The gradient behind the gate; `more` is added first.
template <class T>
struct GatedGradient {
  NormGate<T> gate;
  NormValues<float> scale;
  NormValues<float> shift;

  STARLING_DEVICE GatedGradient(const NormGate<T>& the_gate, std::uint32_t c)
      : gate(the_gate), scale(load_line(gate.scale, c)), shift(load_line(gate.shift, c)) {}

  STARLING_DEVICE void pass(NormValues<float>& g, const NormValues<float>& x,
                            std::size_t at) const {
    if (gate.y != nullptr) {
      const NormValues<float> y = load_pack(gate.y, at);
      for (std::uint32_t k = 0; k < kNormPack; ++k) g.at[k] = y.at[k] <= 0 ? 0.0F : g.at[k];
    } else if (gate.scale != nullptr) {
      for (std::uint32_t k = 0; k < kNormPack; ++k)
        g.at[k] = x.at[k] * scale.at[k] + shift.at[k] <= 0 ? 0.0F : g.at[k];
    }
  }
};

// sum g and sum g (x - mean): see NormGradientSums.
template <class T, class Crew>
STARLING_DEVICE void gradient_chunk(Crew& crew, NormMemory& memory, const NormChunk& job,
                                    const NormGradientSums<T>& args) {
  sum_chunk(crew, memory, job, [&args](std::uint32_t c) {
    return [&args, mean = load_line(args.mean, c), gated = GatedGradient<T>(args.gate, c)](
               std::size_t at, NormValues<float>& sum, NormValues<float>& with_x) {
      const NormValues<float> x = load_pack(args.x, at);
      NormValues<float> g = load_pack(args.g, at);
      if (args.more != nullptr) {
        const NormValues<float> more = load_pack(args.more, at);
        for (std::uint32_t k = 0; k < kNormPack; ++k) g.at[k] += more.at[k];
      }
      gated.pass(g, x, at);
      if (args.gate.y != nullptr) {
        store_pack(args.g, at, g);
        // What the next pass will read, so that both see the same gradient.
        g = load_pack(args.g, at);
      }
      for (std::uint32_t k = 0; k < kNormPack; ++k) {
        sum.at[k] += g.at[k];
        with_x.at[k] += g.at[k] * (x.at[k] - mean.at[k]);
      }
    };
  });
}

// The gradients of channel c's learned values and its line, from the sums of gradient_chunk().
template <class Crew>
STARLING_DEVICE void settle_gradient(Crew& crew, const NormChunk& job, const NormLearned& learned,
                                     const NormLines& lines, std::uint32_t c) {
  const double sum = fold(crew, job.plan, job.partials, c);
  const double with_x = fold(crew, job.plan, job.partials, job.plan.channels + c);
  crew.once([&] {
    const ChannelGradient found = gradient_of(
        {static_cast<double>(job.plan.rows), sum, with_x}, static_cast<double>(learned.weight[c]),
        static_cast<double>(lines.mean[c]), static_cast<double>(lines.inverse[c]));
    learned.weight_gradient[c] = found.weight;
    learned.bias_gradient[c] = found.bias;
    lines.a[c] = found.a;
    lines.b[c] = found.b;
    lines.c[c] = found.c;
  });
}

// dx of pack number i: see NormGradient.
template <class T>
STARLING_DEVICE void gradient_pack(const NormGradient<T>& args, std::uint32_t channels,
                                   std::size_t i) {
  const std::size_t at = i * kNormPack;
  const auto c = static_cast<std::uint32_t>(at % channels);
  const NormValues<float> x = load_pack(args.x, at);
  NormValues<float> g = load_pack(args.g, at);
  GatedGradient<T>(args.gate, c).pass(g, x, at);
  const NormValues<float> a = load_line(args.a, c);
  const NormValues<float> b = load_line(args.b, c);
  const NormValues<float> constant = load_line(args.c, c);
  for (std::uint32_t k = 0; k < kNormPack; ++k)
    g.at[k] = g.at[k] * a.at[k] + (x.at[k] * b.at[k] + constant.at[k]);
  store_pack(args.dx, at, g);
}

}  // namespace starling::training::cuda
