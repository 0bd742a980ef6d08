// Crews for tests on a CPU: one thread that handles item after item, and as many threads as a GPU's
// thread block has, with its warps and barriers.
#pragma once

#include "training/cuda/crew.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace starling::training::cuda {

// In which order a phase handles its items: what it computes must not depend on it.
enum class ItemOrder : std::uint8_t { rising, falling };

// One thread.
class SerialCrew {
 public:
  explicit SerialCrew(ItemOrder order = ItemOrder::rising) : order_(order) {}

  template <class Visit>
  void each(std::uint32_t n, Visit visit) {
    for (std::uint32_t i = 0; i < n; ++i) visit(order_ == ItemOrder::rising ? i : n - 1 - i);
  }
  template <class Act>
  void once(Act act) {
    act();
  }
  template <class T, class Value>
  T sum(std::uint32_t n, Value value) {
    T all{};
    each(n, [&](std::uint32_t i) { all += value(i); });
    return all;
  }
  template <class Value>
  std::uint32_t largest(std::uint32_t n, Value value) {
    std::uint32_t all = 0;
    each(n, [&](std::uint32_t i) { all = std::max(all, static_cast<std::uint32_t>(value(i))); });
    return all;
  }
  template <class Value, class Visit>
  std::uint32_t running_sum(std::uint32_t n, Value value, Visit visit) {
    std::vector<std::uint32_t> before(n + std::size_t{1});
    for (std::uint32_t i = 0; i < n; ++i) before[i + 1] = before[i] + value(i);
    each(n, [&](std::uint32_t i) { visit(i, before[i], before[i + 1] - before[i]); });
    return before[n];
  }
  static std::uint32_t largest_of(std::uint32_t own) { return own; }
  template <class Test, class Visit>
  std::uint32_t running_count(std::uint32_t n, Test test, Visit visit) {
    return running_sum(
        n, [&](std::uint32_t i) { return test(i) ? 1U : 0U; },
        [&](std::uint32_t i, std::uint32_t before, std::uint32_t own) {
          if (own != 0) visit(i, before);
        });
  }
  template <class Test, class Visit>
  void count_each(std::uint32_t n, Test test, Visit visit) {
    each(n, [&](std::uint32_t i) {
      std::uint32_t count = 0;
      for (std::uint32_t j = 0; j < n; ++j) count += test(i, j) ? 1 : 0;
      visit(i, count);
    });
  }
  template <class Test>
  void put_plane(std::uint32_t n, std::uint8_t* out, Test test) {
    for (std::uint32_t i = 0; i < n; i += 8) {
      unsigned byte = 0;
      for (unsigned bit = 0; bit < 8; ++bit) byte |= test(i + bit) ? 1U << bit : 0U;
      out[i / 8] = static_cast<std::uint8_t>(byte);
    }
  }
  void add(std::uint32_t& where, std::uint32_t n) { where += n; }
  void set_bits(std::uint32_t& where, std::uint32_t bits) { where |= bits; }

 private:
  ItemOrder order_;
};

// What the threads of one emulated thread block share.
struct EmulatedBlock {
  explicit EmulatedBlock(unsigned threads) : all(threads), exchanged(threads) {
    for (unsigned w = 0; w < threads / kWarp; ++w)
      warps.push_back(std::make_unique<std::barrier<>>(kWarp));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<std::uint64_t> exchanged;
};

// One thread of an emulated thread block.
class EmulatedThreads {
 public:
  EmulatedThreads(EmulatedBlock& block, unsigned index) : block_(block), index_(index) {}

  [[nodiscard]] unsigned index() const { return index_; }
  [[nodiscard]] unsigned count() const { return static_cast<unsigned>(block_.exchanged.size()); }
  void barrier() { block_.all.arrive_and_wait(); }
  template <class T>
  T value_from_above(T value, unsigned far) {
    return exchange(value, index_ % kWarp + far < kWarp ? index_ + far : index_);
  }
  template <class T>
  T value_from_below(T value, unsigned far) {
    return exchange(value, index_ % kWarp >= far ? index_ - far : index_);
  }
  template <class T>
  T value_of(T value, unsigned lane) {
    return exchange(value, index_ / kWarp * kWarp + lane);
  }
  std::uint32_t votes(bool vote) {
    std::barrier<>& warp = *block_.warps[index_ / kWarp];
    block_.exchanged[index_] = vote ? 1 : 0;
    warp.arrive_and_wait();
    std::uint32_t all = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane)
      all |= static_cast<std::uint32_t>(block_.exchanged[index_ / kWarp * kWarp + lane]) << lane;
    warp.arrive_and_wait();
    return all;
  }
  void add(std::uint32_t& where, std::uint32_t n) { std::atomic_ref(where).fetch_add(n); }
  void set_bits(std::uint32_t& where, std::uint32_t bits) { std::atomic_ref(where).fetch_or(bits); }

 private:
  template <class T>
  T exchange(T value, unsigned from) {
    std::barrier<>& warp = *block_.warps[index_ / kWarp];
    std::memcpy(&block_.exchanged[index_], &value, sizeof(value));
    warp.arrive_and_wait();
    T other{};
    std::memcpy(&other, &block_.exchanged[from], sizeof(other));
    warp.arrive_and_wait();
    return other;
  }

  EmulatedBlock& block_;
  unsigned index_;
};

using EmulatedCrew = ThreadCrew<EmulatedThreads>;

// Runs body(crew) on every thread of one emulated thread block.
template <class Body>
void run_emulated(unsigned threads, Body body) {
  EmulatedBlock block(threads);
  CrewMemory memory;
  std::vector<std::jthread> running;
  for (unsigned i = 0; i < threads; ++i) {
    running.emplace_back([&block, &memory, &body, i] {
      EmulatedThreads own(block, i);
      EmulatedCrew crew(own, memory);
      body(crew);
    });
  }
}

}  // namespace starling::training::cuda
