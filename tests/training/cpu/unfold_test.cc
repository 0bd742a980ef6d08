#include "training/cpu/unfold.h"

#include "tests/training/torch_support.h"
#include "training/conv.h"
#include "training/cpu/intra_op.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>

using namespace starling;
using namespace starling::training;

namespace {

struct Shape {
  std::int64_t in, out, kernel, stride, padding, height, width;
};

// Every kind of convolution of the models, and some at the edges of the rule.
constexpr std::array<Shape, 20> kShapes{{
    {16, 24, 3, 1, 1, 1, 1},  // one pixel: eight of nine taps see padding
    {16, 24, 3, 2, 1, 2, 2},  // one output pixel, four taps
    {16, 24, 3, 2, 1, 1, 2},  // fewer rows than columns
    {16, 24, 1, 2, 0, 2, 2},  // a projection to one pixel: three of four are not seen
    {8, 12, 7, 2, 3, 2, 2},   // a stem over two pixels
    {16, 24, 1, 1, 0, 5, 7},  // a product as it stands
    {16, 24, 1, 2, 0, 5, 8},  // a projection, odd and even
    {16, 24, 3, 1, 1, 2, 2},  {16, 24, 3, 1, 1, 7, 7},  {16, 24, 3, 2, 1, 14, 13},
    {16, 24, 3, 1, 1, 9, 9},   // too many pixels
    {1, 8, 7, 2, 3, 28, 28},   // gray
    {64, 128, 1, 1, 0, 5, 7},  // our own products, where the processor has the instructions
    {128, 64, 1, 2, 0, 2, 2},  // rows that do not follow one another
    {64, 64, 3, 1, 1, 1, 1},  {64, 64, 3, 2, 1, 2, 2},  {64, 128, 1, 2, 0, 5, 8},
    {64, 64, 3, 1, 1, 9, 12},  // what Winograd's way is for, where the processor has it
    {64, 128, 3, 1, 1, 7, 7}, {512, 64, 3, 1, 1, 1, 2},  // so few tiles that its weights' gradient
                                                         // is not
}};

at::Tensor channels_last(const at::Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

struct Problem {
  Conv conv;
  at::Tensor x;
  at::Tensor g;
};

Problem problem_of(const Shape& shape, at::ScalarType type) {
  use_intra_op_threads(1);
  torch::manual_seed(3);
  const std::int64_t k = shape.kernel;
  Problem problem;
  problem.conv.weight = channels_last(at::randn({shape.out, shape.in, k, k}).to(type));
  // Nothing of it may be left.
  problem.conv.weight_gradient =
      at::empty_like(problem.conv.weight).fill_(std::numeric_limits<float>::quiet_NaN());
  problem.conv.stride = shape.stride;
  problem.conv.padding = shape.padding;
  problem.x = channels_last(at::randn({5, shape.in, shape.height, shape.width}).to(type));
  const auto outputs = [&](std::int64_t n) {
    return (n + 2 * shape.padding - k) / shape.stride + 1;
  };
  problem.g = channels_last(
      at::randn({5, shape.out, outputs(shape.height), outputs(shape.width)}).to(type));
  return problem;
}

// Calls body(problem) with every shape, in fp32 and bf16.
template <class Body>
void for_all_problems(Body body) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.in);
      CAPTURE(shape.kernel);
      CAPTURE(shape.stride);
      CAPTURE(shape.height);
      CAPTURE(shape.width);
      CAPTURE(static_cast<int>(type));
      body(problem_of(shape, type));
    }
  }
}

// What the definition of a convolution gives in doubles.
struct Expected {
  at::Tensor y, dx, dw;
};
Expected expected_of(const Problem& problem) {
  const Conv& conv = problem.conv;
  const at::Tensor x = problem.x.to(at::kDouble);
  const at::Tensor weight = conv.weight.to(at::kDouble);
  const std::array<std::int64_t, 2> stride{conv.stride, conv.stride};
  const std::array<std::int64_t, 2> padding{conv.padding, conv.padding};
  Expected expected;
  expected.y = at::conv2d(x, weight, {}, stride, padding);
  std::tie(expected.dx, expected.dw, std::ignore) =
      at::convolution_backward(problem.g.to(at::kDouble), x, weight, std::nullopt, stride, padding,
                               {1, 1}, false, {0, 0}, 1, {true, true, false});
  return expected;
}

