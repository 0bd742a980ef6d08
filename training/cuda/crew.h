// Crew: the threads of one thread block, or of one of its warps, as a kernel body sees them.
//
// A body is a function over an abstract crew: phases in which every item is handled once, by
// whichever thread, with a barrier behind each; sums, maxima and running sums over all items. The
// same source runs on a GPU, item by item on a CPU, and on a CPU with a real thread for each of a
// GPU's, where the thread sanitizer sees a missing barrier. So what a body computes is proven on
// machines without a GPU, and only the launch is left to one.
//
// Headers of this folder that a .cu file includes are C++20, without Result and without torch.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define STARLING_BOTH __host__ __device__
#define STARLING_DEVICE __device__
#define STARLING_NO_UNROLL _Pragma("unroll 1")
// Before a loop over an array that is to be in registers.
#define STARLING_UNROLL _Pragma("unroll")
#else
#define STARLING_BOTH
#define STARLING_DEVICE
#define STARLING_NO_UNROLL
#define STARLING_UNROLL
#endif

namespace starling::training::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kMostThreads = 1'024;

// What a crew needs of the memory that its threads share.
struct CrewMemory {
  alignas(8) std::uint8_t parts[kMostThreads / kWarp * 8];
};

// A crew of `Threads`: the hardware, or what stands in for it. Every function must be reached by
// all threads, with the same n; functions that are passed in may be called by any of them.
//
// Threads offers: index(), count() (whole warps), barrier(), and within a warp value_from_above(v,
// n) and value_from_below(v, n): v of the lane n further up or down (any value where there is
// none), value_of(v, lane), votes(b): a bit for each lane whose b is true; add(where, n),
// set_bits(where, bits): atomic, on memory that the crew shares.
//
// Rule:    sums are summed in an order that n and the number of threads decide, so even doubles
//          give the same bits every time.
template <class Threads>
class ThreadCrew {
 public:
  STARLING_DEVICE ThreadCrew(Threads& threads, CrewMemory& memory)
      : threads_(threads), memory_(memory) {}

  // f(i) for i in [0, n).
  template <class Visit>
  STARLING_DEVICE void each(std::uint32_t n, Visit visit) {
    for (std::uint32_t i = threads_.index(); i < n; i += threads_.count()) visit(i);
    threads_.barrier();
  }

  // f() by one thread.
  template <class Act>
  STARLING_DEVICE void once(Act act) {
    if (threads_.index() == 0) act();
    threads_.barrier();
  }

  // The sum of value(i), known to all.
  template <class T, class Value>
  STARLING_DEVICE T sum(std::uint32_t n, Value value) {
    T own{};
    for (std::uint32_t i = threads_.index(); i < n; i += threads_.count()) own += value(i);
    const auto add = [](T a, T b) { return a + b; };
    own = part_of_warp(in_first_lane(own, add));
    return threads_.value_of(in_first_lane(own, add), 0);
  }

  // The largest value(i), or 0, known to all.
  template <class Value>
  STARLING_DEVICE std::uint32_t largest(std::uint32_t n, Value value) {
    std::uint32_t own = 0;
    for (std::uint32_t i = threads_.index(); i < n; i += threads_.count())
      own = more(own, value(i));
    return largest_of(own);
  }
  // The largest of what each thread has, known to all.
  STARLING_DEVICE std::uint32_t largest_of(std::uint32_t own) {
    own = part_of_warp(in_first_lane(own, more));
    return threads_.value_of(in_first_lane(own, more), 0);
  }

  // visit(i, before, value(i)) for i in [0, n), `before` being the sum of value(j) for all j < i;
  // returns the sum of all. value(i) is asked twice, and what visit() changes must not matter to
  // it. Each warp has a stretch of its own, so that the crew meets three times, however many items.
  // Rows are few, and code that is seldom run is best short: a kernel shall fit into the cache.
  template <class Value, class Visit>
  STARLING_DEVICE std::uint32_t running_sum(std::uint32_t n, Value value, Visit visit) {
    const Stretch stretch = stretch_of(n);
    std::uint32_t own = 0;  // of this lane's items
    STARLING_NO_UNROLL
    for (std::uint32_t i = stretch.begin + lane(); i < stretch.end; i += kWarp) own += value(i);
    own = in_first_lane(own, [](std::uint32_t a, std::uint32_t b) { return a + b; });
    auto [before, all] = sums_of_warps(own);
    STARLING_NO_UNROLL
    for (std::uint32_t row = stretch.begin; row < stretch.end; row += kWarp) {
      const std::uint32_t i = row + lane();
      const std::uint32_t value_here = i < n ? value(i) : 0;
      const std::uint32_t upto = sum_up_to_lane(value_here);  // in this row
      if (i < n) visit(i, before + upto - value_here, value_here);
      before += threads_.value_of(upto, kWarp - 1);
    }
    threads_.barrier();
    return all;
  }

