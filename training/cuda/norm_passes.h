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
// Chunks that rows are cut into at most: three crews on each unit of the largest GPUs, all at once.
inline constexpr std::size_t kMostChunks = 396;

// Which rows a crew sums: `lanes` threads, each with its group of channels, `row_lanes` rows at a
// time, which are a tile. Tiles are dealt to the chunks in turn, from the last one on: together the
// crews walk backwards, because of what a convolution has just written the end is still in the
// cache, and leave the beginning there for the pass behind, which walks forwards.
struct NormPlan {
  std::size_t rows = 0;
  std::uint32_t channels = 0;  // a multiple of 16, at most kMostChannels
  std::uint32_t groups = 0;
  std::uint32_t row_lanes = 0;
  std::uint32_t tiles = 0;
  std::uint32_t chunks = 0;

  STARLING_BOTH static NormPlan make(const NormShape& shape) {
    NormPlan plan;
    plan.rows = shape.rows;
    plan.channels = static_cast<std::uint32_t>(shape.channels);
    plan.groups = plan.channels / kNormPack;
    plan.row_lanes = kNormThreads / plan.groups;
    plan.tiles = static_cast<std::uint32_t>((plan.rows + plan.row_lanes - 1) / plan.row_lanes);
    // Four tiles a chunk at least, so that the fold is not longer than the walk.
    const std::uint32_t chunks = (plan.tiles + 3) / 4;
    plan.chunks = chunks < kMostChunks ? chunks : static_cast<std::uint32_t>(kMostChunks);
    return plan;
  }
  STARLING_BOTH std::uint32_t tiles_of(std::uint32_t chunk) const {
    return (tiles - chunk + chunks - 1) / chunks;
  }
  // Of a lane, in the first tile of a chunk; may lie behind the last row. The chunk's next tiles
  // are so many rows before it.
  STARLING_BOTH std::size_t first_row(std::uint32_t chunk, std::uint32_t lane) const {
    return std::size_t{tiles - 1 - chunk} * row_lanes + lane / groups;
  }
  STARLING_BOTH std::size_t rows_between() const { return std::size_t{chunks} * row_lanes; }
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
STARLING_DEVICE NormValues<T> load_stored(const T* values, std::size_t at) {
  return *reinterpret_cast<const NormValues<T>*>(values + at);
}
template <class T>
STARLING_DEVICE NormValues<float> wide(const NormValues<T>& stored) {
  NormValues<float> values;
  for (std::uint32_t k = 0; k < kNormPack; ++k) values.at[k] = widened(stored.at[k]);
  return values;
}
template <class T>
STARLING_DEVICE NormValues<T> rounded(const NormValues<float>& values) {
  NormValues<T> stored;
  for (std::uint32_t k = 0; k < kNormPack; ++k) narrow(values.at[k], stored.at[k]);
  return stored;
}
template <class T>
STARLING_DEVICE NormValues<float> load_pack(const T* values, std::size_t at) {
  return wide(load_stored(values, at));
}
template <class T>
STARLING_DEVICE void store_pack(T* values, std::size_t at, const NormValues<T>& stored) {
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

// The sums of a chunk of what a visitor adds; prepare(c) makes the visitor for the channels from c
// on: load(at) reads the values of a row, add(loaded, at, first, second) adds to both sums; kPairs:
// whether two rows at a time fit in registers.
template <class Crew, class Prepare>
STARLING_DEVICE void sum_chunk(Crew& crew, NormMemory& memory, const NormChunk& job,
                               Prepare prepare) {
  const NormPlan& plan = job.plan;
  crew.each(plan.groups * plan.row_lanes, [&](std::uint32_t lane) {
    const std::uint32_t c = lane % plan.groups * kNormPack;
    NormValues<float> first{};
    NormValues<float> second{};
    const auto visitor = prepare(c);
    const std::size_t stride = plan.rows_between() * plan.channels;
    std::uint32_t turns = plan.tiles_of(job.chunk);
    std::size_t row = plan.first_row(job.chunk, lane);
    if (row >= plan.rows) {  // the last rows may be fewer than a tile
      row -= plan.rows_between();
      --turns;
    }
    std::size_t at = row * plan.channels + c;
    if constexpr (decltype(visitor)::kPairs) {
      // Two rows are on their way before the first is waited for; more do not fit in registers.
      STARLING_NO_UNROLL
      for (; turns >= 2; turns -= 2) {
        const auto here = visitor.load(at);
        const auto next = visitor.load(at - stride);
        visitor.add(here, at, first, second);
        visitor.add(next, at - stride, first, second);
        at -= 2 * stride;
      }
    }
    STARLING_NO_UNROLL
    for (; turns != 0; --turns) {
      visitor.add(visitor.load(at), at, first, second);
      at -= stride;
    }
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

// Sum of x - pivot and of its square.
template <class T>
struct MeasureVisitor {
  static constexpr bool kPairs = true;
  const T* x;
  NormValues<float> pivot;

  STARLING_DEVICE NormValues<T> load(std::size_t at) const { return load_stored(x, at); }
  STARLING_DEVICE void add(const NormValues<T>& stored, std::size_t /*at*/, NormValues<float>& sum,
                           NormValues<float>& squares) const {
    const NormValues<float> value = wide(stored);
    for (std::uint32_t k = 0; k < kNormPack; ++k) {
      const float d = value.at[k] - pivot.at[k];
      sum.at[k] += d;
      squares.at[k] += d * d;
    }
  }
};
// The pivot is the first row.
template <class T, class Crew>
STARLING_DEVICE void measure_chunk(Crew& crew, NormMemory& memory, const NormChunk& job,
                                   const T* x) {
  sum_chunk(crew, memory, job,
            [x](std::uint32_t c) { return MeasureVisitor<T>{x, load_pack(x, c)}; });
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

  // Lines that lie behind each other in this order, `apart` floats from one to the next.
  static NormLines at(float* first, std::size_t apart) {
    const auto line = [&](std::size_t number) { return first + number * apart; };
    return {line(0), line(1), line(2), line(3), line(4), line(5), line(6), line(7)};
  }
};
// The learned values, and where their gradients go.
struct NormLearned {
  const float* weight;
  const float* bias;
  float* weight_gradient;
  float* bias_gradient;
};

// Channels whose partial sums a crew folds, and how many ways it shares the chunks.
inline constexpr std::uint32_t kFoldChannels = 32;
inline constexpr std::uint32_t kFoldWays = 32;
inline constexpr std::uint32_t kFoldThreads = kFoldChannels * kFoldWays;

// What a crew shares while it folds: 16 KB.
struct FoldMemory {
  double first[kFoldWays][kFoldChannels];
  double second[kFoldWays][kFoldChannels];
};

// What a crew folds: the sums of all chunks, of up to kFoldChannels channels from `from` on.
struct NormFold {
  NormPlan plan;
  const float* partials;
  std::uint32_t from;
};

// settle(c, first, second) for each channel, with its sums over all chunks. Neighbouring threads
// read neighbouring channels.
template <class Crew, class Settle>
STARLING_DEVICE void fold(Crew& crew, FoldMemory& memory, const NormFold& job, Settle settle) {
  const auto& [plan, all_partials, from] = job;
  const std::uint32_t channels =
      plan.channels - from < kFoldChannels ? plan.channels - from : kFoldChannels;
  crew.each(kFoldThreads, [&](std::uint32_t i) {
    const std::uint32_t lane = i % kFoldChannels;
    if (lane >= channels) return;
    double first = 0;
    double second = 0;
    for (std::uint32_t chunk = i / kFoldChannels; chunk < plan.chunks; chunk += kFoldWays) {
      const float* const partials = all_partials + std::size_t{2} * plan.channels * chunk;
      first += static_cast<double>(partials[from + lane]);
      second += static_cast<double>(partials[plan.channels + from + lane]);
    }
    memory.first[i / kFoldChannels][lane] = first;
    memory.second[i / kFoldChannels][lane] = second;
  });
  crew.each(channels, [&](std::uint32_t lane) {
    double first = 0;
    double second = 0;
    for (std::uint32_t way = 0; way < kFoldWays; ++way) {
      first += memory.first[way][lane];
      second += memory.second[way][lane];
    }
    settle(from + lane, first, second);
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

// The statistics of the channels, from the sums of measure_chunk().
template <class T, class Crew>
STARLING_DEVICE void settle_channels(Crew& crew, FoldMemory& memory, const NormFold& job,
                                     const NormChannels<T>& norm) {
  const auto& [x, learned, lines, epsilon] = norm;
  fold(crew, memory, job, [&](std::uint32_t c, double sum, double squares) {
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

// y of pack number i: see NormApply; and, where `open` is not null, which values of it are above
// zero, a bit each: what the relu's gate needs of y later, for a sixteenth of the reading.
template <class T>
STARLING_DEVICE void apply_pack(const NormApply<T>& args, std::uint8_t* open,
                                std::uint32_t channels, std::size_t i) {
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
  const NormValues<T> stored = rounded<T>(y);
  store_pack(args.y, at, stored);
  if (open == nullptr) return;
  std::uint32_t bits = 0;
  for (std::uint32_t k = 0; k < kNormPack; ++k) bits |= widened(stored.at[k]) <= 0 ? 0U : 1U << k;
  open[i] = static_cast<std::uint8_t>(bits);
}

// The relu's gate by a line: the gradient passes where scale x + shift is above zero; without a
// line there is no relu.
struct LineGate {
  bool present;
  NormValues<float> scale;
  NormValues<float> shift;

  template <class T>
  STARLING_DEVICE LineGate(const NormGate<T>& gate, std::uint32_t c)
      : present(gate.scale != nullptr),
        scale(load_line(gate.scale, c)),
        shift(load_line(gate.shift, c)) {}

  STARLING_DEVICE void pass(NormValues<float>& g, const NormValues<float>& x) const {
    if (!present) return;
    for (std::uint32_t k = 0; k < kNormPack; ++k)
      g.at[k] = x.at[k] * scale.at[k] + shift.at[k] <= 0 ? 0.0F : g.at[k];
  }
};

STARLING_DEVICE inline void add_gradient(const NormValues<float>& g, const NormValues<float>& x,
                                         const NormValues<float>& mean, NormValues<float>& sum,
                                         NormValues<float>& with_x) {
  for (std::uint32_t k = 0; k < kNormPack; ++k) {
    sum.at[k] += g.at[k];
    with_x.at[k] += g.at[k] * (x.at[k] - mean.at[k]);
  }
}

// Visitors of gradient_chunk(): what NormGradientSums says, gate.y being replaced by bits. Two, so
// that neither holds the other's values in registers.
template <class T>
struct LineGradientVisitor {
  static constexpr bool kPairs = true;
  const T* x;
  const T* g;
  NormValues<float> mean;
  LineGate gate;

  struct Loaded {
    NormValues<T> x;
    NormValues<T> g;
  };
  STARLING_DEVICE Loaded load(std::size_t at) const {
    return {load_stored(x, at), load_stored(g, at)};
  }
  STARLING_DEVICE void add(const Loaded& loaded, std::size_t /*at*/, NormValues<float>& sum,
                           NormValues<float>& with_x) const {
    const NormValues<float> wide_x = wide(loaded.x);
    NormValues<float> wide_g = wide(loaded.g);
    gate.pass(wide_g, wide_x);
    add_gradient(wide_g, wide_x, mean, sum, with_x);
  }
};
template <class T>
struct OpenGradientVisitor {
  static constexpr bool kPairs = true;
  const T* x;
  T* g;           // becomes the gated (and summed) gradient
  const T* more;  // may be null
  const std::uint8_t* open;
  NormValues<float> mean;

  struct Loaded {
    NormValues<T> x;
    NormValues<T> g;
    NormValues<T> more;
    std::uint32_t open;
  };
  STARLING_DEVICE Loaded load(std::size_t at) const {
    Loaded loaded{load_stored(x, at), load_stored(g, at), {}, open[at / kNormPack]};
    if (more != nullptr) loaded.more = load_stored(more, at);
    return loaded;
  }
  STARLING_DEVICE void add(const Loaded& loaded, std::size_t at, NormValues<float>& sum,
                           NormValues<float>& with_x) const {
    NormValues<float> wide_g = wide(loaded.g);
    if (more != nullptr)
      for (std::uint32_t k = 0; k < kNormPack; ++k) wide_g.at[k] += widened(loaded.more.at[k]);
    for (std::uint32_t k = 0; k < kNormPack; ++k)
      wide_g.at[k] = (loaded.open >> k & 1U) == 0 ? 0.0F : wide_g.at[k];
    const NormValues<T> stored = rounded<T>(wide_g);
    store_pack(g, at, stored);
    // What the next pass will read, so that both see the same gradient.
    add_gradient(wide(stored), wide(loaded.x), mean, sum, with_x);
  }
};

// What gradient_chunk() works on.
template <class T>
struct GradientSums {
  const T* x;
  T* g;           // with `open`: becomes the gated (and summed) gradient
  const T* more;  // with `open`: a second gradient to be added to g; may be null
  const float* mean;
  const std::uint8_t* open;  // bits of apply_pack(); null: the gate is a line
  NormGate<T> line;          // its y is not looked at
};

// sum g and sum g (x - mean); kOpen: args.open is not null.
template <bool kOpen, class T, class Crew>
STARLING_DEVICE void gradient_chunk(Crew& crew, NormMemory& memory, const NormChunk& job,
                                    const GradientSums<T>& args) {
  sum_chunk(crew, memory, job, [&args](std::uint32_t c) {
    const NormValues<float> mean = load_line(args.mean, c);
    if constexpr (kOpen) {
      return OpenGradientVisitor<T>{args.x, args.g, args.more, args.open, mean};
    } else {
      return LineGradientVisitor<T>{args.x, args.g, mean, LineGate(args.line, c)};
    }
  });
}

// The gradients of the channels' learned values, and their lines, from the sums of
// gradient_chunk().
template <class Crew>
STARLING_DEVICE void settle_gradients(Crew& crew, FoldMemory& memory, const NormFold& job,
                                      const NormLearned& learned, const NormLines& lines) {
  fold(crew, memory, job, [&](std::uint32_t c, double sum, double with_x) {
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
  LineGate(args.gate, c).pass(g, x);
  const NormValues<float> a = load_line(args.a, c);
  const NormValues<float> b = load_line(args.b, c);
  const NormValues<float> constant = load_line(args.c, c);
  for (std::uint32_t k = 0; k < kNormPack; ++k)
    g.at[k] = g.at[k] * a.at[k] + (x.at[k] * b.at[k] + constant.at[k]);
  store_pack(args.dx, at, rounded<T>(g));
}

}  // namespace starling::training::cuda
