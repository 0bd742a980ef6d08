// The optimizer pass and the check of the gradients on a GPU: what one thread does.
//
// Symbols: x parameters, g gradients, v momenta, w working copy, n values. The arithmetic and its
// order are those of sgd_pass() in training/optimizer.h, every product and sum rounded once (.cu
// files are compiled with -fmad=false), so both give the same bytes.
#pragma once

#include "training/cuda/crew.h"
#include "training/optimizer.h"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

// Values that one thread loads and stores at once. Memory is aligned to as many.
template <class T, std::size_t kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};
inline constexpr std::size_t kSgdPack = 4;

STARLING_BOTH inline float widened(float value) { return value; }
STARLING_BOTH inline float widened(Bf16 value) { return to_float(value); }
STARLING_BOTH inline void narrow(float value, float& to) { to = value; }
// A NaN stays one: a GPU's, all ones, would be rounded up to -0.
STARLING_BOTH inline void narrow(float value, Bf16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & 0x7fff'ffffU) > 0x7f80'0000U;
  to = is_nan ? Bf16{static_cast<std::uint16_t>(bits >> 16 | 0x40U)} : to_bf16(value);
}

// One range of the arenas on the device.
template <class T>
struct SgdArgs {
  float* x;
  const T* g;
  float* v;
  T* w;
  std::size_t n;                 // a multiple of kSgdPack
  const float* learning_rate;    // in device memory: a captured graph reads the step's own
  const std::uint32_t* refused;  // in device memory: not 0: the gradients are bad, change nothing
  float momentum;
  float weight_decay;
};

// The values of pack number i.
template <class T>
STARLING_BOTH void sgd_pack(const SgdArgs<T>& args, std::size_t i) {
  auto& x = reinterpret_cast<Pack<float, kSgdPack>*>(args.x)[i];
  auto& v = reinterpret_cast<Pack<float, kSgdPack>*>(args.v)[i];
  const auto g = reinterpret_cast<const Pack<T, kSgdPack>*>(args.g)[i];
  const float rate = *args.learning_rate;
  Pack<float, kSgdPack> new_x = x;
  Pack<float, kSgdPack> new_v = v;
  Pack<T, kSgdPack> w;
  for (std::size_t k = 0; k < kSgdPack; ++k) {
    const float d = widened(g.at[k]) + args.weight_decay * new_x.at[k];
    const float velocity = args.momentum * new_v.at[k] + d;
    const float moved = new_x.at[k] - rate * (d + args.momentum * velocity);
    new_v.at[k] = velocity;
    new_x.at[k] = moved;
    narrow(moved, w.at[k]);
  }
  x = new_x;
  v = new_v;
  reinterpret_cast<Pack<T, kSgdPack>*>(args.w)[i] = w;
}

// Whether a value is a finite number.
STARLING_BOTH inline bool is_finite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7f80'0000U) != 0x7f80'0000U;
}
STARLING_BOTH inline bool is_finite(Bf16 value) { return (value.bits & 0x7f80U) != 0x7f80U; }

// Whether pack number i holds a value that is not a finite number.
template <class T>
STARLING_BOTH bool has_bad_value(const T* values, std::size_t i) {
  const auto pack = reinterpret_cast<const Pack<T, kSgdPack>*>(values)[i];
  bool bad = false;
  for (std::size_t k = 0; k < kSgdPack; ++k) bad = bad || !is_finite(pack.at[k]);
  return bad;
}

}  // namespace starling::training::cuda
