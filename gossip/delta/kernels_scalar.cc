// The reference: plain loops that say what each kernel means. The other paths must equal it.
#include "gossip/delta/bits.h"
#include "gossip/delta/format.h"
#include "gossip/delta/kernels.h"
#include "node/base/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

namespace starling::gossip {

namespace {

constexpr std::uint32_t kSign = 0x80000000U;

// Sum of squares in sixteen lanes.
class Energy {
 public:
  void add(std::size_t index, float value) {
    const auto wide = static_cast<double>(value);
    lanes_[index % 16] += wide * wide;
  }
  [[nodiscard]] double total() const {
    const auto lane = [this](std::size_t i) { return lanes_[i] + lanes_[i + 8]; };
    return ((lane(0) + lane(4)) + (lane(2) + lane(6))) +
           ((lane(1) + lane(5)) + (lane(3) + lane(7)));
  }

 private:
  std::array<double, 16> lanes_{};
};

DifferenceFacts difference(const float* x, const float* r, std::size_t n, float* d) {
  DifferenceFacts facts{};
  Energy energy;
  for (std::size_t i = 0; i < n; ++i) {
    d[i] = x[i] - r[i];
    facts.max_abs_bits = std::max(facts.max_abs_bits, abs_bits(d[i]));
    energy.add(i, d[i]);
  }
  facts.energy = energy.total();
  return facts;
}

std::uint32_t select(const float* d, std::size_t n, std::uint32_t threshold_bits,
                     std::uint16_t* out) {
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < n; ++i)
    if (abs_bits(d[i]) >= threshold_bits) out[count++] = static_cast<std::uint16_t>(i);
  return count;
}

DifferenceFacts difference_select(const float* x, const float* r, std::size_t n,
                                  std::uint32_t threshold_bits, Selected out) {
  DifferenceFacts facts = difference(x, r, n, out.d);
  facts.selected = select(out.d, n, threshold_bits, out.indices);
  return facts;
}

std::uint32_t max_abs(const float* d, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, abs_bits(d[i]));
  return largest;
}

std::uint32_t kth_largest(const float* d, std::size_t n, std::uint32_t k) {
  std::array<std::uint32_t, kBlock> bits;
  std::transform(d, d + n, bits.begin(), [](float value) { return abs_bits(value); });
  const auto kth = bits.begin() + (k - 1);
  std::nth_element(bits.begin(), kth, bits.begin() + static_cast<std::ptrdiff_t>(n),
                   std::greater<>());
  return *kth;
}

