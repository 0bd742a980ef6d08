// Winograd's loops of conv_kernels.h over sixteen lanes; see conv_loops.h.
#pragma once

#include "training/cpu/conv_kernels.h"

#include <cstddef>

namespace starling::training {

template <class Lanes>
struct WinogradLoops {
  using T = typename Lanes::Element;
  using F = typename Lanes::F;  // 16 floats
  using P = typename Lanes::P;  // what is multiplied: 16 x depth
  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kDepth = kDepthOf<T>;

  // B' d of four values, for d = a column or a row of a tile.
  static void input_line(F& a, F& b, F& c, F& d) {
    const F second = Lanes::add(b, c);
    const F third = Lanes::sub(c, b);
    a = Lanes::sub(a, c);
    d = Lanes::sub(b, d);
    b = second;
    c = third;
  }
  // B' d B.
  struct Input {
    static constexpr std::size_t kPixels = 16;
    static void transform(TilePixels<T> pixels, std::size_t channel, F* v) {
      for (std::size_t i = 0; i < kTilePoints; ++i) v[i] = Lanes::load(pixels[i] + channel);
      for (std::size_t i = 0; i < 4; ++i) input_line(v[i], v[4 + i], v[8 + i], v[12 + i]);
      for (std::size_t i = 0; i < kTilePoints; i += 4)
        input_line(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
  };
  // A d of two values: four.
  static void gradient_line(F a, F b, F* to, std::size_t stride) {
    to[0] = a;
    to[stride] = Lanes::add(a, b);
    to[2 * stride] = Lanes::sub(a, b);
    to[3 * stride] = Lanes::sub(Lanes::zero(), b);
  }
  // A d A'.
  struct Gradient {
    static constexpr std::size_t kPixels = 4;
    static void transform(TilePixels<T> pixels, std::size_t channel, F* v) {
      F at[4];
      for (std::size_t i = 0; i < 4; ++i) at[i] = Lanes::load(pixels[i] + channel);
      F columns[8];
      gradient_line(at[0], at[2], columns, 2);
      gradient_line(at[1], at[3], columns + 1, 2);
      for (std::size_t i = 0; i < 4; ++i) {
        gradient_line(columns[2 * i], columns[2 * i + 1], v + 4 * i, 1);
      }
    }
  };

  static void input_tile(TilePixels<T> pixels, std::size_t channels, T* to,
                         std::size_t point_stride) {
    for (std::size_t c = 0; c < channels; c += kLanes) {
      F v[kTilePoints];
      Input::transform(pixels, c, v);
      for (std::size_t i = 0; i < kTilePoints; ++i) Lanes::store(to + i * point_stride + c, v[i]);
    }
  }

  template <class Kind>
  static void group_of(TilePixels<T> pixels, std::size_t channels, const TileGroup<T>& to) {
    for (std::size_t c = 0; c < channels; c += kLanes) {
      F v[kDepth][kTilePoints];
      for (std::size_t d = 0; d < kDepth; ++d) {
        Kind::transform(pixels + d * Kind::kPixels, c, v[d]);
      }
      T* const at = to.to + c / to.width * to.block_stride + c % to.width * kDepth;
      for (std::size_t i = 0; i < kTilePoints; ++i) {
        Lanes::store(at + i * to.point_stride, Lanes::beside(v[0][i], v[kDepth - 1][i]));
      }
    }
  }

  // G g of three values: four.
  static void weight_line(F a, F b, F c, F* to, std::size_t stride) {
    const F half = Lanes::set(0.5F);
    const F ends = Lanes::add(a, c);
    to[0] = a;
    to[stride] = Lanes::mul(half, Lanes::add(ends, b));
    to[2 * stride] = Lanes::mul(half, Lanes::sub(ends, b));
    to[3 * stride] = c;
  }
  // G g G' of one output and 16 inputs; taps are `inputs` apart.
  static void weights_of(const T* weights, std::size_t inputs, F* u) {
    F rows[12];
    for (std::size_t i = 0; i < 3; ++i) {
      weight_line(Lanes::load(weights + i * inputs), Lanes::load(weights + (3 + i) * inputs),
                  Lanes::load(weights + (6 + i) * inputs), rows + i, 3);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      weight_line(rows[3 * i], rows[3 * i + 1], rows[3 * i + 2], u + 4 * i, 1);
    }
  }

  // Where a block of 16 channels that come out begins: panel, point 0, pair 0.
  static T* panel_at(T* u, std::size_t channel, std::size_t ins) {
    return u + channel / kPanel * (kTilePoints * kPanel * ins) + channel % kPanel * kDepth;
  }

  static void forward_weights(const T* weights, std::size_t outputs, std::size_t inputs, T* u) {
    for (std::size_t o = 0; o < outputs; o += kLanes) {
      for (std::size_t c = 0; c < inputs; c += kDepth * kLanes) {
        P lines[kTilePoints][kLanes];
        for (std::size_t row = 0; row < kLanes; ++row) {
          const T* const from = weights + (o + row) * 9 * inputs + c;
          F values[kDepth][kTilePoints];
          for (std::size_t d = 0; d < kDepth; ++d) {
            weights_of(from + d * kLanes, inputs, values[d]);
          }
          for (std::size_t i = 0; i < kTilePoints; ++i) {
            lines[i][row] = Lanes::behind(values[0][i], values[kDepth - 1][i]);
          }
        }
        for (std::size_t i = 0; i < kTilePoints; ++i) {
          Lanes::transpose(lines[i]);
          T* const to = panel_at(u, o, inputs) + i * kPanel * inputs + c * kPanel;
          for (std::size_t k = 0; k < kLanes; ++k) {
            Lanes::store(to + k * kDepth * kPanel, lines[i][k]);
          }
        }
      }
    }
  }

  static void backward_weights(const T* weights, std::size_t outputs, std::size_t inputs, T* u) {
    // Turned round, a kernel has its first and its last point exchanged, in both directions.
    static constexpr std::size_t kTurned[4] = {3, 1, 2, 0};
    for (std::size_t c = 0; c < inputs; c += kLanes) {
      for (std::size_t o = 0; o < outputs; o += kDepth) {
        F values[kDepth][kTilePoints];
        for (std::size_t d = 0; d < kDepth; ++d) {
          weights_of(weights + (o + d) * 9 * inputs + c, inputs, values[d]);
        }
        T* const to = panel_at(u, c, outputs) + o * kPanel;
        for (std::size_t i = 0; i < kTilePoints; ++i) {
          const std::size_t point = kTurned[i / 4] * 4 + kTurned[i % 4];
          Lanes::store(to + point * kPanel * outputs,
                       Lanes::beside(values[0][i], values[kDepth - 1][i]));
        }
      }
    }
  }

  struct Four {
    F a, b, c, d;
  };
  // Of values that are a line of points apart.
  static Four column_of(const float* at, std::size_t point_stride) {
    return {Lanes::load(at), Lanes::load(at + 4 * point_stride), Lanes::load(at + 8 * point_stride),
            Lanes::load(at + 12 * point_stride)};
  }

  // A' m of four values: two.
  static void output_line(const Four& m, F& first, F& second) {
    first = Lanes::add(Lanes::add(m.a, m.b), m.c);
    second = Lanes::sub(Lanes::sub(m.b, m.c), m.d);
  }
  static void output_tile(const float* m, std::size_t point_stride, T* const* pixels) {
    for (std::size_t c = 0; c < kPanel; c += kLanes) {
      F upper[4];
      F lower[4];
      for (std::size_t i = 0; i < 4; ++i) {
        output_line(column_of(m + i * point_stride + c, point_stride), upper[i], lower[i]);
      }
      F out[4];
      output_line({upper[0], upper[1], upper[2], upper[3]}, out[0], out[1]);
      output_line({lower[0], lower[1], lower[2], lower[3]}, out[2], out[3]);
      for (std::size_t i = 0; i < 4; ++i) {
        if (pixels[i] != nullptr) Lanes::store(pixels[i] + c, out[i]);
      }
    }
  }

  // G' u of four values: three.
  static void tap_line(const Four& u, F* to, std::size_t stride) {
    const F half = Lanes::set(0.5F);
    const F sum = Lanes::mul(half, Lanes::add(u.b, u.c));
    to[0] = Lanes::add(u.a, sum);
    to[stride] = Lanes::mul(half, Lanes::sub(u.b, u.c));
    to[2 * stride] = Lanes::add(sum, u.d);
  }
  static void weight_gradient(const float* du, std::size_t point_stride, std::size_t inputs,
                              T* dw) {
    for (std::size_t c = 0; c < inputs; c += kLanes) {
      F rows[12];
      for (std::size_t i = 0; i < 4; ++i) {
        tap_line(column_of(du + i * point_stride + c, point_stride), rows + i, 4);
      }
      for (std::size_t i = 0; i < 3; ++i) {
        F taps[3];
        tap_line({rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]}, taps, 1);
        for (std::size_t j = 0; j < 3; ++j) Lanes::store(dw + (3 * i + j) * inputs + c, taps[j]);
      }
    }
  }
};

}  // namespace starling::training
