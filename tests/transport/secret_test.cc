#include "transport/secret.h"

#include "tests/support/temp_folder.h"
#include "tests/transport/certificates.h"
#include "transport/base64.h"
#include "transport/limits.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <string>

namespace starling::transport {
namespace {

TEST_SUITE("transport/secret") {
  TEST_CASE("a secret survives its file, and keeps its swarm through rotations") {
    const TempFolder folder;
    const auto path = folder.path() / "secret";
    const auto first = SwarmSecret::generate();
    const auto second = first.rotated();
    REQUIRE(second.create(path));
    const auto loaded = SwarmSecret::load(path).value();
    CHECK(loaded.swarm() == first.swarm());
    CHECK(loaded.epoch() == 1);
    CHECK(std::ranges::equal(loaded.bytes(), second.bytes()));
    CHECK_FALSE(std::ranges::equal(loaded.bytes(), first.bytes()));
    CHECK(SwarmSecret::parse(first.print()).value().swarm() == first.swarm());
  }

  TEST_CASE(
      "an order survives the file of its secret, and is of one admin, swarm, epoch and list") {
    const TempFolder folder;
    const auto path = folder.path() / "secret";
    const auto first = SwarmSecret::generate();
    const auto admin = identity_of(200);
    const auto next = first.rotated(admin, 7);
    REQUIRE(next.create(path));
    const auto loaded = SwarmSecret::load(path).value();
    CHECK(loaded.epoch() == 1);
    CHECK(loaded.order() == next.order());
    CHECK(loaded.ordered_by(admin.id()));
    CHECK_FALSE(loaded.ordered_by(identity_of(201).id()));
    CHECK_FALSE(first.rotated().ordered_by(admin.id()));
    CHECK(next.print().size() <= limits::kMaxSecretText);
    const auto changed = [&](std::string_view from, std::string_view to) {
      auto text = next.print();
      text.replace(text.find(from), from.size(), to);
      return SwarmSecret::parse(text);
    };
    CHECK_FALSE(changed("epoch 1", "epoch 2").value().ordered_by(admin.id()));
    CHECK_FALSE(changed("revocations 7", "revocations 6").value().ordered_by(admin.id()));
    CHECK_FALSE(changed("swarm " + to_hex(first.swarm().view()), "swarm " + std::string(64, '1'))
                    .value()
                    .ordered_by(admin.id()));
    CHECK_FALSE(changed("revocations 7", "revocations x"));
    CHECK_FALSE(changed("order ", "orders "));
    CHECK_FALSE(changed("revocations 7\n", ""));
  }

  // Reproduced without our code by certificate_vectors.py.
  TEST_CASE("what an admin signs for a secret never changes") {
    const auto text = "starling-secret 1\nswarm 07" + std::string(62, '0') + "\nepoch 1\nsecret " +
                      std::string(43, 'A') + "=\nrevocations 3\norder " +
                      "cgK7FZVccCuRH3epEgM+63Lde/"
                      "McvWghtKGMgvc8Vqv9vH1QHlEIMcGnAi3K1tDNLRd1Gwkc9OPaf2esPReMAA==\n";
    CHECK(SwarmSecret::parse(text).value().ordered_by(identity_of(200).id()));
  }

  TEST_CASE("a bare base64 line is a secret of epoch 0") {
    const auto secret = SwarmSecret::generate();
    const auto bare = encode_base64(secret.bytes());
    CHECK(bare.size() == 44);
    for (const auto& text : {bare, bare + "\n", bare.substr(0, 43)}) {
      const auto parsed = SwarmSecret::parse(text).value();
      CHECK(parsed.epoch() == 0);
      CHECK(parsed.swarm() == secret.swarm());
      CHECK(std::ranges::equal(parsed.bytes(), secret.bytes()));
    }
  }

  TEST_CASE("texts that are no secret are refused") {
    const auto good = SwarmSecret::generate().print();
    CHECK_FALSE(SwarmSecret::parse(""));
    CHECK_FALSE(SwarmSecret::parse("hunter2"));
    CHECK_FALSE(SwarmSecret::parse(std::string(44, 'A')));  // 33 bytes
    for (std::size_t size = 0; size + 3 < good.size(); ++size) {
      CAPTURE(size);
      CHECK_FALSE(SwarmSecret::parse(std::string_view(good).substr(0, size)));
    }
    CHECK_FALSE(SwarmSecret::parse(good + "more 1\n"));
    auto other_swarm = good;
    const auto digit = other_swarm.find("swarm ") + 6;
    other_swarm[digit] = other_swarm[digit] == '0' ? '1' : '0';
    CHECK_FALSE(SwarmSecret::parse(other_swarm));
    auto other_version = good;
    other_version[16] = '2';
    CHECK_FALSE(SwarmSecret::parse(other_version));
  }

  TEST_CASE("a secret file that others can read is refused") {
    const TempFolder folder;
    const auto path = folder.path() / "secret";
    REQUIRE(SwarmSecret::generate().create(path));
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    CHECK(SwarmSecret::load(path).error().code == Errc::permission);
  }

  TEST_CASE("keys differ by secret and epoch, and are found by their id") {
    const auto secret = SwarmSecret::generate();
    const auto next = secret.rotated();
    const auto key = SwarmKey::of(secret);
    const auto same = SwarmKey::of(secret);
    auto both = SwarmKey::of(next);
    both.also_accept(secret);
    CHECK(key.current()->id == same.current()->id);
    CHECK(key.current()->id != both.current()->id);
    CHECK(both.find(key.current()->id) != nullptr);
    CHECK(both.find(both.current()->id) == both.current());
    CHECK(key.find(both.current()->id) == nullptr);
    CHECK(key.swarm() == both.swarm());
    CHECK(SwarmKey::open("a").swarm() != SwarmKey::open("b").swarm());
    CHECK(SwarmKey::open("a").current() == nullptr);
  }

  TEST_CASE("a passphrase makes the same secret everywhere, and another one in another swarm") {
    const auto here = SwarmSecret::from_passphrase("correct horse battery", "barn").value();
    const auto there = SwarmSecret::from_passphrase("correct horse battery", "barn").value();
    const auto other = SwarmSecret::from_passphrase("correct horse battery", "farm").value();
    CHECK(std::ranges::equal(here.bytes(), there.bytes()));
    CHECK(here.swarm() == there.swarm());
    CHECK(here.swarm() != other.swarm());
    CHECK(here.epoch() == 0);
    CHECK(SwarmSecret::parse(here.print()).value().swarm() == here.swarm());
  }

  TEST_CASE("a weak passphrase is refused with the remedy") {
    for (const std::string weak : {"", "hunter2", "elevenchars", "aaaaaaaaaaaaaaaa", "abababababab",
                                   "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9abcdi"}) {
      CAPTURE(weak);
      const auto refused = SwarmSecret::from_passphrase(weak, "barn");
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == Errc::bad_argument);
      CHECK(refused.error().detail.find("random") != std::string::npos);
    }
  }

  TEST_CASE("the key of a fixed secret never changes") {
    std::string zeros(43, 'A');
    const auto key = SwarmKey::of(SwarmSecret::parse(zeros).value());
    CHECK(to_hex(key.swarm().view()) ==
          "b702e8ef8c1ce68f613c8122b16a7f30f555b7fbf71cf3485f5ba906ab0d1792");
    CHECK(to_hex(key.current()->psk.view()) ==
          "5a4d7e69df09c15444f4f721431e07a895abd3600702128a0a5d3f6898969974");
    CHECK(to_hex(key.current()->id) == "8d98430d0112f333");
  }
}

}  // namespace
}  // namespace starling::transport