// Rows of `from` that are put into `to` once they are asked for: each once, in their order.
struct Traffic {
  RowTask task_to(const at::Tensor& to, const at::Tensor& from) {
    return {[this, to, from](void* values, Rows rows) {
              CHECK(values == to.data_ptr());
              move(to, from, rows);
            },
            {memory_of(from)}};
  }
  // Those that lie at `values`, as soon as they are there; `to` is like them.
  RowTask task_from(const at::Tensor& to) {
    return {[this, to](void* values, Rows rows) {
              move(to, at::from_blob(values, to.sizes(), to.strides(), to.options()), rows);
            },
            {}};
  }
  void move(const at::Tensor& to, const at::Tensor& from, Rows rows) {
    CHECK(rows.begin == end);
    end = rows.end;
    const auto lines = [&](const at::Tensor& of) {
      return of.permute({0, 2, 3, 1})
          .view({-1, of.size(1)})
          .slice(0, static_cast<std::int64_t>(rows.begin), static_cast<std::int64_t>(rows.end));
    };
    lines(to).copy_(lines(from));
  }
  std::size_t end = 0;
};

at::Tensor blank_like(const at::Tensor& x) {
  return at::full_like(x, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

TEST_CASE("every way to compute a convolution gives what its definition does") {
  for_all_problems([](const Problem& problem) {
    const double tolerance = problem.x.scalar_type() == at::kFloat ? 1e-5 : 1e-2;
    const Expected expected = expected_of(problem);
    const at::Tensor y = conv_forward(problem.conv, problem.x);
    CHECK(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(difference(y, expected.y) < tolerance);
    const at::Tensor dx = conv_backward(problem.conv, problem.x, problem.g, InputGradient::wanted);
    CHECK(dx.is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(difference(dx, expected.dx) < tolerance);
    CHECK(difference(problem.conv.weight_gradient, expected.dw) < tolerance);
  });
}

TEST_CASE("rows are made before they are read and handed on once they are written") {
  for_all_problems([](const Problem& problem) {
    const at::Tensor x = blank_like(problem.x);
    const at::Tensor seen = blank_like(problem.g);
    Traffic in;
    Traffic out;
    const at::Tensor y =
        conv_forward(problem.conv, x, {in.task_to(x, problem.x), out.task_from(seen)});
    CHECK(at::equal(y, seen));
    CHECK(at::equal(y, conv_forward(problem.conv, problem.x)));

    const at::Tensor g = blank_like(problem.g);
    const at::Tensor seen_back = blank_like(problem.x);
    Traffic in_back;
    Traffic out_back;
    const at::Tensor dx =
        conv_backward(problem.conv, problem.x, g, InputGradient::wanted,
                      {in_back.task_to(g, problem.g), out_back.task_from(seen_back)});
    const at::Tensor dw = problem.conv.weight_gradient.clone();
    CHECK(at::equal(dx, seen_back));
    CHECK(at::equal(dx, conv_backward(problem.conv, problem.x, problem.g, InputGradient::wanted)));
    CHECK(at::equal(dw, problem.conv.weight_gradient));
  });
}

TEST_CASE("the first layer needs no gradient of its images") {
  for (const Shape& shape : kShapes) {
    const Problem problem = problem_of(shape, at::kBFloat16);
    const at::Tensor dx =
        conv_backward(problem.conv, problem.x, problem.g, InputGradient::unwanted);
    CHECK_FALSE(dx.defined());
    CHECK(difference(problem.conv.weight_gradient, expected_of(problem).dw) < 1e-2);
  }
}

TEST_CASE("taps that see nothing but padding are left out of the product") {
  const Problem problem = problem_of({16, 24, 3, 1, 1, 1, 1}, at::kFloat);
  CHECK(product_parts(problem.conv, problem.x).input_gradient);
  (void)conv_backward(problem.conv, problem.x, problem.g, InputGradient::unwanted);
  at::Tensor around = problem.conv.weight_gradient.clone();
  around.select(2, 1).select(2, 1).zero_();
  CHECK(around.abs().sum().item<double>() == 0);
  CHECK(problem.conv.weight_gradient.abs().sum().item<double>() > 0);
}
