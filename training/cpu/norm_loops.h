// The loops of norm_kernels.h over sixteen lanes, written once; norm_<isa>.cc say what the lanes
// are. Included by those files only: `Lanes` is a type of that file, so no two files share an
// instantiation.
#pragma once

#include "training/cpu/norm_kernels.h"

#include <cstddef>

namespace starling::training {

template <class Lanes, class T>
struct NormLoops {
  using F = typename Lanes::F;  // 16 floats
  static constexpr std::size_t kLanes = 16;

  // Rows whose values fit the first two levels of the cache together, so that a sweep over the next
  // channels finds the lines that the last one fetched. It depends on nothing but the channels, for
  // it decides where fp32 sums are folded into doubles.
  static std::size_t tile_rows(std::size_t channels) {
    const std::size_t rows = 32'768 / channels;
    return rows < 8 ? 8 : rows;
  }

  // Calls sweep(first row, end row, channel, width) for all tiles; width is a constant that says
  // how many times 16 channels are handled together.
  template <class Sweep>
  static void for_tiles(NormShape shape, Sweep sweep) {
    const std::size_t tile = tile_rows(shape.channels);
    for (std::size_t begin = 0; begin < shape.rows; begin += tile) {
      const std::size_t end = begin + tile < shape.rows ? begin + tile : shape.rows;
      std::size_t c = 0;
      for (; c + Lanes::kWide * kLanes <= shape.channels; c += Lanes::kWide * kLanes) {
        sweep(begin, end, c, Width<Lanes::kWide>{});
      }
      for (; c < shape.channels; c += kLanes) sweep(begin, end, c, Width<1>{});
    }
  }
  template <std::size_t N>
  struct Width {
    static constexpr std::size_t kCount = N;
  };

  // Adds two sums a channel of what body(index, lane group, first, second) adds to its
  // accumulators.
  template <class Prepare>
  static void two_sums(NormShape shape, double* sums, Prepare prepare) {
    for_tiles(shape, [&](std::size_t begin, std::size_t end, std::size_t c, auto width) {
      constexpr std::size_t kCount = decltype(width)::kCount;
      F first[kCount];
      F second[kCount];
      for (std::size_t k = 0; k < kCount; ++k) first[k] = second[k] = Lanes::set(0);
      const auto body = prepare(c, width);
      for (std::size_t row = begin; row < end; ++row) {
        for (std::size_t k = 0; k < kCount; ++k) {
          body(row * shape.channels + c + k * kLanes, k, first[k], second[k]);
        }
      }
      for (std::size_t k = 0; k < kCount; ++k) {
        fold(first[k], sums + c + k * kLanes);
        fold(second[k], sums + shape.channels + c + k * kLanes);
      }
    });
  }

  static void fold(F partial, double* sums) {
    float lanes[kLanes];
    Lanes::store(lanes, partial);
    for (std::size_t i = 0; i < kLanes; ++i) sums[i] += static_cast<double>(lanes[i]);
  }

  // A row of per-channel values for the channels of one sweep.
  template <std::size_t N>
  struct Line {
    F at[N];
    Line(const float* values, std::size_t c) {
      for (std::size_t k = 0; k < N; ++k) {
        at[k] = values == nullptr ? Lanes::set(0) : Lanes::load(values + c + k * kLanes);
      }
    }
  };

  static void sums(const T* x, NormShape shape, const float* pivot, double* out) {
    two_sums(shape, out, [x, pivot](std::size_t c, auto width) {
      const Line<decltype(width)::kCount> from(pivot, c);
      return [x, from](std::size_t at, std::size_t k, F& sum, F& squares) {
        const F d = Lanes::sub(Lanes::load(x + at), from.at[k]);
        sum = Lanes::add(sum, d);
        squares = Lanes::add(squares, Lanes::mul(d, d));
      };
    });
  }

  enum class Beside { nothing, plain, line };

  template <Beside kBeside>
  static void apply_as(const NormApply<T>& args, NormShape shape) {
    for_tiles(shape, [&](std::size_t begin, std::size_t end, std::size_t c, auto width) {
      constexpr std::size_t kCount = decltype(width)::kCount;
      const Line<kCount> scale(args.scale, c);
      const Line<kCount> shift(args.shift, c);
      const Line<kCount> residual_scale(args.residual_scale, c);
      const Line<kCount> residual_shift(args.residual_shift, c);
      for (std::size_t row = begin; row < end; ++row) {
        for (std::size_t k = 0; k < kCount; ++k) {
          const std::size_t at = row * shape.channels + c + k * kLanes;
          F v = line(Lanes::load(args.x + at), scale.at[k], shift.at[k]);
          if constexpr (kBeside == Beside::plain) {
            v = Lanes::add(v, Lanes::load(args.residual + at));
          }
          if constexpr (kBeside == Beside::line) {
            const F residual = Lanes::load(args.residual + at);
            v = Lanes::add(v, line(residual, residual_scale.at[k], residual_shift.at[k]));
          }
          Lanes::store(args.y + at, Lanes::keep(v, v));
        }
      }
    });
  }

