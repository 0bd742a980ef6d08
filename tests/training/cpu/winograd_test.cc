#include "training/cpu/winograd.h"

#include "gossip/delta/isa.h"
#include "node/base/random.h"
#include "training/cpu/winograd_loops.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

float widened(Bf16 value) { return to_float(value); }

float widened(float value) { return value; }
Bf16 rounded(float value, Bf16 /*as*/) { return std::isnan(value) ? Bf16{0x7fc0} : to_bf16(value); }
float rounded(float value, float /*as*/) { return value; }

// Sixteen lanes in plain C++: what they mean, on any machine.
template <class T>
struct Plain {
  using Element = T;
  static constexpr std::size_t kWide = 2;
  static constexpr std::size_t kDepth = kWinogradDepth<T>;
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
  const WinogradKernels<T>* kernels;
};
template <class T>
std::vector<Variant<T>> variants() {
  std::vector<Variant<T>> found{{"plain", &WinogradLoops<Plain<T>>::kTable}};
  if (winograd_kernels<T>() != nullptr) {
    found.push_back({"the fastest of this processor", winograd_kernels<T>()});
  }
#ifdef __x86_64__
  if constexpr (sizeof(T) == sizeof(float)) {
    if (gossip::is_available(gossip::Isa::avx2))
      found.push_back({"avx2", &winograd_kernels_avx2()});
  }
#endif
  return found;
}

float small_integer(Rng& random) { return static_cast<float>(random.below(5)) - 2; }
float normal(Rng& random) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += random.unit() - 0.5;
  return static_cast<float>(sum);
}

template <class T>
struct Problem {
  WinogradShape shape;
  std::vector<T> x;
  std::vector<T> weights;
  std::vector<T> g;

  template <class Draw>
  Problem(const WinogradShape& s, Draw draw) : shape(s) {
    const std::size_t pixels = s.images * s.height * s.width;
    Rng random(7);
    const auto fill = [&](std::vector<T>& values, std::size_t count, float unit) {
      values.resize(count);
      for (T& value : values) value = rounded(unit * draw(random), T{});
    };
    fill(x, pixels * s.inputs, 1);
    fill(weights, s.outputs * 9 * s.inputs, 4);
    fill(g, pixels * s.outputs, 1);
  }
};

struct Results {
  std::vector<double> y;
  std::vector<double> dx;
  std::vector<double> dw;
};

// Sums of products, as a convolution is defined.
template <class T>
Results defined(const Problem<T>& p) {
  const WinogradShape& s = p.shape;
  Results out{std::vector<double>(p.g.size()), std::vector<double>(p.x.size()),
              std::vector<double>(p.weights.size())};
  const auto each_tap = [&](auto body) {
    for (std::size_t image = 0; image < s.images; ++image) {
      for (std::size_t to = 0; to < s.height * s.width; ++to) {
        for (std::size_t tap = 0; tap < 9; ++tap) {
          const std::size_t line = to / s.width + tap / 3 - 1;
          const std::size_t column = to % s.width + tap % 3 - 1;
          if (line >= s.height || column >= s.width) continue;
          const std::size_t first = image * s.height * s.width;
          body(first + line * s.width + column, first + to, tap);
        }
      }
    }
  };
  each_tap([&](std::size_t from, std::size_t to, std::size_t tap) {
    for (std::size_t o = 0; o < s.outputs; ++o) {
      const auto g = static_cast<double>(widened(p.g[to * s.outputs + o]));
      double sum = 0;
      for (std::size_t i = 0; i < s.inputs; ++i) {
        const std::size_t at = (o * 9 + tap) * s.inputs + i;
        const auto w = static_cast<double>(widened(p.weights[at]));
        const auto x = static_cast<double>(widened(p.x[from * s.inputs + i]));
        sum += w * x;
        out.dx[from * s.inputs + i] += w * g;
        out.dw[at] += x * g;
      }
      out.y[to * s.outputs + o] += sum;
    }
  });
  return out;
}

template <class T>
struct Computed {
  std::vector<T> y;
  std::vector<T> dx;
  std::vector<T> dw;
};
template <class T>
Computed<T> computed(const Problem<T>& p, const WinogradKernels<T>& kernels) {
  const Winograd<T> winograd(p.shape, kernels);
  const T garbage = rounded(std::numeric_limits<float>::quiet_NaN(),
                            T{});  // not a number: nothing of it may be left
  std::vector<T> memory(winograd.workspace_bytes() / sizeof(T) + 32, garbage);
  const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  const std::span workspace(
      reinterpret_cast<std::byte*>(memory.data()) + (past == 0 ? 0 : 64 - past),
      winograd.workspace_bytes());
  Computed<T> out{std::vector<T>(p.g.size(), garbage), std::vector<T>(p.x.size(), garbage),
                  std::vector<T>(p.weights.size(), garbage)};
  winograd.forward(p.x.data(), p.weights.data(), out.y.data(), workspace);
  winograd.input_gradient(p.g.data(), p.weights.data(), out.dx.data(), workspace);
  winograd.weight_gradient(p.x.data(), p.g.data(), out.dw.data(), workspace);
  return out;
}

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

}  // namespace

TEST_CASE_TEMPLATE("a Winograd convolution of small integers is exact", T, float, Bf16) {
  // Small integers, and weights that are multiples of four: no rounding but the last.
  // One tile, half a tile, lines and columns without a partner, several blocks of tiles, an odd
  // number of them.
  for (const WinogradShape& shape :
       {WinogradShape{1, 2, 2, 64, 64}, WinogradShape{3, 1, 2, 64, 128},
        WinogradShape{1, 3, 5, 128, 64}, WinogradShape{2, 7, 7, 64, 64},
        WinogradShape{3, 17, 26, 64, 64}}) {
    const Problem<T> problem(shape, small_integer);
    const Results expected = defined(problem);
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      CAPTURE(shape.images);
      CAPTURE(shape.height);
      CAPTURE(shape.width);
      const Computed<T> found = computed(problem, *variant.kernels);
      CHECK(different(found.y, expected.y) == 0);
      CHECK(different(found.dx, expected.dx) == 0);
      CHECK(different(found.dw, expected.dw) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("a Winograd convolution is off by little more than its type is", T, float,
                   Bf16) {
  const Problem<T> problem({2, 8, 8, 64, 64}, normal);
  const Results expected = defined(problem);
  const double bound = kWinogradDepth<T> == 1 ? 1e-6 : 0.005;
  for (const Variant<T>& variant : variants<T>()) {
    CAPTURE(variant.name);
    const Computed<T> found = computed(problem, *variant.kernels);
    CHECK(distance(found.y, expected.y) < bound);
    CHECK(distance(found.dx, expected.dx) < bound);
    CHECK(distance(found.dw, expected.dw) < bound);
  }
}

TEST_CASE_TEMPLATE("what is not finite does not get lost in a Winograd convolution", T, float,
                   Bf16) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Problem<T> problem({1, 4, 4, 64, 64}, small_integer);
    problem.x[5 * 64 + 3] = rounded(bad, T{});
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      const Computed<T> found = computed(problem, *variant.kernels);
      const auto is_bad = [](T value) { return !std::isfinite(widened(value)); };
      // Every output of the pixels around it, every gradient of that channel's weights.
      CHECK(std::ranges::count_if(found.y, is_bad) >= 9 * 64);
      CHECK(std::ranges::count_if(found.dw, is_bad) >= 9 * 64);
      CHECK(std::ranges::none_of(found.dx, is_bad));
    }
  }
}
