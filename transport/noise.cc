#include "transport/noise.h"

#include "node/base/check.h"
#include "transport/secure_memory.h"

#include <sodium.h>

#include <algorithm>
#include <initializer_list>
#include <limits>

namespace starling::transport::noise {
namespace {

constexpr std::size_t kBlockSize = 128;  // BLOCKLEN of BLAKE2b
constexpr std::uint64_t kLastNonce = std::numeric_limits<std::uint64_t>::max();

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// Unkeyed BLAKE2b-512 of the concatenation.
NoiseHash hash_parts(std::initializer_list<ByteView> parts) {
  crypto_generichash_blake2b_state state;
  crypto_generichash_blake2b_init(&state, nullptr, 0, kHashSize);
  for (const auto part : parts)
    crypto_generichash_blake2b_update(&state, raw(part.data()), part.size());
  NoiseHash hash;
  crypto_generichash_blake2b_final(&state, raw(hash.data()), hash.size());
  sodium_memzero(&state, sizeof(state));
  return hash;
}

// HMAC (RFC 2104) over BLAKE2b: Noise asks for it even though BLAKE2b has a keyed mode of its own.
NoiseHash hmac(const NoiseHash& key, std::initializer_list<ByteView> parts) {
  std::array<std::byte, kBlockSize> inner_pad;
  std::array<std::byte, kBlockSize> outer_pad;
  for (std::size_t i = 0; i < kBlockSize; ++i) {
    const std::byte k = i < key.size() ? key[i] : std::byte{0};
    inner_pad[i] = k ^ std::byte{0x36};
    outer_pad[i] = k ^ std::byte{0x5c};
  }
  Bytes input(inner_pad.begin(), inner_pad.end());
  for (const auto part : parts) input.insert(input.end(), part.begin(), part.end());
  const auto inner = hash_parts({input});
  const auto outer = hash_parts({outer_pad, inner});
  wipe(input);
  wipe(inner_pad);
  wipe(outer_pad);
  return outer;
}

// HKDF of the source's section 4.3: up to three outputs.
std::array<NoiseHash, 3> hkdf(const NoiseHash& chaining, ByteView input) {
  constexpr std::array<std::byte, 3> kCounters = {std::byte{1}, std::byte{2}, std::byte{3}};
  const std::span counters(kCounters);
  auto temp = hmac(chaining, {input});
  std::array<NoiseHash, 3> outputs;
  outputs[0] = hmac(temp, {counters.subspan(0, 1)});
  outputs[1] = hmac(temp, {outputs[0], counters.subspan(1, 1)});
  outputs[2] = hmac(temp, {outputs[1], counters.subspan(2, 1)});
  wipe(temp);
  return outputs;
}

// HASHLEN is 64: keys are the first half of an output.
Key key_from(const NoiseHash& output) {
  Key key;
  std::copy_n(output.begin(), key.size(), key.begin());
  return key;
}

// Four zero bytes, then the counter little-endian.
AeadNonce nonce_of(std::uint64_t counter) {
  AeadNonce nonce{};
  for (std::size_t i = 0; i < 8; ++i)
    nonce[4 + i] = static_cast<std::byte>((counter >> (8 * i)) & 0xffU);
  return nonce;
}

}  // namespace

KeyPair KeyPair::generate() {
  STARLING_CHECK_OP(sodium_init(), >=, 0);
  Key secret;
  randombytes_buf(secret.data(), secret.size());
  auto pair = from_secret(secret);
  wipe(secret);
  return pair;
}

KeyPair KeyPair::from_secret(const Key& secret) {
  KeyPair pair;
  pair.secret_ = secret;
  crypto_scalarmult_curve25519_base(raw(pair.public_.data()), raw(secret.data()));
  return pair;
}

KeyPair::~KeyPair() { wipe(secret_); }

Result<Key> KeyPair::shared_with(const Key& other) const {
  Key shared;
  if (crypto_scalarmult_curve25519(raw(shared.data()), raw(secret_.data()), raw(other.data())) != 0)
    return fail(Errc::bad_message, Doing::handshaking, "a public key is a low-order point");
  return shared;
}

void CipherState::set_key(const Key& key) {
  aead_.set_key(key);
  nonce_ = 0;
  has_key_ = true;
}

void CipherState::encrypt(ByteView ad, ByteView plain, std::span<std::byte> out) {
  STARLING_CHECK_OP(out.size(), ==, plain.size() + overhead());
  if (!has_key_) {
    std::ranges::copy(plain, out.begin());
    return;
  }
  STARLING_CHECK_OP(nonce_, <, kLastNonce);
  aead_.seal(nonce_of(nonce_++), ad, plain, out);
}

Result<void> CipherState::decrypt(ByteView ad, ByteView cipher, std::span<std::byte> out) {
  if (cipher.size() < overhead())
    return fail(Errc::bad_message, Doing::handshaking,
                std::to_string(cipher.size()) + " bytes are less than a tag");
  STARLING_CHECK_OP(out.size() + overhead(), ==, cipher.size());
  if (!has_key_) {
    std::ranges::copy(cipher, out.begin());
    return {};
  }
  if (nonce_ == kLastNonce)
    return fail(Errc::bad_message, Doing::handshaking, "the nonce is used up");
  if (!aead_.open(nonce_of(nonce_), ad, cipher, out))
    return fail(Errc::bad_message, Doing::handshaking, "bytes do not decrypt");
  ++nonce_;
  return {};
}

void CipherState::rekey() {
  STARLING_CHECK(has_key_);
  const Key zeros{};
  std::array<std::byte, kKeySize + kTagSize> out;
  aead_.seal(nonce_of(kLastNonce), {}, zeros, out);
  Key next;
  std::copy_n(out.begin(), next.size(), next.begin());
  aead_.set_key(next);
  wipe(next);
  wipe(out);
}

SymmetricState::SymmetricState(std::string_view protocol_name) {
  if (protocol_name.size() <= kHashSize)
    std::ranges::copy(as_bytes(protocol_name), hash_.begin());
  else
    hash_ = hash_parts({as_bytes(protocol_name)});
  chaining_ = hash_;
}

SymmetricState::~SymmetricState() { wipe(chaining_); }

void SymmetricState::mix_key(ByteView input) {
  auto outputs = hkdf(chaining_, input);
  chaining_ = outputs[0];
  cipher_.set_key(key_from(outputs[1]));
  wipe(std::as_writable_bytes(std::span(outputs)));
}

void SymmetricState::mix_hash(ByteView input) { hash_ = hash_parts({hash_, input}); }

void SymmetricState::mix_key_and_hash(ByteView input) {
  auto outputs = hkdf(chaining_, input);
  chaining_ = outputs[0];
  mix_hash(outputs[1]);
  cipher_.set_key(key_from(outputs[2]));
  wipe(std::as_writable_bytes(std::span(outputs)));
}

void SymmetricState::encrypt_and_hash(ByteView plain, Bytes& out) {
  const auto start = out.size();
  out.resize(start + plain.size() + overhead());
  const auto cipher = std::span(out).subspan(start);
  cipher_.encrypt(hash_, plain, cipher);
  mix_hash(cipher);
}

Result<Bytes> SymmetricState::decrypt_and_hash(ByteView cipher) {
  if (cipher.size() < overhead())
    return fail(Errc::bad_message, Doing::handshaking, "a handshake message is too short");
  Bytes plain(cipher.size() - overhead());
  TRY_VOID(cipher_.decrypt(hash_, cipher, plain));
  mix_hash(cipher);
  return plain;
}

std::pair<CipherState, CipherState> SymmetricState::split() const {
  auto outputs = hkdf(chaining_, {});
  std::pair<CipherState, CipherState> ciphers;
  ciphers.first.set_key(key_from(outputs[0]));
  ciphers.second.set_key(key_from(outputs[1]));
  wipe(std::as_writable_bytes(std::span(outputs)));
  return ciphers;
}

HandshakeState::HandshakeState(HandshakeSetup setup, Pattern pattern)
    : setup_(std::move(setup)),
      pattern_(std::move(pattern)),
      symmetric_(setup_.protocol),
      remote_static_(setup_.remote_static) {
  symmetric_.mix_hash(setup_.prologue);
  const bool initiator = setup_.role == Role::initiator;
  const auto mix_static = [this](bool own) {
    symmetric_.mix_hash(own ? setup_.own_static->public_key() : *remote_static_);
  };
  if (pattern_.initiator_known) mix_static(initiator);
  if (pattern_.responder_known) mix_static(!initiator);
}

HandshakeState::~HandshakeState() {
  for (auto& psk : setup_.psks) wipe(psk);
}

Result<HandshakeState> HandshakeState::make(HandshakeSetup setup) {
  constexpr std::string_view kPrefix = "Noise_";
  constexpr std::string_view kSuite = "_25519_ChaChaPoly_BLAKE2b";
  std::string_view name = setup.protocol;
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuite) ||
      name.size() <= kPrefix.size() + kSuite.size())
    return fail(Errc::unsupported, Doing::handshaking, setup.protocol);
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(kSuite.size());
  TRY(auto pattern, Pattern::parse(name));
  const bool initiator = setup.role == Role::initiator;
  const bool own_known = initiator ? pattern.initiator_known : pattern.responder_known;
  const bool remote_known = initiator ? pattern.responder_known : pattern.initiator_known;
  bool sends_static = own_known;
  for (std::size_t i = initiator ? 0 : 1; i < pattern.messages.size(); i += 2)
    sends_static = sends_static || std::ranges::count(pattern.messages[i], Token::s) > 0;
  if (sends_static && !setup.own_static)
    return fail(Errc::bad_argument, Doing::handshaking, "the pattern needs our static key");
  if (remote_known != setup.remote_static.has_value())
    return fail(Errc::bad_argument, Doing::handshaking,
                "the pattern and the remote static key disagree");
  if (setup.psks.size() != pattern.psks)
    return fail(Errc::bad_argument, Doing::handshaking,
                "the pattern and the number of psks disagree");
  return HandshakeState(std::move(setup), std::move(pattern));
}

