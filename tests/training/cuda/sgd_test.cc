// The optimizer pass of a GPU, run here value by value, against the CPU's.
#include "training/cuda/sgd.h"

#include "node/base/random.h"
#include "tests/training/cuda/aligned.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

using namespace starling;
using namespace starling::training;
using cuda::AlignedVector;
using cuda::same_bytes;

namespace {

constexpr std::size_t kValues = 10'000;

template <class T>
struct Arenas {
  explicit Arenas(std::uint64_t seed) : x(kValues), g(kValues), v(kValues), w(kValues) {
    Rng rng(seed);
    for (std::size_t i = 0; i < kValues; ++i) {
      // Some thirty binary orders of magnitude, denormal results among them.
      const auto draw = [&rng] {
        const int exponent = static_cast<int>(rng.below(60)) - 50;
        return static_cast<float>(std::ldexp(rng.unit() - 0.5, exponent));
      };
      x[i] = draw();
      cuda::narrow(draw(), g[i]);
      v[i] = draw();
    }
    x[0] = std::numeric_limits<float>::denorm_min();
    v[0] = 0;
  }
  AlignedVector<float> x;
  AlignedVector<T> g;
  AlignedVector<float> v;
  AlignedVector<T> w;
};

template <class T>
void check_pass() {
  for (const float decay : {0.0F, 1e-4F}) {
    Arenas<T> cpu(7);
    Arenas<T> gpu(7);
    const float rate = 0.07F;
    const std::uint32_t refused = 0;
    for (int step = 0; step < 3; ++step) {
      sgd_pass(SgdRange<T>{cpu.x, cpu.g, cpu.v, cpu.w}, {rate, 0.9F, decay});
      const cuda::SgdArgs<T> args{gpu.x.data(), gpu.g.data(), gpu.v.data(), gpu.w.data(), kValues,
                                  &rate,        &refused,     0.9F,         decay};
      for (std::size_t i = 0; i < kValues / cuda::kSgdPack; ++i) cuda::sgd_pack(args, i);
    }
    CHECK(same_bytes(cpu.x, gpu.x));
    CHECK(same_bytes(cpu.v, gpu.v));
    CHECK(same_bytes(cpu.w, gpu.w));
  }
}

template <class T>
void check_finite(float bad) {
  AlignedVector<T> values(64);
  const auto any_bad = [&] {
    bool found = false;
    for (std::size_t i = 0; i < 16; ++i) found = found || cuda::has_bad_value(values.data(), i);
    return found;
  };
  CHECK_FALSE(any_bad());
  cuda::narrow(std::numeric_limits<float>::max() / 2, values[3]);
  CHECK_FALSE(any_bad());
  for (std::size_t at = 0; at < 64; at += 21) {
    const T before = values[at];
    cuda::narrow(bad, values[at]);
    CHECK(any_bad());
    CHECK_FALSE(all_finite(std::span<const T>(values.data(), values.size())));
    values[at] = before;
  }
}

}  // namespace

TEST_SUITE("training/cuda/sgd") {
  TEST_CASE("the optimizer pass of a GPU gives the bytes of the CPU's") {
    check_pass<float>();
    check_pass<Bf16>();
  }

  TEST_CASE("the check of a GPU finds what the CPU's finds") {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::nanf(""), std::bit_cast<float>(0x7fff'ffffU)}) {
      check_finite<float>(bad);
      check_finite<Bf16>(bad);
    }
  }
}
