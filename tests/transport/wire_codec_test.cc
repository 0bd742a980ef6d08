#include "transport/wire_codec.h"

#include "node/base/random.h"
#include "transport/limits.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace starling::transport {
namespace {

Hello full_hello() {
  Hello hello;
  hello.identity.bytes.fill(std::byte{1});
  hello.signature.bytes.fill(std::byte{2});
  hello.swarm.bytes.fill(std::byte{3});
  hello.instance = {4};
  hello.purpose = Purpose::renew;
  hello.name = std::string(limits::kMaxName, 'n');
  for (std::uint16_t i = 0; i < limits::kMaxAdvertised; ++i)
    hello.addresses.push_back({std::string(limits::kMaxAdvertisedHost, 'h'), i});
  auto& certificate = hello.certificate.emplace();
  certificate.own.node = hello.identity;
  certificate.issuer.emplace().role = MemberRole::inviter;
  return hello;
}

TEST_SUITE("transport/wire_codec") {
  TEST_CASE("a hello of the largest size survives the way there and back") {
    const auto hello = full_hello();
    const auto bytes = encode_hello(hello);
    CHECK(bytes.size() <= limits::kMaxHandshakePayload);
    CHECK(decode_hello(bytes).value() == hello);
    CHECK(decode_hello(encode_hello(Hello{})).value() == Hello{});
  }

  TEST_CASE("a hello with fields beyond their limits is refused") {
    auto hello = full_hello();
    hello.addresses[0].host = "two words";
    CHECK_FALSE(decode_hello(encode_hello(hello)));
    hello = full_hello();
    hello.purpose = static_cast<Purpose>(9);
    CHECK_FALSE(decode_hello(encode_hello(hello)));
    hello = full_hello();
    hello.addresses.resize(1);
    hello.addresses[0].host = std::string(limits::kMaxAdvertisedHost + 1, 'h');
    CHECK_FALSE(decode_hello(encode_hello(hello)));
  }

  TEST_CASE("random bytes, cut and changed messages are refused or read, never more") {
    const auto good = encode_hello(full_hello());
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      Rng rng(seed);
      auto bytes = good;
      for (std::uint64_t i = 0; i <= rng.below(4); ++i)
        bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng() & 0xffU);
      if (rng.chance(0.3)) bytes.resize(rng.below(bytes.size()));
      const auto decoded = decode_hello(bytes);
      if (decoded) CHECK(decoded->addresses.size() <= limits::kMaxAdvertised);
    }
    CHECK_FALSE(decode_hello(Bytes(2000)));
    CHECK_FALSE(decode_hello({}));
  }

  TEST_CASE("a bye carries the code and a text that is cut to its limit") {
    const Error why{Errc::settings_mismatch, Doing::joining, std::string(1000, 'x')};
    const auto heard = decode_bye(encode_bye(why)).value();
    CHECK(heard.code == Errc::settings_mismatch);
    CHECK(heard.detail == std::string(limits::kMaxByeText, 'x'));
    const auto orderly = decode_bye(encode_bye({Errc::cancelled, Doing::stopping, ""})).value();
    CHECK(orderly.code == Errc::closed);
    // That an operation of ours was stopped is not for a peer to say: whoever waits for its outcome
    // would wait for ever.
    auto liar = encode_bye({Errc::refused, Doing::handshaking, ""});
    const auto code = static_cast<std::byte>(Errc::refused);
    const auto place = std::ranges::find(liar, code);
    REQUIRE(place != liar.end());
    REQUIRE(std::ranges::count(liar, code) == 1);
    *place = static_cast<std::byte>(Errc::cancelled);
    CHECK(decode_bye(liar).value().code == Errc::refused);
    CHECK_FALSE(decode_bye(Bytes(64, std::byte{0xff})));
  }
}

}  // namespace
}  // namespace starling::transport
