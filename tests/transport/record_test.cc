#include "transport/record.h"

#include "node/base/hash.h"
#include "node/base/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace starling::transport {
namespace {

noise::CipherState cipher() {
  noise::CipherState state;
  state.set_key(noise::Key{std::byte{0x42}});
  return state;
}

Record record_of(RecordType type, std::size_t size) {
  Record record;
  record.type = type;
  record.head.resize(size);
  for (std::size_t i = 0; i < size; ++i) record.head[i] = static_cast<std::byte>(i & 0xffU);
  return record;
}

struct Opened {
  std::vector<std::size_t> sizes;
  bool failed = false;
};

Opened open_all(RecordOpener& opener) {
  Opened opened;
  while (true) {
    const auto next = opener.next();
    if (!next) {
      opened.failed = true;
      return opened;
    }
    if (!*next) return opened;
    opened.sizes.push_back((*next)->body.size());
  }
}

TEST_SUITE("transport/record") {
  TEST_CASE("records survive any fragmentation of the byte stream") {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      RecordSealer sealer(cipher());
      RecordOpener opener(cipher());
      Bytes stream;
      std::vector<std::size_t> sent;
      for (int i = 0; i < 20; ++i) {
        const auto size = rng.chance(0.2) ? rng.below(limits::kMaxRecordBody + 1) : rng.below(300);
        sent.push_back(size);
        sealer.seal(record_of(RecordType::message, size), stream);
      }
      std::vector<std::size_t> received;
      ByteView rest = stream;
      while (!rest.empty()) {
        const auto size = std::min<std::size_t>(rest.size(), 1 + rng.below(20'000));
        opener.feed(rest.first(size));
        rest = rest.subspan(size);
        const auto opened = open_all(opener);
        REQUIRE_FALSE(opened.failed);
        received.insert(received.end(), opened.sizes.begin(), opened.sizes.end());
      }
      CHECK(received == sent);
      CHECK(opener.pending() == 0);
    }
  }

  TEST_CASE("the bytes of a stream with two rekeys are what record_vectors.py computes") {
    RecordSealer sealer(cipher());
    Hasher hasher;
    for (std::size_t size = 0; size < 2500; ++size) {
      Bytes stream;
      sealer.seal(record_of(RecordType::message, size), stream);
      hasher.add(stream);
    }
    CHECK(to_hex(hasher.finish().view()) ==
          "c0e25863efa920f0f8169a55e486e33e3405b32b7b183ed95697501f55082080");
  }

  TEST_CASE("both directions of keys stay together over thousands of records") {
    RecordSealer sealer(cipher());
    RecordOpener opener(cipher());
    for (std::uint64_t i = 0; i < 3 * limits::kRekeyRecords + 1; ++i) {
      Bytes stream;
      sealer.seal(record_of(RecordType::ping, 8), stream);
      opener.feed(stream);
      CHECK(open_all(opener).sizes.size() == 1);
    }
  }

  TEST_CASE("a flipped bit anywhere in a record ends the session or leaves it waiting") {
    Bytes good;
    RecordSealer(cipher()).seal(record_of(RecordType::message, 40), good);
    for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
      CAPTURE(bit);
      auto bytes = good;
      bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      RecordOpener opener(cipher());
      opener.feed(bytes);
      const auto opened = open_all(opener);
      CHECK(opened.sizes.empty());
      if (bit >= 16) CHECK(opened.failed);  // a changed length may announce more bytes
    }
  }

  TEST_CASE("a record that is lost, repeated or out of order ends the session") {
    RecordSealer sealer(cipher());
    std::vector<Bytes> records(3);
    for (auto& record : records) sealer.seal(record_of(RecordType::message, 10), record);
    for (const auto& order : std::vector<std::vector<std::size_t>>{{1}, {0, 0}, {0, 2}, {1, 0}}) {
      RecordOpener opener(cipher());
      bool failed = false;
      for (const auto index : order) {
        opener.feed(records[index]);
        failed = open_all(opener).failed;
        if (failed) break;
      }
      CHECK(failed);
    }
  }

  TEST_CASE("impossible lengths, unknown types and flags are refused") {
    for (const std::size_t size : {0U, 1U, 17U}) {
      RecordOpener opener(cipher());
      const Bytes bytes{static_cast<std::byte>(size >> 8), static_cast<std::byte>(size)};
      opener.feed(bytes);
      CHECK(open_all(opener).failed);
    }
    const auto sealed = [](std::byte type, std::byte flags) {
      Bytes bytes{std::byte{0}, std::byte{18}, type, flags};
      bytes.resize(2 + 18);
      auto state = cipher();
      const auto frame = std::span(bytes).subspan(2);
      state.encrypt({}, frame.first(2), frame);
      RecordOpener opener(cipher());
      opener.feed(bytes);
      return open_all(opener).failed;
    };
    CHECK_FALSE(sealed(std::byte{9}, std::byte{0}));
    CHECK(sealed(std::byte{10}, std::byte{0}));
    CHECK(sealed(std::byte{4}, std::byte{1}));
  }
}

}  // namespace
}  // namespace starling::transport
