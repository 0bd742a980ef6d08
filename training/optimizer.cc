#include "training/optimizer.h"

#include "node/base/check.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace starling::training {
namespace {

// Restrict-qualified pointers tell the compiler that the ranges do not overlap.
template <class G, class W>
struct Pointers {
  float* __restrict x;
  const G* __restrict g;
  float* __restrict v;
  W* __restrict w;
};

constexpr std::uint32_t kFloatExponent = 0x7f80'0000U;
constexpr std::uint16_t kBf16Exponent = 0x7f80U;
// Values that are handled together, few enough for the first-level cache.
constexpr std::size_t kStretch = 4'096;

// Values between two decisions about memory: whole lines of every type.
constexpr std::size_t kPatch = 128;
constexpr std::size_t kLine = 64;
// A working copy of so many bytes is out of the caches before the next step reads it, or puts out
// of them what is needed sooner. It goes past them: a store would read each line first.
constexpr std::size_t kPastCaches = std::size_t{8} << 20;

// Values between a walk and what it asks for, 0 where it does not ask: the same for the life of the
// process. An Intel processor's own prefetcher stops at each page of 4 KiB of each stream, and one
// core waits for memory at every one of them: asking a page ahead makes the pass 1.14 times as fast
// (Xeon, 2026-11-23). AMD's goes on, and asking costs time: without it and past the caches
// `starling bench optim` takes 10.4 ms instead of 12.8 (bf16, EPYC with AVX-512, 2026-11-24).
std::size_t values_ahead() {
#if defined(__x86_64__)
  constexpr std::size_t kPage = 4'096;
  static const std::size_t values = __builtin_cpu_is("intel") != 0 ? kPage / sizeof(float) : 0;
  return values;
#else
  return 0;
#endif
}

// How a pass treats memory. The values are the same.
struct Ways {
  std::size_t ahead = values_ahead();
  bool past_caches = false;
};

// What is asked for behind the end is never read.
template <class T>
[[gnu::always_inline]] inline void ask_for_patch(const T* values) {
  const auto* bytes = reinterpret_cast<const char*>(values);
  for (std::size_t at = 0; at < kPatch * sizeof(T); at += kLine) __builtin_prefetch(bytes + at);
}

// Copies whole patches past the caches; `to` begins at a multiple of 16 bytes.
template <class W>
[[gnu::always_inline]] inline void stream_patch(const W* from, W* to) {
#if defined(__x86_64__)
  for (std::size_t at = 0; at < kPatch * sizeof(W); at += sizeof(__m128i)) {
    const __m128i bytes =
        _mm_load_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const char*>(from) + at));
    _mm_stream_si128(reinterpret_cast<__m128i*>(reinterpret_cast<char*>(to) + at), bytes);
  }
#else
  std::copy_n(from, kPatch, to);
#endif
}

// After it, other threads that see what this one does next see what went past the caches, too.
inline void end_of_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

[[gnu::always_inline]] inline float as_float(float value) { return value; }
[[gnu::always_inline]] inline float as_float(Bf16 value) { return to_float(value); }
[[gnu::always_inline]] inline void round_to(float value, float& out) { out = value; }
[[gnu::always_inline]] inline void round_to(float value, Bf16& out) { out = to_bf16(value); }

// The rule of sgd_pass() on n values, inlined into each function that is compiled for several
// processors.
template <class G, class W>
[[gnu::always_inline]] inline void walk(const Pointers<G, W>& p, std::size_t n, const SgdStep& step,
                                        const Ways& ways) {
  const auto [x, g, v, w] = p;
  const auto [rate, momentum, decay] = step;
  alignas(kLine) std::array<std::byte, kPatch * sizeof(W)> memory;  // clones call no constructor
  W* const patch = reinterpret_cast<W*>(memory.data());
  for (std::size_t at = 0; at < n; at += kPatch) {
    if (ways.ahead > 0) {
      ask_for_patch(x + at + ways.ahead);
      ask_for_patch(g + at + ways.ahead);
      ask_for_patch(v + at + ways.ahead);
      if (!ways.past_caches) ask_for_patch(w + at + ways.ahead);
    }
    const std::size_t end = std::min(n, at + kPatch);
    const bool streams = ways.past_caches && end - at == kPatch;
    W* __restrict out = streams ? patch : w + at;
    for (std::size_t i = at; i < end; ++i) {
      const float d = as_float(g[i]) + decay * x[i];
      const float velocity = momentum * v[i] + d;
      const float moved = x[i] - rate * (d + momentum * velocity);
      v[i] = velocity;
      x[i] = moved;
      round_to(moved, out[i - at]);
    }
    if (streams) stream_patch(patch, w + at);
  }
}