bool HandshakeState::our_turn() const {
  return !done() && (next_ % 2 == 0) == (setup_.role == Role::initiator);
}

Result<void> HandshakeState::mix_dh(Token token) {
  const bool initiator = setup_.role == Role::initiator;
  const bool own_ephemeral =
      token == Token::ee || (token == Token::es && initiator) || (token == Token::se && !initiator);
  const bool their_ephemeral =
      token == Token::ee || (token == Token::es && !initiator) || (token == Token::se && initiator);
  const auto& own = own_ephemeral ? setup_.own_ephemeral : setup_.own_static;
  const auto& theirs = their_ephemeral ? remote_ephemeral_ : remote_static_;
  STARLING_CHECK(own.has_value() && theirs.has_value());
  TRY(auto shared, own->shared_with(*theirs));
  symmetric_.mix_key(shared);
  wipe(shared);
  return {};
}

Result<Bytes> HandshakeState::begin_write() {
  STARLING_CHECK(our_turn() && !failed_);
  Bytes message;
  for (const auto token : pattern_.messages[next_]) {
    switch (token) {
      case Token::e: {
        if (!setup_.own_ephemeral) setup_.own_ephemeral = KeyPair::generate();
        const auto& key = setup_.own_ephemeral->public_key();
        message.insert(message.end(), key.begin(), key.end());
        symmetric_.mix_hash(key);
        if (pattern_.psks > 0) symmetric_.mix_key(key);
        break;
      }
      case Token::s:
        symmetric_.encrypt_and_hash(setup_.own_static->public_key(), message);
        break;
      case Token::psk:
        symmetric_.mix_key_and_hash(setup_.psks[next_psk_++]);
        break;
      case Token::ee:
      case Token::es:
      case Token::se:
      case Token::ss:
        if (auto mixed = mix_dh(token); !mixed) {
          failed_ = true;
          return fail(std::move(mixed).error());
        }
        break;
    }
  }
  before_payload_ = symmetric_.hash();
  return message;
}

