#include "training/cpu/winograd.h"

#include "node/base/random.h"
#include "training/cpu/winograd_loops.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
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

// Sixteen lanes in plain C++: what they mean, on any machine.
struct Plain {
  struct F {
    float at[16];
  };
  struct P {
    Bf16 at[32];
  };

  static F load(const float* p) {
    return each([p](std::size_t i) { return p[i]; });
  }
  static F load(const Bf16* p) {
    return each([p](std::size_t i) { return widened(p[i]); });
  }
  static void store(float* p, const F& v) { std::ranges::copy(v.at, p); }
  static void store(Bf16* p, const F& v) {
    for (std::size_t i = 0; i < 16; ++i) p[i] = rounded(v.at[i]);
  }
  static void store(Bf16* p, const P& v) { std::ranges::copy(v.at, p); }
  static P load_pairs(const Bf16* p) {
    P out;
    std::copy_n(p, 32, out.at);
    return out;
  }
  static P broadcast(const Bf16* pair) {
    P out;
    for (std::size_t i = 0; i < 32; ++i) out.at[i] = pair[i % 2];
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
      return sum.at[i] + widened(a.at[2 * i]) * widened(b.at[2 * i]) +
             widened(a.at[2 * i + 1]) * widened(b.at[2 * i + 1]);
    });
  }
  static P pairs(const F& first, const F& second) {
    P out;
    for (std::size_t i = 0; i < 16; ++i) {
      out.at[2 * i] = rounded(first.at[i]);
      out.at[2 * i + 1] = rounded(second.at[i]);
    }
    return out;
  }
  static P join(const F& low, const F& high) {
    P out;
    store(out.at, low);
    store(out.at + 16, high);
    return out;
  }
  static void transpose(P* lines) {
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        for (std::size_t k = 0; k < 2; ++k) {
          std::swap(lines[i].at[2 * j + k], lines[j].at[2 * i + k]);
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
  static Bf16 rounded(float value) { return std::isnan(value) ? Bf16{0x7fc0} : to_bf16(value); }
};

struct Variant {
  std::string name;
  const WinogradKernels* kernels;
};
std::vector<Variant> variants() {
  std::vector<Variant> found{{"plain", &WinogradLoops<Plain>::kTable}};
  if (winograd_kernels() != nullptr) found.push_back({"of this processor", winograd_kernels()});
  return found;
}

float small_integer(Rng& random) { return static_cast<float>(random.below(5)) - 2; }
float normal(Rng& random) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += random.unit() - 0.5;
  return static_cast<float>(sum);
}

struct Problem {
  WinogradShape shape;
  std::vector<Bf16> x;
  std::vector<Bf16> weights;
  std::vector<Bf16> g;

  template <class Draw>
  Problem(const WinogradShape& s, Draw draw) : shape(s) {
    const std::size_t pixels = s.images * s.height * s.width;
    Rng random(7);
    const auto fill = [&](std::vector<Bf16>& values, std::size_t count, float unit) {
      values.resize(count);
      for (Bf16& value : values) value = to_bf16(unit * draw(random));
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
Results defined(const Problem& p) {
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

struct Computed {
  std::vector<Bf16> y;
  std::vector<Bf16> dx;
  std::vector<Bf16> dw;
};
Computed computed(const Problem& p, const WinogradKernels& kernels) {
  const Winograd winograd(p.shape, kernels);
  const Bf16 garbage{0x7fc0};  // not a number: nothing of it may be left
  std::vector<Bf16> memory(winograd.workspace_bytes() / sizeof(Bf16) + 32, garbage);
  const auto past = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
  const std::span workspace(
      reinterpret_cast<std::byte*>(memory.data()) + (past == 0 ? 0 : 64 - past),
      winograd.workspace_bytes());
  Computed out{std::vector<Bf16>(p.g.size(), garbage), std::vector<Bf16>(p.x.size(), garbage),
               std::vector<Bf16>(p.weights.size(), garbage)};
  winograd.forward(p.x.data(), p.weights.data(), out.y.data(), workspace);
  winograd.input_gradient(p.g.data(), p.weights.data(), out.dx.data(), workspace);
  winograd.weight_gradient(p.x.data(), p.g.data(), out.dw.data(), workspace);
  return out;
}

std::size_t different(const std::vector<Bf16>& ours, const std::vector<double>& expected) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (widened(ours[i]) != widened(to_bf16(static_cast<float>(expected[i])))) ++count;
  }
  return count;
}

double distance(const std::vector<Bf16>& ours, const std::vector<double>& expected) {
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

TEST_CASE("a Winograd convolution of small integers is exact") {
  // Small integers, and weights that are multiples of four: no rounding but the last.
  // One tile, half a tile, lines and columns without a partner, several blocks of tiles, an odd
  // number of them.
  for (const WinogradShape& shape :
       {WinogradShape{1, 2, 2, 64, 64}, WinogradShape{3, 1, 2, 64, 128},
        WinogradShape{1, 3, 5, 128, 64}, WinogradShape{2, 7, 7, 64, 64},
        WinogradShape{3, 17, 26, 64, 64}}) {
    const Problem problem(shape, small_integer);
    const Results expected = defined(problem);
    for (const Variant& variant : variants()) {
      CAPTURE(variant.name);
      CAPTURE(shape.images);
      CAPTURE(shape.height);
      CAPTURE(shape.width);
      const Computed found = computed(problem, *variant.kernels);
      CHECK(different(found.y, expected.y) == 0);
      CHECK(different(found.dx, expected.dx) == 0);
      CHECK(different(found.dw, expected.dw) == 0);
    }
  }
}

TEST_CASE("a Winograd convolution is off by little more than bf16 is") {
  const Problem problem({2, 8, 8, 64, 64}, normal);
  const Results expected = defined(problem);
  for (const Variant& variant : variants()) {
    CAPTURE(variant.name);
    const Computed found = computed(problem, *variant.kernels);
    CHECK(distance(found.y, expected.y) < 0.005);
    CHECK(distance(found.dx, expected.dx) < 0.005);
    CHECK(distance(found.dw, expected.dw) < 0.005);
  }
}

TEST_CASE("what is not finite does not get lost in a Winograd convolution") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Problem problem({1, 4, 4, 64, 64}, small_integer);
    problem.x[5 * 64 + 3] =
        Bf16{static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(bad) >> 16)};
    for (const Variant& variant : variants()) {
      CAPTURE(variant.name);
      const Computed found = computed(problem, *variant.kernels);
      const auto is_bad = [](Bf16 value) { return !std::isfinite(widened(value)); };
      // Every output of the pixels around it, every gradient of that channel's weights.
      CHECK(std::ranges::count_if(found.y, is_bad) >= 9 * 64);
      CHECK(std::ranges::count_if(found.dw, is_bad) >= 9 * 64);
      CHECK(std::ranges::none_of(found.dx, is_bad));
    }
  }
}
