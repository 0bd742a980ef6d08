// Where the kernels over sixteen lanes read the values of a dense block: from its bytes, so that
// what adds two deltas needs neither written out. Included by kernels_simd.h alone; `Lanes` keeps
// the instantiations of two files apart.
//
// Each has at(), the sixteen values from i on, and where kTogether is not 0 enter(), called before
// the first of so many of them.
#pragma once

#include "gossip/delta/kernels.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace starling::gossip {

template <class Lanes>
struct DenseValues {
  using F = typename Lanes::F;

  static float number(const DenseBlock& block, std::size_t index) {
    std::uint16_t bf16 = 0;
    std::memcpy(&bf16, block.numbers + 2 * index, sizeof(bf16));
    const std::uint32_t bits = std::uint32_t{bf16} << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static std::uint32_t load16(const std::uint8_t* in) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, in, sizeof(bits));
    return bits;
  }

  class Signs {
   public:
    static constexpr std::size_t kTogether = 0;
    Signs(const std::uint8_t* signs, float value)
        : signs_(signs), plus_(Lanes::set(value)), minus_(Lanes::set(-value)) {}
    Signs(const DenseBlock& block, std::size_t) : Signs(block.values, number(block, 0)) {}
    F at(std::size_t i) const { return Lanes::choose(load16(signs_ + i / 8), minus_, plus_); }

   private:
    const std::uint8_t* signs_;
    F plus_;
    F minus_;
  };

  class Two {
   public:
    static constexpr std::size_t kTogether = 0;
    Two(const std::uint8_t* signs, const std::uint8_t* sizes, float low, float high)
        : signs_(signs),
          sizes_(sizes),
          high_(Lanes::set(high)),
          low_(Lanes::set(low)),
          minus_high_(Lanes::set(-high)),
          minus_low_(Lanes::set(-low)) {}
    Two(const DenseBlock& block, std::size_t n)
        : Two(block.values, block.values + n / 8, number(block, 1), number(block, 0)) {}
    F at(std::size_t i) const {
      const std::uint32_t size = load16(sizes_ + i / 8);
      return Lanes::choose(load16(signs_ + i / 8), Lanes::choose(size, minus_high_, minus_low_),
                           Lanes::choose(size, high_, low_));
    }

   private:
    const std::uint8_t* signs_;
    const std::uint8_t* sizes_;
    F high_;
    F low_;
    F minus_high_;
    F minus_low_;
  };

  template <int kBits>
  class Codes {
   public:
    static constexpr std::size_t kTogether = 256;  // kGroup: a scale each
    Codes(const DenseBlock& block, std::size_t)
        : block_(block), next_(block.values), scale_(Lanes::set(0.0F)) {}
    void enter(std::size_t begin) {
      constexpr std::size_t kBytes = kTogether * kBits / 8;
      const float scale = number(block_, begin / kTogether);
      scale_ = Lanes::set(scale);
      begin_ = begin;
      codes_ = kZeros;
      if (scale == 0) return;
      codes_ = next_;
      next_ += kBytes;
      // A block ahead: the codes of a model are read once, a short row at a time.
      for (std::size_t line = 0; line < kBytes; line += 64)
        __builtin_prefetch(codes_ + kAheadBytes + line, 0, 2);
    }
    F at(std::size_t i) const {
      const std::size_t place = i - begin_;
      if constexpr (kBits == 8) return Lanes::mul(Lanes::load_bytes(codes_ + place), scale_);
      return Lanes::mul(Lanes::load_nibbles(codes_ + place / 2), scale_);
    }

   private:
    static constexpr std::size_t kAheadBytes = 512 * kBits;
    static constexpr std::uint8_t kZeros[kTogether]{};

    DenseBlock block_;
    const std::uint8_t* next_;
    const std::uint8_t* codes_ = kZeros;
    std::size_t begin_ = 0;
    F scale_;
  };
};

}  // namespace starling::gossip
