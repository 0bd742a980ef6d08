// Sixteen lanes as an array: what every processor can run, and what the others are compared with.
#include "training/cpu/norm_loops.h"

#include <bit>
#include <cstdint>

namespace starling::training {
namespace {

struct Scalar {
  struct F {
    float at[16];
  };
  static constexpr std::size_t kWide = 1;

  static F load(const float* p) {
    return each([p](std::size_t i) { return p[i]; });
  }
  static F load(const Bf16* p) {
    return each([p](std::size_t i) { return to_float(p[i]); });
  }
  static void store(float* p, const F& v) {
    for (std::size_t i = 0; i < 16; ++i) p[i] = v.at[i];
  }
  static void store(Bf16* p, const F& v) {
    for (std::size_t i = 0; i < 16; ++i) p[i] = nearest(v.at[i]);
  }
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
  static F keep(const F& v, const F& gate) {
    return each([&](std::size_t i) { return gate.at[i] <= 0 ? 0.0F : v.at[i]; });
  }

 private:
  template <class Make>
  static F each(Make make) {
    F out;
    for (std::size_t i = 0; i < 16; ++i) out.at[i] = make(i);
    return out;
  }
  // What vcvtneps2bf16 makes of a float: see norm_avx2.cc.
  static Bf16 nearest(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto high = static_cast<std::uint16_t>(bits >> 16);
    if ((bits & 0x7f80'0000U) == 0) return {static_cast<std::uint16_t>(high & 0x8000U)};
    if ((bits & 0x7fff'ffffU) > 0x7f80'0000U) return {static_cast<std::uint16_t>(high | 0x40U)};
    return to_bf16(value);
  }
};

}  // namespace

template <>
const NormKernels<float>& norm_kernels_scalar<float>() {
  return NormLoops<Scalar, float>::kTable;
}
template <>
const NormKernels<Bf16>& norm_kernels_scalar<Bf16>() {
  return NormLoops<Scalar, Bf16>::kTable;
}

}  // namespace starling::training