  static F line(F x, F scale, F shift) { return Lanes::add(Lanes::mul(x, scale), shift); }

  static void apply(const NormApply<T>& args, NormShape shape) {
    if (args.residual == nullptr) {
      apply_as<Beside::nothing>(args, shape);
    } else if (args.residual_scale == nullptr) {
      apply_as<Beside::plain>(args, shape);
    } else {
      apply_as<Beside::line>(args, shape);
    }
  }

  enum class Gate { none, line, output };

  template <Gate kGate, bool kMore>
  static void gradient_sums_as(const NormGradientSums<T>& args, NormShape shape, double* out) {
    two_sums(shape, out, [&args](std::size_t c, auto width) {
      constexpr std::size_t kCount = decltype(width)::kCount;
      const Line<kCount> mean(args.mean, c);
      const Line<kCount> scale(args.gate.scale, c);
      const Line<kCount> shift(args.gate.shift, c);
      const T* x = args.x;
      const T* y = args.gate.y;
      const T* more = args.more;
      T* g = args.g;
      return [=](std::size_t at, std::size_t k, F& sum, F& with_x) {
        const F value = Lanes::load(x + at);
        F gradient = Lanes::load(g + at);
        if constexpr (kMore) gradient = Lanes::add(gradient, Lanes::load(more + at));
        if constexpr (kGate == Gate::line) {
          gradient = Lanes::keep(gradient, line(value, scale.at[k], shift.at[k]));
        }
        if constexpr (kGate == Gate::output) {
          gradient = Lanes::keep(gradient, Lanes::load(y + at));
          Lanes::store(g + at, gradient);
          // What the next pass will read, so that both see the same gradient.
          gradient = Lanes::load(g + at);
        }
        sum = Lanes::add(sum, gradient);
        with_x = Lanes::add(with_x, Lanes::mul(gradient, Lanes::sub(value, mean.at[k])));
      };
    });
  }

  static void gradient_sums(const NormGradientSums<T>& args, NormShape shape, double* out) {
    if (args.gate.y != nullptr) {
      args.more != nullptr ? gradient_sums_as<Gate::output, true>(args, shape, out)
                           : gradient_sums_as<Gate::output, false>(args, shape, out);
    } else if (args.gate.scale != nullptr) {
      gradient_sums_as<Gate::line, false>(args, shape, out);
    } else {
      gradient_sums_as<Gate::none, false>(args, shape, out);
    }
  }

  template <Gate kGate>
  static void gradient_as(const NormGradient<T>& args, NormShape shape) {
    for_tiles(shape, [&](std::size_t begin, std::size_t end, std::size_t c, auto width) {
      constexpr std::size_t kCount = decltype(width)::kCount;
      const Line<kCount> a(args.a, c);
      const Line<kCount> b(args.b, c);
      const Line<kCount> constant(args.c, c);
      const Line<kCount> scale(args.gate.scale, c);
      const Line<kCount> shift(args.gate.shift, c);
      for (std::size_t row = begin; row < end; ++row) {
        for (std::size_t k = 0; k < kCount; ++k) {
          const std::size_t at = row * shape.channels + c + k * kLanes;
          const F value = Lanes::load(args.x + at);
          F gradient = Lanes::load(args.g + at);
          if constexpr (kGate == Gate::line) {
            gradient = Lanes::keep(gradient, line(value, scale.at[k], shift.at[k]));
          }
          const F rest = line(value, b.at[k], constant.at[k]);
          Lanes::store(args.dx + at, Lanes::add(Lanes::mul(gradient, a.at[k]), rest));
        }
      }
    });
  }

  static void gradient(const NormGradient<T>& args, NormShape shape) {
    if (args.gate.scale != nullptr) {
      gradient_as<Gate::line>(args, shape);
    } else {
      gradient_as<Gate::none>(args, shape);
    }
  }

  static constexpr NormKernels<T> kTable{&sums, &apply, &gradient_sums, &gradient};
};

}  // namespace starling::training