template <class Test>
void pack(std::size_t n, std::uint8_t* out, Test test) {
  for (std::size_t i = 0; i < n; i += 8) {
    unsigned byte = 0;
    for (std::size_t bit = 0; bit < 8; ++bit) byte |= test(i + bit) ? 1U << bit : 0U;
    out[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

std::uint64_t sum_and_signs(const float* d, std::size_t n, std::uint32_t exponent,
                            std::uint8_t* signs) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += fixed_point(abs_bits(d[i]), exponent);
  pack(n, signs, [d](std::size_t i) { return (std::bit_cast<std::uint32_t>(d[i]) & kSign) != 0; });
  return sum;
}

FixedSum sum_from(const float* d, std::size_t n, std::uint32_t exponent, std::uint32_t from_bits,
                  std::uint8_t* flags) {
  FixedSum result{};
  for (std::size_t i = 0; i < n; ++i) {
    if (abs_bits(d[i]) < from_bits) continue;
    result.sum += fixed_point(abs_bits(d[i]), exponent);
    ++result.count;
  }
  pack(n, flags, [=](std::size_t i) { return abs_bits(d[i]) >= from_bits; });
  return result;
}

// lrint rounds half to even: no code of ours changes the rounding mode.
int code_of(float value, float scale, int largest) {
  return std::clamp(static_cast<int>(std::lrint(value / scale)), -largest, largest);
}

std::uint32_t quantize4(const float* d, std::size_t n, float scale, std::uint8_t* out) {
  std::uint32_t squares = 0;
  for (std::size_t i = 0; i < n; i += 2) {
    const int first = code_of(d[i], scale, kMaxCode4);
    const int second = code_of(d[i + 1], scale, kMaxCode4);
    squares += static_cast<std::uint32_t>(first * first + second * second);
    out[i / 2] = static_cast<std::uint8_t>((first & 0xf) | (second & 0xf) << 4);
  }
  return squares;
}

std::uint32_t quantize8(const float* d, std::size_t n, float scale, std::uint8_t* out) {
  std::uint32_t squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const int code = code_of(d[i], scale, kMaxCode8);
    squares += static_cast<std::uint32_t>(code * code);
    out[i] = static_cast<std::uint8_t>(code);
  }
  return squares;
}

void expand_signs(const std::uint8_t* signs, std::size_t n, float value, float* q) {
  for (std::size_t i = 0; i < n; ++i) q[i] = bit_of(signs, i) ? -value : value;
}

void expand_two(const std::uint8_t* signs, const std::uint8_t* sizes, std::size_t n,
                const float low_high[2], float* q) {
  for (std::size_t i = 0; i < n; ++i) {
    const float value = low_high[bit_of(sizes, i) ? 1 : 0];
    q[i] = bit_of(signs, i) ? -value : value;
  }
}

int nibble_at(const std::uint8_t* codes, std::size_t i) {
  const int bits = codes[i / 2] >> (i % 2 * 4) & 0xf;
  return (bits ^ 8) - 8;
}

void expand4(const std::uint8_t* codes, std::size_t n, float scale, float* q) {
  for (std::size_t i = 0; i < n; ++i) q[i] = static_cast<float>(nibble_at(codes, i)) * scale;
}

void expand8(const std::uint8_t* codes, std::size_t n, float scale, float* q) {
  for (std::size_t i = 0; i < n; ++i)
    q[i] = static_cast<float>(static_cast<std::int8_t>(codes[i])) * scale;
}

bool has_forbidden4(const std::uint8_t* codes, std::size_t n) {
  bool found = false;
  for (std::size_t i = 0; i < n; ++i) found |= nibble_at(codes, i) == -8;
  return found;
}

bool has_forbidden8(const std::uint8_t* codes, std::size_t n) {
  bool found = false;
  for (std::size_t i = 0; i < n; ++i) found |= codes[i] == 0x80;
  return found;
}

double distance(const float* a, const float* b, std::size_t n) {
  Energy energy;
  for (std::size_t i = 0; i < n; ++i) energy.add(i, b[i] - a[i]);
  return energy.total();
}

double apply(const float* lower, const float* higher, std::size_t n, float factor,
             ReplicaValues to) {
  const auto [x, r] = to;
  Energy energy;
  for (std::size_t i = 0; i < n; ++i) {
    const float apart = higher[i] - lower[i];
    energy.add(i, apart);
    const float after = x[i] + factor * apart;
    x[i] = std::isfinite(after) ? after : x[i];
    r[i] += 0.5F * lower[i];
    r[i] += 0.5F * higher[i];
  }
  return energy.total();
}

double apply_and_clear(float* lower, float* higher, std::size_t n, float factor, ReplicaValues to) {
  const double energy = apply(lower, higher, n, factor, to);
  std::fill_n(lower, n, 0.0F);
  std::fill_n(higher, n, 0.0F);
  return energy;
}

std::uint16_t number(const DenseBlock& block, std::size_t index) {
  std::uint16_t bf16 = 0;
  std::memcpy(&bf16, block.numbers + 2 * index, sizeof(bf16));
  return bf16;
}

void write_signs(const DenseBlock& block, std::size_t n, float* q) {
  expand_signs(block.values, n, from_bf16(number(block, 0)), q);
}

void write_two(const DenseBlock& block, std::size_t n, float* q) {
  const float low_high[2] = {from_bf16(number(block, 1)), from_bf16(number(block, 0))};
  expand_two(block.values, block.values + n / 8, n, low_high, q);
}

template <auto expand, std::size_t bits>
void write_groups(const DenseBlock& block, std::size_t n, float* q) {
  const std::uint8_t* codes = block.values;
  for (std::size_t begin = 0; begin < n; begin += kGroup) {
    const std::size_t values = std::min(kGroup, n - begin);
    const std::uint16_t scale = number(block, begin / kGroup);
    std::fill_n(q + begin, values, 0.0F);
    if (scale == 0) continue;
    expand(codes, values, from_bf16(scale), q + begin);
    codes += values * bits / 8;
  }
}

template <auto write>
double apply_dense(const DenseBlock& lower, const DenseBlock& higher, std::size_t n, float factor,
                   ReplicaValues to) {
  std::array<float, kBlock> low;
  std::array<float, kBlock> high;
  write(lower, n, low.data());
  write(higher, n, high.data());
  return apply(low.data(), high.data(), n, factor, to);
}

void cut_gaps(const std::uint16_t* indices, std::uint32_t k, std::uint32_t b, CutGaps out) {
  std::uint32_t next = 0;
  std::uint32_t sum = 0;
  for (std::uint32_t i = 0; i < k; ++i) {
    const std::uint32_t gap = indices[i] - next;
    next = indices[i] + 1U;
    sum += gap >> b;
    out.remainders[i] = static_cast<std::uint16_t>(gap & ((1U << b) - 1));
    out.places[i] = static_cast<std::uint16_t>(sum + i);
  }
  std::fill_n(out.remainders + k, 8, std::uint16_t{0});
}

void pack_flags(const std::uint8_t* flags, std::size_t n, std::uint8_t* bits) {
  pack(n, bits, [flags](std::size_t i) { return flags[i] != 0; });
}

std::uint32_t join_gaps(const std::uint8_t* bits, const GapRow& row, const std::uint16_t* ones,
                        std::uint16_t* out) {
  std::uint32_t sum = row.sum;
  for (std::uint32_t i = row.begin; i < row.end; ++i) {
    const std::size_t place = row.offset + std::size_t{i} * row.b;
    sum += static_cast<std::uint32_t>(load_bits(bits, place)) & ((1U << row.b) - 1);
    out[i] = static_cast<std::uint16_t>(((ones[i] - i) << row.b) + i + sum);
  }
  return sum;
}

std::uint32_t ones(const std::uint8_t* bits, std::size_t n, std::uint16_t* out) {
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < n; ++i)
    if (bit_of(bits, i)) out[count++] = static_cast<std::uint16_t>(i);
  return count;
}

constexpr Kernels kScalar{difference,
                          difference_select,
                          select,
                          max_abs,
                          kth_largest,
                          sum_and_signs,
                          sum_from,
                          quantize4,
                          quantize8,
                          expand_signs,
                          expand_two,
                          expand4,
                          expand8,
                          has_forbidden4,
                          has_forbidden8,
                          distance,
                          apply,
                          apply_and_clear,
                          apply_dense<write_signs>,
                          apply_dense<write_two>,
                          apply_dense<write_groups<expand4, 4>>,
                          apply_dense<write_groups<expand8, 8>>,
                          cut_gaps,
                          pack_flags,
                          join_gaps,
                          ones};

}  // namespace

const Kernels& scalar_kernels() { return kScalar; }

const Kernels& kernels_of(Isa isa) {
  STARLING_CHECK(is_available(isa));
#ifdef STARLING_X86_KERNELS
  if (isa == Isa::avx2) return avx2_kernels();
  if (isa == Isa::avx512) return avx512_kernels();
#endif
  return scalar_kernels();
}

}  // namespace starling::gossip
