#include "training/cpu/norm.h"

#include "node/base/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

float plain(float value) { return value; }
float plain(Bf16 value) { return to_float(value); }
void put(float& to, double value) { to = static_cast<float>(value); }
void put(Bf16& to, double value) { to = to_bf16(static_cast<float>(value)); }

// One layer with made-up values, and what comes out of it.
template <class T>
struct Layer {
  Layer(std::size_t rows_of, std::size_t channels_of, std::uint64_t seed)
      : rows(rows_of),
        channels(channels_of),
        x(rows * channels),
        residual(rows * channels),
        y(rows * channels),
        g(rows * channels),
        more(rows * channels),
        dx(rows * channels),
        weight(channels),
        bias(channels),
        weight_gradient(channels),
        bias_gradient(channels) {
    Rng rng(seed);
    const auto normal = [&rng] {
      double sum = 0;
      for (int i = 0; i < 12; ++i) sum += rng.unit() - 0.5;
      return sum;
    };
    for (std::size_t i = 0; i < x.size(); ++i) {
      put(x[i], normal() * 2 + 3);
      put(residual[i], normal());
      put(g[i], normal());
      put(more[i], normal());
    }
    for (std::size_t c = 0; c < channels; ++c) {
      weight[c] = static_cast<float>(0.5 + rng.unit());
      bias[c] = static_cast<float>(rng.unit() - 0.5);
    }
  }
  [[nodiscard]] NormWeights weights() { return {weight, bias, weight_gradient, bias_gradient}; }

  std::size_t rows;
  std::size_t channels;
  std::vector<T> x, residual, y, g, more, dx;
  std::vector<float> weight, bias, weight_gradient, bias_gradient;
};

// bare: a projection, whose values go through the residual of another normalisation.
enum class Kind { bare, relu, residual };

// Rows come in three lots, of which the last is a single one.
template <class Work>
void in_lots(std::size_t rows, Work work) {
  work(Rows{0, rows / 3});
  work(Rows{rows / 3, rows - 1});
  work(Rows{rows - 1, rows});
}

template <class T>
void run(Layer<T>& layer, gossip::Isa isa, Kind kind) {
  Norm<T> norm(layer.channels, isa);
  in_lots(layer.rows, [&](Rows rows) { norm.measure(layer.x.data(), rows); });
  norm.end_measure(layer.rows, layer.weights());
  const bool residual = kind == Kind::residual;
  typename Norm<T>::Apply apply{.x = layer.x.data(), .y = layer.y.data()};
  if (residual) apply.residual = layer.residual.data();
  if (kind == Kind::bare) {
    apply = {.x = layer.residual.data(),
             .residual = layer.x.data(),
             .residual_norm = &norm,
             .y = layer.y.data()};
  }
  in_lots(layer.rows, [&](Rows rows) { norm.apply(apply, rows); });
  const typename Norm<T>::Backward backward{.x = layer.x.data(),
                                            .g = layer.g.data(),
                                            .more = residual ? layer.more.data() : nullptr,
                                            .y = residual ? layer.y.data() : nullptr,
                                            .dx = layer.dx.data(),
                                            .relu = kind != Kind::bare};
  in_lots(layer.rows, [&](Rows rows) { norm.sum_gradient(backward, rows); });
  norm.end_gradient_sums(layer.rows, layer.weights());
  in_lots(layer.rows, [&](Rows rows) { norm.gradient(backward, rows); });
}