STARLING_WIDE void pass(const Pointers<float, float>& p, std::size_t n, const SgdStep& step,
                        const Ways& ways) {
  walk(p, n, step, ways);
}
STARLING_WIDE void pass(const Pointers<Bf16, Bf16>& p, std::size_t n, const SgdStep& step,
                        const Ways& ways) {
  walk(p, n, step, ways);
}
STARLING_WIDE void pass(const Pointers<float, Bf16>& p, std::size_t n, const SgdStep& step,
                        const Ways& ways) {
  walk(p, n, step, ways);
}

template <class G>
[[gnu::always_inline]] inline void add_values(const G* __restrict g, std::size_t n,
                                              std::size_t ahead, float* __restrict sum) {
  for (std::size_t at = 0; at < n; at += kPatch) {
    if (ahead > 0) ask_for_patch(g + at + ahead);
    const std::size_t end = std::min(n, at + kPatch);
    for (std::size_t i = at; i < end; ++i) sum[i] += as_float(g[i]);
  }
}

STARLING_WIDE void add_to(const float* __restrict g, std::size_t n, std::size_t ahead,
                          float* __restrict sum) {
  add_values(g, n, ahead, sum);
}
STARLING_WIDE void add_to(const Bf16* __restrict g, std::size_t n, std::size_t ahead,
                          float* __restrict sum) {
  add_values(g, n, ahead, sum);
}

// Sums the gradients of all slices stretch by stretch, in the first-level cache.
template <class T>
void pass_of_many(const SgdRange<T>& range, const SgdStep& step, const Ways& ways) {
  std::array<float, kStretch> sum;
  for (std::size_t at = 0; at < range.parameters.size(); at += kStretch) {
    const std::size_t n = std::min(kStretch, range.parameters.size() - at);
    std::fill_n(sum.data(), n, 0.0F);
    add_to(range.gradients.data() + at, n, ways.ahead, sum.data());
    for (const std::span<const T>& more : range.more_gradients) {
      add_to(more.data() + at, n, ways.ahead, sum.data());
    }
    pass(Pointers<float, T>{range.parameters.data() + at, sum.data(), range.momenta.data() + at,
                            range.working.data() + at},
         n, step, ways);
  }
}

template <class T>
void checked_pass(const SgdRange<T>& range, const SgdStep& step) {
  STARLING_CHECK_OP(range.parameters.size(), ==, range.gradients.size());
  STARLING_CHECK_OP(range.parameters.size(), ==, range.momenta.size());
  STARLING_CHECK_OP(range.parameters.size(), ==, range.working.size());
  for (const std::span<const T>& more : range.more_gradients) {
    STARLING_CHECK_OP(range.parameters.size(), ==, more.size());
  }
  const bool aligned = reinterpret_cast<std::uintptr_t>(range.working.data()) % 16 == 0;
  const Ways ways{.past_caches = aligned && range.working.size_bytes() >= kPastCaches};
  if (range.more_gradients.empty()) {
    pass(Pointers<T, T>{range.parameters.data(), range.gradients.data(), range.momenta.data(),
                        range.working.data()},
         range.parameters.size(), step, ways);
  } else {
    pass_of_many(range, step, ways);
  }
  if (ways.past_caches) end_of_streams();
}

STARLING_WIDE bool finite_floats(const float* values, std::size_t n) {
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    bad |= static_cast<std::uint32_t>((bits & kFloatExponent) == kFloatExponent);
  }
  return bad == 0;
}

STARLING_WIDE bool finite_bf16s(const Bf16* values, std::size_t n) {
  std::uint16_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const bool special = (values[i].bits & kBf16Exponent) == kBf16Exponent;
    bad = static_cast<std::uint16_t>(bad | static_cast<std::uint16_t>(special));
  }
  return bad == 0;
}

// Stops at the first stretch that holds a bad value.
template <class T, class Test>
bool all_stretches(std::span<const T> values, Test test) {
  for (std::size_t at = 0; at < values.size(); at += kStretch) {
    const std::size_t length = std::min(kStretch, values.size() - at);
    if (!test(values.data() + at, length)) return false;
  }
  return true;
}

}  // namespace

void sgd_pass(const SgdRange<float>& range, const SgdStep& step) { checked_pass(range, step); }

void sgd_pass(const SgdRange<Bf16>& range, const SgdStep& step) { checked_pass(range, step); }

bool all_finite(std::span<const float> values) { return all_stretches(values, finite_floats); }
bool all_finite(std::span<const Bf16> values) { return all_stretches(values, finite_bf16s); }

void write_working_copy(std::span<const float> parameters, std::span<float> working) {
  STARLING_CHECK_OP(parameters.size(), ==, working.size());
  std::ranges::copy(parameters, working.begin());
}

void write_working_copy(std::span<const float> parameters, std::span<Bf16> working) {
  STARLING_CHECK_OP(parameters.size(), ==, working.size());
  std::ranges::transform(parameters, working.begin(), [](float value) { return to_bf16(value); });
}

}  // namespace starling::training
