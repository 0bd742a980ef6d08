#include "transport/aead.h"

#include "node/base/random.h"

#include <doctest/doctest.h>
#include <sodium.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace starling::transport {
namespace {

template <std::size_t N>
std::array<std::byte, N> counting_from(unsigned first) {
  std::array<std::byte, N> bytes;
  for (auto& byte : bytes) byte = static_cast<std::byte>(first++);
  return bytes;
}

Bytes random_bytes(Rng& rng, std::size_t size) {
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

// What libsodium, another implementation of the same RFC, makes of it.
Bytes sealed_by_libsodium(const AeadKey& key, const AeadNonce& nonce, ByteView ad, ByteView plain) {
  const auto raw = [](const std::byte* bytes) {
    return reinterpret_cast<const unsigned char*>(bytes);
  };
  Bytes sealed(plain.size() + kAeadTagSize);
  crypto_aead_chacha20poly1305_ietf_encrypt(
      reinterpret_cast<unsigned char*>(sealed.data()), nullptr, raw(plain.data()), plain.size(),
      raw(ad.data()), ad.size(), nullptr, raw(nonce.data()), raw(key.data()));
  return sealed;
}

Bytes sealed(Aead& aead, const AeadNonce& nonce, ByteView ad, ByteView plain) {
  Bytes out(plain.size() + kAeadTagSize);
  aead.seal(nonce, ad, plain, out);
  return out;
}

}  // namespace

TEST_SUITE("aead") {
  TEST_CASE("the example of RFC 8439, section 2.8.2") {
    constexpr std::string_view kText =
        "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the "
        "future, sunscreen would be it.";
    const auto text = as_bytes(kText);
    AeadNonce nonce{std::byte{0x07}};
    std::ranges::copy(counting_from<8>(0x40), nonce.begin() + 4);
    Bytes ad{std::byte{0x50}, std::byte{0x51}, std::byte{0x52}, std::byte{0x53}};
    const auto rest = counting_from<8>(0xc0);
    ad.insert(ad.end(), rest.begin(), rest.end());
    Aead aead;
    aead.set_key(counting_from<32>(0x80));

    const Bytes out = sealed(aead, nonce, ad, text);

    constexpr std::array<unsigned, 4> kBegin{0xd3, 0x1a, 0x8d, 0x34};
    constexpr std::array<unsigned, kAeadTagSize> kTag{0x1a, 0xe1, 0x0b, 0x59, 0x4f, 0x09,
                                                      0xe2, 0x6a, 0x7e, 0x90, 0x2e, 0xcb,
                                                      0xd0, 0x60, 0x06, 0x91};
    for (std::size_t i = 0; i < kBegin.size(); ++i) CHECK(out[i] == std::byte(kBegin[i]));
    for (std::size_t i = 0; i < kTag.size(); ++i) CHECK(out[text.size() + i] == std::byte(kTag[i]));
  }

  TEST_CASE("any message is sealed as another implementation seals it, and opens again") {
    REQUIRE(sodium_init() >= 0);
    Rng rng(1);
    Aead seals;
    Aead opens;
    for (const std::size_t size :
         {0U, 1U, 15U, 16U, 17U, 63U, 64U, 65U, 255U, 1'000U, 4'099U, 16'384U, 65'519U}) {
      CAPTURE(size);
      AeadKey key;
      std::ranges::copy(random_bytes(rng, key.size()), key.begin());
      AeadNonce nonce;
      std::ranges::copy(random_bytes(rng, nonce.size()), nonce.begin());
      const Bytes ad = random_bytes(rng, size % 70);
      const Bytes plain = random_bytes(rng, size);
      seals.set_key(key);
      opens.set_key(key);

      Bytes out = plain;  // in place
      out.resize(size + kAeadTagSize);
      seals.seal(nonce, ad, ByteView(out).first(size), out);

      CHECK(out == sealed_by_libsodium(key, nonce, ad, plain));
      CHECK(opens.open(nonce, ad, out, std::span(out).first(size)));
      out.resize(size);
      CHECK(out == plain);
    }
  }

  TEST_CASE(
      "a changed bit, another nonce, another ad or another key does not open, and shows nothing") {
    Rng rng(2);
    const auto key = counting_from<32>(1);
    const auto nonce = counting_from<12>(2);
    const Bytes ad = random_bytes(rng, 9);
    const Bytes plain = random_bytes(rng, 1'000);
    Aead aead;
    aead.set_key(key);
    const Bytes good = sealed(aead, nonce, ad, plain);
    Bytes out(plain.size());
    const auto refused = [&](Aead& with, const AeadNonce& at, ByteView of, ByteView bytes) {
      std::ranges::fill(out, std::byte{1});
      const bool opened = with.open(at, of, bytes, out);
      return !opened && std::ranges::all_of(out, [](std::byte b) { return b == std::byte{0}; });
    };

    for (const std::size_t at : {std::size_t{0}, std::size_t{500}, plain.size(), good.size() - 1}) {
      CAPTURE(at);
      Bytes bad = good;
      bad[at] ^= std::byte{0x10};
      CHECK(refused(aead, nonce, ad, bad));
    }
    CHECK(refused(aead, counting_from<12>(3), ad, good));
    CHECK(refused(aead, nonce, ByteView(ad).first(8), good));
    Aead other;
    other.set_key(counting_from<32>(9));
    CHECK(refused(other, nonce, ad, good));
    // What was refused leaves nothing behind: the same context opens what is right.
    CHECK(aead.open(nonce, ad, good, out));
    CHECK(out == plain);
  }

  TEST_CASE("a copy has the key, and is used beside the original") {
    const auto nonce = counting_from<12>(2);
    const auto plain = counting_from<40>(5);
    Aead first;
    first.set_key(counting_from<32>(1));
    const Bytes before = sealed(first, nonce, {}, plain);

    Aead second = first;
    Aead third;
    third = std::as_const(first);
    first.set_key(counting_from<32>(7));

    CHECK(sealed(second, nonce, {}, plain) == before);
    CHECK(sealed(third, nonce, {}, plain) == before);
    CHECK(sealed(first, nonce, {}, plain) != before);
  }
}

}  // namespace starling::transport
