#include "training/cpu/linear.h"

#include "node/base/random.h"
#include "tests/training/cpu/conv_variants.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

template <class T>
struct Problem {
  LinearShape shape;
  std::vector<T> x;
  std::vector<T> weights;
  std::vector<T> g;

  template <class Draw>
  Problem(const LinearShape& s, Draw draw) : shape(s) {
    Rng random(11);
    const auto fill = [&](std::vector<T>& values, std::size_t count) {
      values.resize(count);
      for (T& value : values) value = rounded(draw(random), T{});
    };
    fill(x, s.rows * s.inputs);
    fill(weights, s.outputs * s.inputs);
    fill(g, s.rows * s.outputs);
  }
};

template <class V>
struct Results {
  std::vector<V> y;
  std::vector<V> dx;
  std::vector<V> dw;
};

template <class T>
Results<double> defined(const Problem<T>& p) {
  const LinearShape& s = p.shape;
  Results<double> out{std::vector<double>(p.g.size()), std::vector<double>(p.x.size()),
                      std::vector<double>(p.weights.size())};
  for (std::size_t r = 0; r < s.rows; ++r) {
    for (std::size_t o = 0; o < s.outputs; ++o) {
      const auto g = static_cast<double>(widened(p.g[r * s.outputs + o]));
      for (std::size_t i = 0; i < s.inputs; ++i) {
        const auto x = static_cast<double>(widened(p.x[r * s.inputs + i]));
        const auto w = static_cast<double>(widened(p.weights[o * s.inputs + i]));
        out.y[r * s.outputs + o] += x * w;
        out.dx[r * s.inputs + i] += g * w;
        out.dw[o * s.inputs + i] += g * x;
      }
    }
  }
  return out;
}

template <class T>
Results<T> computed(const Problem<T>& p, const ConvKernels<T>& kernels) {
  const Linear<T> layer(p.shape, kernels);
  Workspace<T> memory(layer.workspace_bytes());
  Results<T> out{std::vector<T>(p.g.size(), not_a_number<T>()),
                 std::vector<T>(p.x.size(), not_a_number<T>()),
                 std::vector<T>(p.weights.size(), not_a_number<T>())};
  layer.forward(p.x.data(), p.weights.data(), out.y.data(), memory.bytes());
  layer.input_gradient(p.g.data(), p.weights.data(), out.dx.data(), memory.bytes());
  layer.weight_gradient(p.x.data(), p.g.data(), out.dw.data(), memory.bytes());
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("products of small integers are exact", T, float, Bf16) {
  // One row, an odd number of them, several blocks of rows, sums that are cut into stretches.
  for (const LinearShape& shape :
       {LinearShape{1, 64, 64}, LinearShape{13, 64, 192}, LinearShape{7, 640, 64},
        LinearShape{401, 128, 64}, LinearShape{1'031, 64, 64}}) {
    const Problem<T> problem(shape, small_integer);
    const Results<double> expected = defined(problem);
    for (const Variant<T>& variant : variants<T>()) {
      CAPTURE(variant.name);
      CAPTURE(shape.rows);
      CAPTURE(shape.inputs);
      CAPTURE(shape.outputs);
      const Results<T> found = computed(problem, *variant.kernels);
      CHECK(different(found.y, expected.y) == 0);
      CHECK(different(found.dx, expected.dx) == 0);
      CHECK(different(found.dw, expected.dw) == 0);
    }
  }
}

TEST_CASE_TEMPLATE("products round once", T, float, Bf16) {
  const Problem<T> problem({77, 192, 128}, normal);
  const Results<double> expected = defined(problem);
  const double bound = kDepthOf<T> == 1 ? 1e-6 : 0.002;
  for (const Variant<T>& variant : variants<T>()) {
    CAPTURE(variant.name);
    const Results<T> found = computed(problem, *variant.kernels);
    CHECK(distance(found.y, expected.y) < bound);
    CHECK(distance(found.dx, expected.dx) < bound);
    CHECK(distance(found.dw, expected.dw) < bound);
  }
}
