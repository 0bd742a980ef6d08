#include "transport/admission.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace starling::transport {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kAdmissionNow{std::chrono::seconds(10)};

asio::ip::address v4(std::uint32_t number) {
  return asio::ip::make_address_v4(0x0a000000U + number);
}

TEST_SUITE("transport/admission") {
  TEST_CASE("one address has eight places, its neighbour has eight more") {
    Admission admission(1e6);
    for (int i = 0; i < 8; ++i)
      CHECK(admission.admit(kAdmissionNow, v4(1), false).refusal == AdmissionRefusal::none);
    CHECK(admission.admit(kAdmissionNow, v4(1), false).refusal ==
          AdmissionRefusal::address_crowded);
    const auto other = admission.admit(kAdmissionNow, v4(2), false);
    CHECK(other.refusal == AdmissionRefusal::none);
    admission.end(other.ticket);
    admission.end(other.ticket);  // a second time is harmless
    CHECK(admission.size() == 8);
  }

  TEST_CASE("IPv6 addresses of one /56 share their places, mapped IPv4 counts as IPv4") {
    const auto address = [](const char* text) { return group_of(asio::ip::make_address(text)); };
    CHECK(address("2001:db8:0:1200::1") == address("2001:db8:0:12ff:9::9"));
    CHECK(address("2001:db8:0:1200::1") != address("2001:db8:0:1300::1"));
    CHECK(address("::ffff:10.0.0.1") == address("10.0.0.1"));
    CHECK(address("10.0.0.1") != address("10.0.0.2"));
  }

  TEST_CASE("a full house clears the oldest of the most crowded address") {
    Admission admission(1e6);
    const auto first_crowded = admission.admit(kAdmissionNow, v4(500), false).ticket;
    const auto second_crowded = admission.admit(kAdmissionNow, v4(500), false).ticket;
    for (const auto ticket : {first_crowded, second_crowded})
      CHECK(admission.may_answer(kAdmissionNow, ticket));
    for (std::uint32_t i = 0; i < 94; ++i) {
      const auto at = kAdmissionNow + i * 10ms;
      const auto verdict = admission.admit(at, v4(i), false);
      REQUIRE(verdict.refusal == AdmissionRefusal::none);
      REQUIRE(admission.may_answer(at, verdict.ticket));
    }
    CHECK(admission.size() == limits::kMaxUnauthenticated - limits::kUnauthenticatedReserve);
    const auto verdict = admission.admit(kAdmissionNow + 2s, v4(600), false);
    CHECK(verdict.refusal == AdmissionRefusal::none);
    CHECK(verdict.evict == first_crowded);
    CHECK(admission.may_answer(kAdmissionNow + 2s, verdict.ticket));
    CHECK(admission.admit(kAdmissionNow + 2s, v4(601), false).refusal == AdmissionRefusal::full);
    CHECK(admission.admit(kAdmissionNow + 2s, v4(602), true).refusal == AdmissionRefusal::none);
  }

  TEST_CASE("an address that starts too many handshakes waits, loopback does not") {
    Admission admission(20);
    int admitted = 0;
    for (int i = 0; i < 100; ++i) {
      const auto verdict = admission.admit(kAdmissionNow, v4(1), false);
      if (verdict.refusal == AdmissionRefusal::none) {
        ++admitted;
        admission.end(verdict.ticket);
      }
    }
    CHECK(admitted == 40);
    const auto later = admission.admit(kAdmissionNow + 100ms, v4(1), false);
    CHECK(later.refusal == AdmissionRefusal::none);
    // The last is 127.0.0.1 as a node sees it that listens at [::].
    for (const auto* loopback : {"127.0.0.1", "::1", "::ffff:127.0.0.1"}) {
      CAPTURE(loopback);
      for (int i = 0; i < 1000; ++i) {
        const auto verdict =
            admission.admit(kAdmissionNow, asio::ip::make_address(loopback), false);
        REQUIRE(verdict.refusal == AdmissionRefusal::none);
        admission.end(verdict.ticket);
      }
    }
  }

  TEST_CASE("a full house clears the oldest that has not shown that it belongs here") {
    Admission admission(1e6);
    const auto newcomer = admission.admit(kAdmissionNow, v4(500), false).ticket;
    CHECK(admission.may_answer(kAdmissionNow, newcomer));
    std::vector<std::uint64_t> silent;
    for (std::uint32_t i = 0; i < 95; ++i)
      silent.push_back(admission.admit(kAdmissionNow, v4(i), false).ticket);
    const auto verdict = admission.admit(kAdmissionNow + 1ms, v4(600), false);
    CHECK(verdict.refusal == AdmissionRefusal::none);
    CHECK(verdict.evict == silent[0]);
    CHECK_FALSE(admission.may_answer(kAdmissionNow + 2ms, silent[0]));
    CHECK(admission.may_answer(kAdmissionNow + 2ms, verdict.ticket));
    CHECK(admission.size() == 96);
  }

  TEST_CASE("two that proved to belong here, behind one address, do not make room for strangers") {
    Admission admission(1e6);
    for (int i = 0; i < 2; ++i)
      CHECK(admission.may_answer(kAdmissionNow,
                                 admission.admit(kAdmissionNow, v4(500), false).ticket));
    const auto crowd_first = admission.admit(kAdmissionNow, v4(501), false).ticket;
    for (int i = 0; i < 2; ++i)
      CHECK(admission.admit(kAdmissionNow, v4(501), false).refusal == AdmissionRefusal::none);
    const auto silent = admission.admit(kAdmissionNow, v4(0), false).ticket;
    for (std::uint32_t i = 1; i < 91; ++i)
      CHECK(admission.admit(kAdmissionNow, v4(i), false).refusal == AdmissionRefusal::none);
    REQUIRE(admission.size() == limits::kMaxUnauthenticated - limits::kUnauthenticatedReserve);
    for (std::uint32_t i = 0; i < 3; ++i)
      CHECK(admission.admit(kAdmissionNow, v4(600 + i), false).evict == crowd_first + i);
    CHECK(admission.admit(kAdmissionNow, v4(603), false).evict == silent);
  }

  TEST_CASE("all addresses together connect 2,000 times a second, and 200 are answered") {
    Admission admission(1e6);
    std::size_t admitted = 0;
    std::size_t answered = 0;
    for (std::uint32_t i = 0; i < 20'000; ++i) {
      const auto verdict = admission.admit(kAdmissionNow, v4(i), false);
      if (verdict.refusal != AdmissionRefusal::none) continue;
      ++admitted;
      answered += admission.may_answer(kAdmissionNow, verdict.ticket) ? 1U : 0U;
      admission.end(verdict.ticket);
    }
    CHECK(admitted == 2'000);
    CHECK(answered == 200);
  }

  TEST_CASE("strangers without the secret take no answer from a newcomer that has it") {
    Admission admission(20);
    for (std::uint32_t i = 0; i < 10'000; ++i) {
      const auto verdict = admission.admit(kAdmissionNow + i * 1ms, v4(i), false);
      REQUIRE(verdict.refusal == AdmissionRefusal::none);
      if (i % 2 == 0) admission.end(verdict.ticket);  // the others say nothing for 5 s
    }
    const auto newcomer = admission.admit(kAdmissionNow + 10s, v4(100'000), false);
    CHECK(newcomer.refusal == AdmissionRefusal::none);
    CHECK(admission.may_answer(kAdmissionNow + 10s, newcomer.ticket));
  }

  TEST_CASE("a flood from everywhere keeps no address out that was a peer before") {
    Admission admission(20);
    const auto admits = [&](TimePoint now, std::uint32_t number, bool was_peer) {
      const auto verdict = admission.admit(now, v4(number), was_peer);
      const bool answered = admission.may_answer(now, verdict.ticket);
      admission.end(verdict.ticket);
      return verdict.refusal == AdmissionRefusal::none && answered;
    };
    for (std::uint32_t i = 0; i < 20'000; ++i) (void)admits(kAdmissionNow, 1'000 + i, false);
    CHECK_FALSE(admits(kAdmissionNow, 1, false));
    CHECK(admits(kAdmissionNow, 2, true));
    // Its own rate bounds it as before.
    int admitted = 1;
    for (int i = 0; i < 100; ++i) admitted += admits(kAdmissionNow, 2, true) ? 1 : 0;
    CHECK(admitted == 40);
  }
}

TEST_SUITE("transport/rate") {
  TEST_CASE("a bucket gives its burst at once and its rate over time") {
    TokenBucket bucket(10, 5);
    int taken = 0;
    while (bucket.try_take(kAdmissionNow)) ++taken;
    CHECK(taken == 5);
    CHECK_FALSE(bucket.try_take(kAdmissionNow + 50ms));
    CHECK(bucket.try_take(kAdmissionNow + 100ms));
    CHECK_FALSE(bucket.try_take(kAdmissionNow));  // a clock that steps back adds nothing
    CHECK_FALSE(bucket.full(kAdmissionNow + 200ms));
    CHECK(bucket.full(kAdmissionNow + 10s));
  }
}

}  // namespace
}  // namespace starling::transport
