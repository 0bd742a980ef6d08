// What tests of the loops of convolutions share: the loops in plain C++ beside this processor's,
// and how far a result is from the truth.
#pragma once

#include "node/base/random.h"
#include "training/cpu/conv_loops.h"
#include "training/row_walk.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace starling::training {

inline float widened(Bf16 value) { return to_float(value); }
inline float widened(float value) { return value; }
inline Bf16 rounded(float value, Bf16 /*as*/) {
  return std::isnan(value) ? Bf16{0x7fc0} : to_bf16(value);
}
inline float rounded(float value, float /*as*/) { return value; }

template <class T>
T not_a_number() {
  return rounded(std::numeric_limits<float>::quiet_NaN(), T{});
}

// Sixteen lanes in plain C++: what they mean, on any machine.
template <class T>
struct Plain {
  using Element = T;
  static constexpr std::size_t kWide = 2;
  static constexpr std::size_t kDepth = kDepthOf<T>;
  struct F {
    float at[16];
  };
  struct P {
    T at[16 * kDepth];
  };

  static F load(const T* p) {
    return each([p](std::size_t i) { return widened(p[i]); });
  }
  static void store(T* p, const F& v) {
    for (std::size_t i = 0; i < 16; ++i) p[i] = rounded(v.at[i], T{});
  }
  static void store(T* p, const P& v) { std::ranges::copy(v.at, p); }
  static F load(const float* p)
    requires(kDepth > 1)
  {
    return each([p](std::size_t i) { return p[i]; });
  }
  static void store(float* p, const F& v)
    requires(kDepth > 1)
  {
    std::ranges::copy(v.at, p);
  }
  static P factors(const T* p) {
    P out;
    std::copy_n(p, 16 * kDepth, out.at);
    return out;
  }
  static P broadcast(const T* p) {
    P out;
    for (std::size_t i = 0; i < 16 * kDepth; ++i) out.at[i] = p[i % kDepth];
    return out;
  }
  static F zero() { return set(0); }
  static F set(float v) {
    return each([v](std::size_t) { return v; });
  }
  static F add(const F& a, const F& b) {
    return each([&](std::size_t i) { return a.at[i] + b.at[i]; });
  }
  static F sub(const F& a, const F& b) {
    return each([&](std::size_t i) { return a.at[i] - b.at[i]; });
  }
  static F mul(const F& a, const F& b) {
    return each([&](std::size_t i) { return a.at[i] * b.at[i]; });
  }
  static F dot(const F& sum, const P& a, const P& b) {
    return each([&](std::size_t i) {
      float out = sum.at[i];
      for (std::size_t d = 0; d < kDepth; ++d)
        out += widened(a.at[kDepth * i + d]) * widened(b.at[kDepth * i + d]);
      return out;
    });
  }
  static P beside(const F& first, const F& last) {
    P out;
    for (std::size_t i = 0; i < 16; ++i) {
      out.at[kDepth * i] = rounded(first.at[i], T{});
      out.at[kDepth * i + kDepth - 1] = rounded(last.at[i], T{});
    }
    return out;
  }
  static P interleave(const T* first, const T* last) {
    return beside(load(first), last == nullptr ? zero() : load(last));
  }
  static P behind(const F& first, const F& last) {
    P out;
    store(out.at, first);
    store(out.at + 16 * (kDepth - 1), last);
    return out;
  }
  static void transpose(P* lines) {
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        for (std::size_t d = 0; d < kDepth; ++d) {
          std::swap(lines[i].at[kDepth * j + d], lines[j].at[kDepth * i + d]);
        }
      }
    }
  }

 private:
  template <class Make>
  static F each(Make make) {
    F out;
    for (std::size_t i = 0; i < 16; ++i) out.at[i] = make(i);
    return out;
  }
};

template <class T>
struct Variant {
  std::string name;
  const ConvKernels<T>* kernels;
};
template <class T>
std::vector<Variant<T>> variants() {
  std::vector<Variant<T>> found{{"plain", &ConvLoops<Plain<T>>::kTable}};
  if (conv_kernels<T>() == nullptr) return found;
  found.push_back({"the fastest of this processor", conv_kernels<T>()});
#ifdef __x86_64__
  // Whoever has any has these, which are not the fastest everywhere.
  if constexpr (sizeof(T) == sizeof(float)) found.push_back({"avx2", &conv_kernels_avx2()});
#endif
  return found;
}

inline float small_integer(Rng& random) { return static_cast<float>(random.below(5)) - 2; }
inline float normal(Rng& random) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += random.unit() - 0.5;
  return static_cast<float>(sum);
}