void HandshakeState::end_write(ByteView payload, Bytes& message) {
  symmetric_.encrypt_and_hash(payload, message);
  STARLING_CHECK_OP(message.size(), <=, kMaxMessage);
  ++next_;
}

Result<Bytes> HandshakeState::write_message(ByteView payload) {
  TRY(auto message, begin_write());
  end_write(payload, message);
  return message;
}

Result<void> HandshakeState::read_tokens(ByteView& rest) {
  const auto take = [&rest](std::size_t size) -> Result<ByteView> {
    if (rest.size() < size)
      return fail(Errc::bad_message, Doing::handshaking, "a handshake message is too short");
    const auto taken = rest.first(size);
    rest = rest.subspan(size);
    return taken;
  };
  for (const auto token : pattern_.messages[next_]) {
    switch (token) {
      case Token::e: {
        TRY(const auto key, take(kKeySize));
        remote_ephemeral_.emplace();
        std::ranges::copy(key, remote_ephemeral_->begin());
        symmetric_.mix_hash(key);
        if (pattern_.psks > 0) symmetric_.mix_key(key);
        break;
      }
      case Token::s: {
        TRY(const auto sealed, take(kKeySize + symmetric_.overhead()));
        TRY(const auto key, symmetric_.decrypt_and_hash(sealed));
        remote_static_.emplace();
        std::ranges::copy(key, remote_static_->begin());
        break;
      }
      case Token::psk:
        symmetric_.mix_key_and_hash(setup_.psks[next_psk_++]);
        break;
      case Token::ee:
      case Token::es:
      case Token::se:
      case Token::ss:
        TRY_VOID(mix_dh(token));
        break;
    }
  }
  return {};
}

Result<Bytes> HandshakeState::read_message(ByteView message) {
  STARLING_CHECK(!our_turn() && !done() && !failed_);
  failed_ = true;  // until everything fits
  if (message.size() > kMaxMessage)
    return fail(Errc::too_large, Doing::handshaking, "a handshake message is too long");
  ByteView rest = message;
  TRY_VOID(read_tokens(rest));
  before_payload_ = symmetric_.hash();
  TRY(auto payload, symmetric_.decrypt_and_hash(rest));
  failed_ = false;
  ++next_;
  return payload;
}

HandshakeState::Ciphers HandshakeState::split() const {
  STARLING_CHECK(done() && !failed_);
  const auto [first, second] = symmetric_.split();
  if (setup_.role == Role::initiator) return {first, second};
  return {second, first};
}

}  // namespace starling::transport::noise