// The same in doubles, from the definition.
template <class T>
void check_against_definition(Layer<T> layer, Kind kind, double tolerance) {
  Layer<T> got = layer;
  run(got, norm_isa(), kind);
  const auto n = static_cast<double>(layer.rows);
  for (std::size_t c = 0; c < layer.channels; ++c) {
    CAPTURE(c);
    double mean = 0;
    double variance = 0;
    const auto at = [&](const std::vector<T>& values, std::size_t row) {
      return static_cast<double>(plain(values[row * layer.channels + c]));
    };
    for (std::size_t r = 0; r < layer.rows; ++r) mean += at(layer.x, r) / n;
    for (std::size_t r = 0; r < layer.rows; ++r) {
      variance += (at(layer.x, r) - mean) * (at(layer.x, r) - mean) / n;
    }
    const double inverse = 1 / std::sqrt(variance + 1e-5);
    double sum = 0;
    double with_z = 0;
    std::vector<double> gated(layer.rows);
    for (std::size_t r = 0; r < layer.rows; ++r) {
      const double z = (at(layer.x, r) - mean) * inverse;
      const auto line = [&](double value) {
        return (value - mean) * inverse * static_cast<double>(layer.weight[c]) +
               static_cast<double>(layer.bias[c]);
      };
      double y = line(at(layer.x, r));
      double gradient = at(layer.g, r);
      if (kind == Kind::bare) y += line(at(layer.residual, r));
      if (kind == Kind::residual) {
        y += at(layer.residual, r);
        gradient += at(layer.more, r);
      }
      if (kind != Kind::bare && at(got.y, r) <= 0) gradient = 0;
      CHECK(at(got.y, r) == doctest::Approx(std::max(0.0, y)).epsilon(tolerance));
      if (kind == Kind::residual) {
        CHECK(at(got.g, r) == doctest::Approx(gradient).epsilon(tolerance));
        gradient = at(got.g, r);
      }
      gated[r] = gradient;
      sum += gradient;
      with_z += gradient * z;
    }
    CHECK(static_cast<double>(got.bias_gradient[c]) == doctest::Approx(sum).epsilon(1e-4));
    CHECK(static_cast<double>(got.weight_gradient[c]) == doctest::Approx(with_z).epsilon(1e-4));
    for (std::size_t r = 0; r < layer.rows; ++r) {
      const double z = (at(layer.x, r) - mean) * inverse;
      const double dx =
          static_cast<double>(layer.weight[c]) * inverse * (gated[r] - sum / n - z * with_z / n);
      CHECK(at(got.dx, r) == doctest::Approx(dx).epsilon(tolerance));
    }
  }
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void check_same_on_all(std::size_t rows, std::size_t channels, Kind kind) {
  const Layer<T> layer(rows, channels, 7);
  Layer<T> scalar = layer;
  run(scalar, gossip::Isa::scalar, kind);
  for (const gossip::Isa isa : {gossip::Isa::avx2, gossip::Isa::avx512}) {
    if (isa > norm_isa()) continue;
    CAPTURE(name_of(isa));
    Layer<T> wide = layer;
    run(wide, isa, kind);
    CHECK(same_bytes(wide.y, scalar.y));
    CHECK(same_bytes(wide.g, scalar.g));
    CHECK(same_bytes(wide.dx, scalar.dx));
    CHECK(same_bytes(wide.weight_gradient, scalar.weight_gradient));
    CHECK(same_bytes(wide.bias_gradient, scalar.bias_gradient));
  }
}

}  // namespace

TEST_SUITE("training/cpu/norm") {
  TEST_CASE("values and gradients are those of the definition, in fp32 and bf16") {
    for (const Kind kind : {Kind::bare, Kind::relu, Kind::residual}) {
      CAPTURE(static_cast<int>(kind));
      // fp32: sums of 600 terms, cancelled down by a tenth of their size: 1e-4 is 1,700 ulp.
      check_against_definition(Layer<float>(600, 48, 1), kind, 1e-4);
      // One rounding to bf16 each (2^-9), of gradients that are the sum of three terms.
      check_against_definition(Layer<Bf16>(600, 48, 2), kind, 0x1.0p-8);
    }
  }

  TEST_CASE("all instruction sets give the same bytes") {
    for (const Kind kind : {Kind::bare, Kind::relu, Kind::residual}) {
      CAPTURE(static_cast<int>(kind));
      for (const std::size_t channels : {16U, 64U, 144U, 512U}) {
        CAPTURE(channels);
        check_same_on_all<float>(333, channels, kind);
        check_same_on_all<Bf16>(333, channels, kind);
      }
    }
  }

  TEST_CASE("a value that is not a number is not lost, on any instruction set") {
    for (const gossip::Isa isa : {gossip::Isa::scalar, gossip::Isa::avx2, gossip::Isa::avx512}) {
      if (isa > norm_isa()) continue;
      CAPTURE(name_of(isa));
      Layer<Bf16> layer(40, 16, 3);
      layer.x[5 * 16 + 4] = {0x7fff};
      run(layer, isa, Kind::relu);
      CHECK(std::isnan(plain(layer.y[5 * 16 + 4])));
      CHECK(std::isnan(layer.weight_gradient[4]));
      CHECK_FALSE(std::isnan(layer.weight_gradient[3]));
    }
  }

  TEST_CASE("a mean a thousand times the spread costs no digits of the variance") {
    Layer<float> layer(512, 16, 4);
    for (std::size_t i = 0; i < layer.x.size(); ++i) {
      layer.x[i] = 1'000.0F + static_cast<float>(i / 16 % 2);  // variance 1/4
    }
    Norm<float> norm(16, norm_isa());
    norm.measure(layer.x.data(), {0, layer.rows});
    norm.end_measure(layer.rows, layer.weights());
    CHECK(norm.state().variance[0] == doctest::Approx(0.25 * 512 / 511).epsilon(1e-6));
    CHECK(norm.state().mean[0] == 1'000.5F);
  }
}