// Memory on a 64-byte boundary, full of what is not a number: nothing of it may be left.
template <class T>
class Workspace {
 public:
  explicit Workspace(std::size_t bytes)
      : memory_(bytes / sizeof(T) + 64, not_a_number<T>()), bytes_(bytes) {}
  [[nodiscard]] std::span<std::byte> bytes() {
    const auto past = reinterpret_cast<std::uintptr_t>(memory_.data()) % 64;
    return {reinterpret_cast<std::byte*>(memory_.data()) + (past == 0 ? 0 : 64 - past), bytes_};
  }

 private:
  std::vector<T> memory_;
  std::size_t bytes_;
};

template <class T>
std::size_t different(const std::vector<T>& ours, const std::vector<double>& expected) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (widened(ours[i]) != widened(rounded(static_cast<float>(expected[i]), T{}))) ++count;
  }
  return count;
}

template <class T>
double distance(const std::vector<T>& ours, const std::vector<double>& expected) {
  double squares = 0;
  double all = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double off = static_cast<double>(widened(ours[i])) - expected[i];
    squares += off * off;
    all += expected[i] * expected[i];
  }
  return std::sqrt(squares / all);
}

// What a convolution or a linear layer reads, and what it makes of that.
template <class T>
struct Operands {
  std::vector<T> x;
  std::vector<T> weights;
  std::vector<T> g;
};
template <class T>
using Bits = std::conditional_t<sizeof(T) == sizeof(float), std::uint32_t, std::uint16_t>;
template <class V>
struct Results {
  std::vector<V> y;
  std::vector<V> dx;
  std::vector<V> dw;
};

template <class T>
Results<double> zeros_for(const Operands<T>& from) {
  return {std::vector<double>(from.g.size()), std::vector<double>(from.x.size()),
          std::vector<double>(from.weights.size())};
}

// Rows that are there only once they were asked for, and rows that are taken as soon as they are
// said to be there: each once, in their order.
template <class T>
class RowTraffic {
 public:
  // What is read has `columns` values a row, what is written `columns_out`.
  RowTraffic(const std::vector<T>& from, std::size_t columns, std::vector<T>& to,
             std::size_t columns_out)
      : from_(from), to_(to), blank_(from.size(), not_a_number<T>()) {
    tasks_.before = {moving(read_, columns,
                            [this](std::size_t at, std::size_t count, T* values) {
                              std::copy_n(from_.data() + at, count, values + at);
                            }),
                     {{from_.data(), columns * sizeof(T)}}};
    tasks_.after.run =
        moving(written_, columns_out, [this](std::size_t at, std::size_t count, T* values) {
          std::copy_n(values + at, count, to_.data() + at);
        });
  }
  RowTraffic(const RowTraffic&) = delete;
  RowTraffic& operator=(const RowTraffic&) = delete;
  [[nodiscard]] T* read() { return blank_.data(); }
  [[nodiscard]] const RowTasks& tasks() const { return tasks_; }

 private:
  template <class Move>
  static auto moving(std::size_t& end, std::size_t columns, Move move) {
    return [&end, columns, move](void* values, Rows rows) {
      CHECK(rows.begin == end);
      CHECK(rows.end > rows.begin);
      end = rows.end;
      move(rows.begin * columns, (rows.end - rows.begin) * columns, static_cast<T*>(values));
    };
  }

  const std::vector<T>& from_;
  std::vector<T>& to_;
  std::vector<T> blank_;
  std::size_t read_ = 0;
  std::size_t written_ = 0;
  RowTasks tasks_;
};

// `inputs` and `outputs` values a row.
template <class Layer, class T>
Results<T> computed(const Layer& layer, const Operands<T>& from, std::size_t inputs,
                    std::size_t outputs) {
  Workspace<T> memory(layer.workspace_bytes());
  Results<T> out{std::vector<T>(from.g.size(), not_a_number<T>()),
                 std::vector<T>(from.x.size(), not_a_number<T>()),
                 std::vector<T>(from.weights.size(), not_a_number<T>())};
  Results<T> there = out;
  RowTraffic<T> forwards(from.x, inputs, out.y, outputs);
  RowWalk forward_walk(forwards.tasks(), forwards.read(), there.y.data());
  layer.forward(forwards.read(), from.weights.data(), there.y.data(), memory.bytes(), forward_walk);
  RowTraffic<T> backwards(from.g, outputs, out.dx, inputs);
  RowWalk backward_walk(backwards.tasks(), backwards.read(), there.dx.data());
  layer.backward(
      {from.x.data(), backwards.read(), from.weights.data(), out.dw.data(), there.dx.data()},
      memory.bytes(), backward_walk);

  // Of images nobody wants a gradient; and no tasks are needed.
  std::vector<T> dw(out.dw.size());
  RowWalk none;
  layer.backward({from.x.data(), from.g.data(), nullptr, dw.data(), nullptr}, memory.bytes(), none);
  CHECK(std::ranges::equal(
      dw, out.dw, [](T a, T b) { return std::bit_cast<Bits<T>>(a) == std::bit_cast<Bits<T>>(b); }));
  return out;
}

}  // namespace starling::training