  // The same where values are 0 or 1: visit(i, before) for those i in [0, n) that pass the test.
  template <class Test, class Visit>
  STARLING_DEVICE std::uint32_t running_count(std::uint32_t n, Test test, Visit visit) {
    const Stretch stretch = stretch_of(n);
    std::uint32_t own = 0;  // of this warp
    STARLING_NO_UNROLL
    for (std::uint32_t row = stretch.begin; row < stretch.end; row += kWarp)
      own += count_ones(threads_.votes(row + lane() < n && test(row + lane())));
    auto [before, all] = sums_of_warps(own);
    STARLING_NO_UNROLL
    for (std::uint32_t row = stretch.begin; row < stretch.end; row += kWarp) {
      const std::uint32_t i = row + lane();
      const bool passes = i < n && test(i);
      const std::uint32_t votes = threads_.votes(passes);
      if (passes) visit(i, before + count_ones(votes & ((1U << lane()) - 1)));
      before += count_ones(votes);
    }
    threads_.barrier();
    return all;
  }

  // visit(i, how many j in [0, n) pass test(i, j)) for i in [0, n).
  template <class Test, class Visit>
  STARLING_DEVICE void count_each(std::uint32_t n, Test test, Visit visit) {
    const unsigned warps = threads_.count() / kWarp;
    STARLING_NO_UNROLL
    for (std::uint32_t i = threads_.index() / kWarp; i < n; i += warps) {
      std::uint32_t count = 0;
      for (std::uint32_t j = lane(); j < n + lane(); j += kWarp)
        count += count_ones(threads_.votes(j < n && test(i, j)));
      if (lane() == 0) visit(i, count);
    }
    threads_.barrier();
  }

  // A bit for each of n values, eight a byte; n is a multiple of eight.
  template <class Test>
  STARLING_DEVICE void put_plane(std::uint32_t n, std::uint8_t* out, Test test) {
    const Stretch stretch = stretch_of(n);
    STARLING_NO_UNROLL
    for (std::uint32_t row = stretch.begin; row < stretch.end; row += kWarp) {
      const std::uint32_t votes = threads_.votes(row + lane() < n && test(row + lane()));
      const std::uint32_t byte = row / 8 + lane();
      if (lane() < kWarp / 8 && byte < n / 8)
        out[byte] = static_cast<std::uint8_t>(votes >> (8 * lane()));
    }
    threads_.barrier();
  }

  // Atomic, on memory that the crew shares: for counts and bits, whose order does not matter.
  STARLING_DEVICE void add(std::uint32_t& where, std::uint32_t n) { threads_.add(where, n); }
  STARLING_DEVICE void set_bits(std::uint32_t& where, std::uint32_t bits) {
    threads_.set_bits(where, bits);
  }

 private:
  STARLING_DEVICE static std::uint32_t more(std::uint32_t a, std::uint32_t b) {
    return a > b ? a : b;
  }
  STARLING_DEVICE static std::uint32_t count_ones(std::uint32_t bits) {
    return static_cast<std::uint32_t>(std::popcount(bits));
  }
  STARLING_DEVICE unsigned lane() const { return threads_.index() % kWarp; }

  // This warp's share of n items: all lanes take part in each row of kWarp from `begin` on.
  struct Stretch {
    std::uint32_t begin;
    std::uint32_t end;
  };
  STARLING_DEVICE Stretch stretch_of(std::uint32_t n) const {
    const std::uint32_t length = (n + threads_.count() - 1) / threads_.count() * kWarp;
    const std::uint32_t begin = threads_.index() / kWarp * length;
    return {begin, begin + length < n ? begin + length : n};
  }
  // What the first lanes of all warps have, added up: of the warps before this one, and of all.
  struct Sums {
    std::uint32_t before;
    std::uint32_t all;
  };
  STARLING_DEVICE Sums sums_of_warps(std::uint32_t own) {
    const std::uint32_t part = part_of_warp(own);
    const std::uint32_t upto = sum_up_to_lane(part);
    return {threads_.value_of(upto - part, threads_.index() / kWarp),
            threads_.value_of(upto, kWarp - 1)};
  }

  // All lanes' values, joined in the first lane; others have any value.
  template <class T, class Join>
  STARLING_DEVICE T in_first_lane(T own, Join join) {
    for (unsigned far = kWarp / 2; far > 0; far /= 2)
      own = join(own, threads_.value_from_above(own, far));
    return own;
  }
  // The sum of what this lane and those below it have.
  STARLING_DEVICE std::uint32_t sum_up_to_lane(std::uint32_t own) {
    for (unsigned far = 1; far < kWarp; far *= 2) {
      const std::uint32_t below = threads_.value_from_below(own, far);
      if (lane() >= far) own += below;
    }
    return own;
  }
  // For lane i of every warp: what the first lane of warp i has, or 0.
  template <class T>
  STARLING_DEVICE T part_of_warp(T own) {
    static_assert(sizeof(T) <= 8);
    T* const parts = reinterpret_cast<T*>(memory_.parts);
    if (lane() == 0) parts[threads_.index() / kWarp] = own;
    threads_.barrier();
    const T part = lane() < threads_.count() / kWarp ? parts[lane()] : T{};
    threads_.barrier();
    return part;
  }

  Threads& threads_;
  CrewMemory& memory_;
};

}  // namespace starling::training::cuda
