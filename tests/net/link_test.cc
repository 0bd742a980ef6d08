#include "tests/net/link.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace starling::lab {
namespace {

constexpr TimePoint kStart{std::chrono::seconds(100)};
constexpr int kFrames = 10'000;

Frame frame_of(std::size_t size) { return Frame(size, std::byte{7}); }

LinkFaults faults_of(std::initializer_list<std::pair<std::string_view, std::string_view>> named) {
  LinkFaults faults;
  for (const auto& [name, value] : named) REQUIRE(set_fault(faults, name, value));
  return faults;
}

// What comes out of a link into which so many frames go at once.
std::vector<Passing> passed(const LinkFaults& faults, int frames, std::size_t size = 1'000) {
  Rng rng(1);
  Link link;
  (void)link.set(kStart, faults, rng);
  std::vector<Passing> all;
  for (int k = 0; k < frames; ++k)
    std::ranges::move(link.pass(kStart, frame_of(size), rng), std::back_inserter(all));
  return all;
}

}  // namespace

TEST_SUITE("net/link") {
  TEST_CASE("a link without faults passes every frame at once and unchanged") {
    const auto out = passed({}, 10);

    REQUIRE(out.size() == 10);
    for (const auto& one : out) {
      CHECK(one.due == kStart);
      CHECK(one.frame == frame_of(1'000));
    }
  }

  TEST_CASE("loss, duplicates, reordering and corruption come as often as they are set") {
    const auto lost = passed(faults_of({{"loss", "0.2"}}), kFrames);
    const auto doubled = passed(faults_of({{"duplicate", "0.1"}}), kFrames);
    const auto reordered = passed(faults_of({{"delay_ms", "50"}, {"reorder", "0.1"}}), kFrames);
    const auto corrupted = passed(faults_of({{"corrupt", "0.1"}}), kFrames);

    // Five standard deviations of 10,000 draws are at most 200.
    CHECK(std::abs(static_cast<int>(lost.size()) - 8'000) < 200);
    CHECK(std::abs(static_cast<int>(doubled.size()) - 11'000) < 200);
    CHECK(std::abs(std::ranges::count(reordered, kStart, &Passing::due) - 1'000) < 200);
    const auto whole = std::ranges::count(corrupted, frame_of(1'000), &Passing::frame);
    CHECK(std::abs(whole - 9'000) < 200);
  }

  TEST_CASE("delays lie within the jitter") {
    const auto out = passed(faults_of({{"delay_ms", "50"}, {"jitter_ms", "20"}}), kFrames);

    const auto [first, last] = std::ranges::minmax(out, {}, &Passing::due);
    CHECK(first.due >= kStart + std::chrono::milliseconds(30));
    CHECK(first.due < kStart + std::chrono::milliseconds(31));
    CHECK(last.due <= kStart + std::chrono::milliseconds(70));
    CHECK(last.due > kStart + std::chrono::milliseconds(69));
  }

  TEST_CASE("a rate spaces frames out and drops what would wait too long") {
    // 1,000 bytes at 8 Mbit/s are 1 ms.
    const auto out = passed(faults_of({{"rate_kbit", "8000"}, {"queue_ms", "20"}}), 100);

    REQUIRE(out.size() == 21);
    CHECK(out.front().due == kStart + std::chrono::milliseconds(1));
    CHECK(out.back().due == kStart + std::chrono::milliseconds(21));
  }

  TEST_CASE("a pause holds frames back in their order, a cut loses them") {
    Rng rng(1);
    Link link;
    (void)link.set(kStart, faults_of({{"paused", "1"}}), rng);
    CHECK(link.pass(kStart, frame_of(1), rng).empty());
    CHECK(link.pass(kStart, frame_of(2), rng).empty());

    const auto later = kStart + std::chrono::seconds(5);
    const auto released = link.set(later, {}, rng);
    (void)link.set(later, faults_of({{"cut", "1"}}), rng);

    REQUIRE(released.size() == 2);
    CHECK(released[0].frame.size() == 1);
    CHECK(released[1].due == later);
    CHECK(link.pass(later, frame_of(3), rng).empty());
    CHECK(link.set(later, {}, rng).empty());
  }

  TEST_CASE("a fault that there is not, or out of its bounds, is refused and changes nothing") {
    LinkFaults faults;

    CHECK(!set_fault(faults, "magic", "1"));
    CHECK(!set_fault(faults, "loss", "1.5"));
    CHECK(!set_fault(faults, "loss", "-0.1"));
    CHECK(!set_fault(faults, "loss", "nan"));
    CHECK(!set_fault(faults, "loss", ""));
    CHECK(!set_fault(faults, "cut", "2"));
    CHECK(faults.loss == 0);
  }
}

}  // namespace starling::lab
