#include "bootstrap/message_codec.h"

#include "node/base/hash.h"
#include "node/base/random.h"
#include "tests/bootstrap/numbered.h"

#include <doctest/doctest.h>

#include <limits>

using namespace starling;
using namespace starling::bootstrap;
using namespace starling::bootstrap::testing;

namespace {

Hash hash_number(std::uint64_t number) { return Hasher().add(number).finish(); }

std::vector<BootstrapMessage> examples() {
  Hello hello;
  hello.settings = *Settings::from({{"model", "resnet50"}, {"lr", "1.7"}});
  hello.forced = {"lr", "model"};
  hello.alive = 7;
  hello.samples = 1'000'000;
  hello.age = 412.5;
  hello.phase = RunPhase::training;
  hello.load = 2;
  hello.certificate = hash_number(4);
  StateManifest manifest;
  manifest.manifest.fingerprint = hash_number(1);
  manifest.manifest.step = 9;
  manifest.manifest.age = 8.5;
  manifest.manifest.total_bytes = kChunkBytes + 5;
  manifest.manifest.chunk_hashes = {hash_number(2), hash_number(3)};
  manifest.run_age_ms = 1234;
  manifest.donors = {id_of(1), id_of(2)};
  manifest.counters = {{std::min(id_of(1), id_of(2)), 5}, {std::max(id_of(1), id_of(2)), 6}};
  StateRefused refused{hash_number(5), RefusalReason::busy};
  return {hello,
          Hello{},
          StateRequest{hash_number(1), Hash{}},
          StateRequest{hash_number(1), hash_number(2)},
          manifest,
          refused,
          ChunkRequest{hash_number(2), 77},
          Chunk{hash_number(2), 77, share(Bytes(1000, std::byte{7}))},
          Chunk{hash_number(2), 77, nullptr},
          StateDone{hash_number(2)},
          DialBackRequest{7700},
          DialBackReply{7700, true, "203.0.113.5:7700", ""}};
}

}  // namespace

TEST_SUITE("bootstrap/message_codec") {
  TEST_CASE("every message comes back as it was sent") {
    for (const auto& message : examples()) {
      const auto wire = encode(message);
      CAPTURE(wire.type);
      CHECK(wire.room() == transport::Room::bootstrap);
      const auto back = decode_bootstrap(wire);
      REQUIRE(back.has_value());
      CHECK(*back == message);
    }
  }

  TEST_CASE("the manifest of the largest model and the longest list of counters fit a message") {
    auto message = std::get<StateManifest>(examples()[4]);
    message.manifest.total_bytes = std::uint64_t{kMaxChunks} * kChunkBytes;
    message.manifest.chunk_hashes.assign(kMaxChunks, hash_number(3));
    message.donors.assign(kMaxDonors, id_of(1));
    message.counters.clear();
    for (std::uint64_t i = 0; i < kMaxSavedCounters; ++i) message.counters.push_back({id_of(i), i});
    std::ranges::sort(message.counters, {}, &gossip::SavedCounter::id);
    const auto wire = encode(message);
    CHECK(wire.body.size() <= kMaxBootstrapBody);
    CHECK(wire.attached().size() == max_attachment(wire.type));
    const auto back = decode_bootstrap(wire);
    REQUIRE(back.has_value());
    CHECK(std::get<StateManifest>(*back) == message);
  }

  TEST_CASE("sizes that do not fit each other, ages that are none and unknown phases are refused") {
    auto manifest = std::get<StateManifest>(examples()[4]);
    manifest.manifest.total_bytes = kChunkBytes;
    CHECK(!decode_bootstrap(encode(manifest)).has_value());
    manifest.manifest.total_bytes = ~std::uint64_t{0};
    CHECK(!decode_bootstrap(encode(manifest)).has_value());
    auto aged = std::get<StateManifest>(examples()[4]);
    for (const double age : {-1.0, 1e16, 1e300, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
      CAPTURE(age);
      Hello hello;
      hello.age = age;
      CHECK(!decode_bootstrap(encode(hello)).has_value());
      aged.manifest.age = age;
      CHECK(!decode_bootstrap(encode(aged)).has_value());
    }
    Hello hello;
    hello.phase = static_cast<RunPhase>(9);
    CHECK(!decode_bootstrap(encode(hello)).has_value());
  }

  TEST_CASE("attachments come only where they belong, and within their bound") {
    auto wire = encode(Hello{});
    wire.attachment = share(Bytes(1));
    CHECK(!decode_bootstrap(wire).has_value());
    wire = encode(Chunk{hash_number(1), 0, share(Bytes(kChunkBytes + 1))});
    CHECK(decode_bootstrap(wire).error().code == Errc::too_large);
    auto manifest = encode(examples()[4]);
    manifest.attachment = share(Bytes(41));
    CHECK(!decode_bootstrap(manifest).has_value());
  }

  TEST_CASE("texts of peers cannot move a cursor") {
    const auto wire = encode(DialBackReply{1, false, "a\x1b[2J", std::string(500, 'x')});
    const auto back = decode_bootstrap(wire);
    REQUIRE(back.has_value());
    CHECK(std::get<DialBackReply>(*back).address == "a?[2J");
    CHECK(std::get<DialBackReply>(*back).detail.size() == kMaxReasonBytes);
  }

  TEST_CASE("damaged messages are refused or mean something in bounds, and never crash") {
    Rng rng(13);
    for (const auto& message : examples()) {
      const auto wire = encode(message);
      for (int round = 0; round < 300; ++round) {
        auto damaged = wire;
        for (std::uint64_t i = 0; i <= rng.below(3); ++i)
          damaged.body[rng.below(damaged.body.size())] = static_cast<std::byte>(rng.below(256));
        const auto back = decode_bootstrap(damaged);
        if (back) CHECK(decode_bootstrap(encode(*back)).has_value());
      }
    }
  }
}
