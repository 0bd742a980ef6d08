// The crew of a GPU on emulated threads: what it adds up, and in which order it hands out.
#include "tests/training/cuda/crews.h"

#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <vector>

using namespace starling::training::cuda;

namespace {

constexpr std::uint32_t kItems = 300;  // no multiple of the threads
constexpr std::uint32_t kWholeBytes = kItems / 8;

std::uint32_t value_of(std::uint32_t i) { return i * 2'654'435'761U % 7; }

// What every function of a crew makes of the same items.
struct Found {
  std::vector<std::uint32_t> visited = std::vector<std::uint32_t>(kItems);
  std::vector<std::uint32_t> before = std::vector<std::uint32_t>(kItems);
  std::array<std::uint32_t, 7> counts{};
  std::uint32_t bits = 0;
  std::uint64_t sum = 0;
  double doubles = 0;
  std::uint32_t largest = 0;
  std::uint32_t total = 0;
  std::vector<std::uint32_t> odd = std::vector<std::uint32_t>(kItems);
  std::uint32_t odd_count = 0;
  std::array<std::uint8_t, kWholeBytes> odd_bits{};
  std::vector<std::uint32_t> smaller = std::vector<std::uint32_t>(kItems);
  friend bool operator==(const Found&, const Found&) = default;
};

template <class Crew>
void find(Crew& crew, Found& found) {
  crew.each(kItems, [&](std::uint32_t i) { ++found.visited[i]; });
  const auto sum = crew.template sum<std::uint64_t>(
      kItems, [](std::uint32_t i) { return std::uint64_t{value_of(i)} << 40; });
  const auto doubles = crew.template sum<double>(kItems, [](std::uint32_t i) { return i * 0.5; });
  const auto largest = crew.largest(kItems, [](std::uint32_t i) { return value_of(i); });
  const auto total = crew.running_sum(
      kItems, [](std::uint32_t i) { return value_of(i); },
      [&](std::uint32_t i, std::uint32_t before, std::uint32_t) { found.before[i] = before; });
  const auto odd_count = crew.running_count(
      kItems, [](std::uint32_t i) { return value_of(i) % 2 == 1; },
      [&](std::uint32_t i, std::uint32_t before) { found.odd[before] = i; });
  crew.count_each(
      kItems, [](std::uint32_t i, std::uint32_t j) { return value_of(j) < value_of(i); },
      [&](std::uint32_t i, std::uint32_t count) { found.smaller[i] = count; });
  crew.put_plane(8 * kWholeBytes, found.odd_bits.data(),
                 [](std::uint32_t i) { return value_of(i) % 2 == 1; });
  crew.each(kItems, [&](std::uint32_t i) {
    crew.add(found.counts[value_of(i)], 1);
    crew.set_bits(found.bits, 1U << value_of(i));
  });
  crew.once([&] {
    found.sum = sum;
    found.doubles = doubles;
    found.largest = largest;
    found.total = total;
    found.odd_count = odd_count;
  });
}

Found expected() {
  Found found;
  for (std::uint32_t i = 0; i < kItems; ++i) {
    found.visited[i] = 1;
    found.before[i] = found.total;
    found.total += value_of(i);
    if (value_of(i) % 2 == 1) found.odd[found.odd_count++] = i;
    for (std::uint32_t j = 0; j < kItems; ++j)
      if (value_of(j) < value_of(i)) ++found.smaller[i];
    if (value_of(i) % 2 == 1 && i < 8 * kWholeBytes)
      found.odd_bits[i / 8] = static_cast<std::uint8_t>(found.odd_bits[i / 8] | 1U << i % 8);
    found.sum += std::uint64_t{value_of(i)} << 40;
    found.doubles += i * 0.5;
    found.largest = std::max(found.largest, value_of(i));
    ++found.counts[value_of(i)];
    found.bits |= 1U << value_of(i);
  }
  return found;
}

}  // namespace

TEST_SUITE("training/cuda/crew") {
  TEST_CASE("one thread, 32 and 96 find the same sums, maxima and running sums") {
    for (const ItemOrder order : {ItemOrder::rising, ItemOrder::falling}) {
      Found found;
      SerialCrew crew(order);
      find(crew, found);
      CHECK(found == expected());
    }
    for (const unsigned threads : {32U, 96U}) {
      CAPTURE(threads);
      Found found;
      run_emulated(threads, [&](EmulatedCrew& crew) { find(crew, found); });
      CHECK(found == expected());
    }
  }
}
