// d = x - r of one block, and what every coder wants to know of it.
#pragma once

#include "gossip/delta/centroids.h"
#include "training/cuda/block_shape.h"
#include "training/cuda/sgd.h"

#include <bit>
#include <cstdint>

namespace starling::training::cuda {

// `largest` >= 0x7f800000: some d is not finite.
struct DifferenceFacts {
  std::uint32_t largest = 0;  // bits of the largest |d|
  double energy = 0;          // |d|^2
};

// x and r of a block, both aligned to 16 bytes; r null is zero.
struct BlockValues {
  const float* x;
  const float* r;

  STARLING_DEVICE float difference(std::uint32_t i) const {
    return x[i] - (r == nullptr ? 0.0F : r[i]);
  }
};
using FourValues = Pack<float, 4>;

// visit(i, d) for every four values d, the first of which is value 4 i; padding is zero.
template <class Crew, class Visit>
STARLING_DEVICE DifferenceFacts take_difference(Crew& crew, const BlockShape& shape,
                                                const BlockValues& values, Visit visit) {
  // Neighbouring threads read neighbouring packs, and each has several on their way.
  constexpr std::uint32_t kAhead = 4;
  const std::uint32_t packs = shape.width / 4;
  const auto* const x = reinterpret_cast<const FourValues*>(values.x);
  const auto* const r = reinterpret_cast<const FourValues*>(values.r);
  std::uint32_t largest = 0;  // of this thread's
  DifferenceFacts facts;
  const std::uint32_t turns = (packs + kAhead * kWarp - 1) / (kAhead * kWarp) * kWarp;
  facts.energy = crew.template sum<double>(turns, [&](std::uint32_t turn) {
    const std::uint32_t first = turn / kWarp * kAhead * kWarp + turn % kWarp;
    FourValues d[kAhead];
    FourValues beside[kAhead];
    STARLING_UNROLL
    for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
      const std::uint32_t i = first + ahead * kWarp;
      d[ahead] = i < packs ? x[i] : FourValues{};
      beside[ahead] = i < packs && r != nullptr ? r[i] : FourValues{};
    }
    double energy = 0;
    STARLING_UNROLL
    for (std::uint32_t ahead = 0; ahead < kAhead; ++ahead) {
      const std::uint32_t i = first + ahead * kWarp;
      STARLING_UNROLL
      for (std::uint32_t k = 0; k < 4; ++k) d[ahead].at[k] = d[ahead].at[k] - beside[ahead].at[k];
      if (shape.mask != nullptr)
        for (std::uint32_t k = 0; k < 4; ++k)
          if (!shape.is_real(4 * i + k)) d[ahead].at[k] = 0;
      STARLING_UNROLL
      for (std::uint32_t k = 0; k < 4; ++k) {
        energy += gossip::square(d[ahead].at[k]);
        const std::uint32_t size = magnitude_of(d[ahead].at[k]);
        largest = size > largest ? size : largest;
      }
      if (i < packs) visit(i, d[ahead]);
    }
    return energy;
  });
  facts.largest = crew.largest_of(largest);
  return facts;
}

}  // namespace starling::training::cuda
