// Rng: the only source of randomness outside key generation. Seeded, reproducible on every machine.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace starling {

// xoshiro256** seeded by splitmix64; a UniformRandomBitGenerator. Not for keys.
//
// Source:  Blackman & Vigna 2021, "Scrambled linear pseudorandom number generators", ACM TOMS
// 47(4).
class Rng {
 public:
  using result_type = std::uint64_t;

  explicit Rng(std::uint64_t seed) {
    for (auto& word : state_) word = split_mix(seed);
  }

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }

  result_type operator()() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound) without bias; 0 for bound 0.
  //
  // Source:  Lemire 2019, "Fast random integer generation in an interval", ACM TOMACS 29(1).
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) {
    if (bound == 0) return 0;
    __extension__ using Wide = unsigned __int128;
    Wide product = static_cast<Wide>((*this)()) * bound;
    auto low = static_cast<std::uint64_t>(product);
    if (low < bound) {
      const std::uint64_t threshold = (0 - bound) % bound;
      while (low < threshold) {
        product = static_cast<Wide>((*this)()) * bound;
        low = static_cast<std::uint64_t>(product);
      }
    }
    return static_cast<std::uint64_t>(product >> 64);
  }

  // Uniform in [0, 1), a multiple of 2^-53.
  [[nodiscard]] double unit() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

  // True with the given probability.
  [[nodiscard]] bool chance(double probability) { return unit() < probability; }

 private:
  static std::uint64_t split_mix(std::uint64_t& seed) {
    seed += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  std::array<std::uint64_t, 4> state_{};
};

}  // namespace starling
