#include "transport/handshake.h"

#include "node/base/check.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::string_view kMagic = "STL1";
constexpr std::string_view kIdentityDomain = "starling/id/1";

// What a Hello's signature covers besides its domain; see wire.capnp.
Bytes signed_transcript(noise::Role role, const SwarmId& swarm, const noise::Key& noise_static,
                        const noise::NoiseHash& transcript) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.write(static_cast<std::uint8_t>(role));
  writer.append(swarm.view());
  writer.append(noise_static);
  writer.append(transcript);
  return bytes;
}

noise::Role other(noise::Role role) {
  return role == noise::Role::initiator ? noise::Role::responder : noise::Role::initiator;
}

std::size_t read_length(ByteView bytes) {
  return (std::to_integer<std::size_t>(bytes[0]) << 8) | std::to_integer<std::size_t>(bytes[1]);
}

}  // namespace

std::array<std::byte, limits::kPreamble> encode_preamble(const Preamble& preamble) {
  std::array<std::byte, limits::kPreamble> bytes{};
  std::ranges::copy(as_bytes(kMagic), bytes.begin());
  bytes[4] = std::byte{preamble.version};
  bytes[5] = static_cast<std::byte>(preamble.mode);
  std::ranges::copy(preamble.key, bytes.begin() + 8);
  return bytes;
}

Result<Preamble> decode_preamble(std::span<const std::byte, limits::kPreamble> bytes) {
  if (!std::ranges::equal(bytes.first(kMagic.size()), as_bytes(kMagic)))
    return fail(Errc::bad_message, Doing::handshaking, "the first bytes are no preamble");
  Preamble preamble;
  preamble.version = std::to_integer<std::uint8_t>(bytes[4]);
  if (preamble.version != kWireVersion)
    return fail(Errc::version_mismatch, Doing::handshaking,
                "the peer speaks wire version " + std::to_string(preamble.version) + ", we speak " +
                    std::to_string(kWireVersion));
  if (bytes[5] > static_cast<std::byte>(Mode::invite) || bytes[6] != std::byte{0} ||
      bytes[7] != std::byte{0})
    return fail(Errc::bad_message, Doing::handshaking, "the preamble has an unknown mode");
  preamble.mode = static_cast<Mode>(bytes[5]);
  std::copy_n(bytes.begin() + 8, preamble.key.size(), preamble.key.begin());
  if (preamble.mode == Mode::open && preamble.key != KeyId{})
    return fail(Errc::bad_message, Doing::handshaking, "the preamble of an open swarm names a key");
  return preamble;
}

std::size_t ReplayMemory::KeyHash::operator()(const noise::Key& key) const noexcept {
  // Only keys from holders of the secret get here, and the table is bounded.
  std::size_t value = 0;
  std::memcpy(&value, key.data(), sizeof(value));
  return value;
}

bool ReplayMemory::remember(TimePoint now, const noise::Key& ephemeral) {
  const auto drop_oldest = [this] {
    keys_.erase(order_.front().second);
    order_.pop_front();
  };
  while (!order_.empty() && now - order_.front().first > limits::kReplayMemory) drop_oldest();
  if (!keys_.insert(ephemeral).second) return false;
  if (order_.size() == limits::kReplayEntries) drop_oldest();
  order_.emplace_back(now, ephemeral);
  return true;
}

Handshake::Handshake(HandshakeContext context, noise::Role role, std::optional<NodeId> pin)
    : context_(std::move(context)),
      role_(role),
      pin_(pin),
      step_(role == noise::Role::initiator ? Step::message2 : Step::preamble) {
  context_.own.identity = context_.identity.id();
  context_.own.swarm = context_.swarm.swarm();
}

Handshake Handshake::initiate(HandshakeContext context, std::optional<NodeId> pin) {
  Handshake handshake(std::move(context), noise::Role::initiator, pin);
  Preamble preamble;
  preamble.mode = handshake.context_.swarm.mode();
  if (const auto* key = handshake.context_.swarm.current()) preamble.key = key->id;
  STARLING_CHECK(handshake.start_noise(preamble).has_value());
  const auto bytes = encode_preamble(preamble);
  handshake.output_.assign(bytes.begin(), bytes.end());
  // Message 1 writes nothing that depends on the peer, so it cannot fail.
  handshake.queue(handshake.noise_->write_message({}).value());
  return handshake;
}

Handshake Handshake::respond(HandshakeContext context) {
  return {std::move(context), noise::Role::responder, std::nullopt};
}

Result<void> Handshake::start_noise(const Preamble& preamble) {
  TRY(auto psk, find_psk(preamble));
  noise::HandshakeSetup setup;
  setup.role = role_;
  setup.own_static = context_.noise_static;
  const auto prologue = encode_preamble(preamble);
  setup.prologue.assign(prologue.begin(), prologue.end());
  setup.protocol = "Noise_XX_25519_ChaChaPoly_BLAKE2b";
  if (psk) {
    setup.protocol = "Noise_XXpsk0_25519_ChaChaPoly_BLAKE2b";
    setup.psks.push_back(*psk);
    wipe(*psk);
  }
  auto noise = noise::HandshakeState::make(std::move(setup));
  STARLING_CHECK(noise.has_value());
  noise_.emplace(std::move(*noise));
  return {};
}

Result<std::optional<noise::Key>> Handshake::find_psk(const Preamble& preamble) const {
  const auto own_mode = context_.swarm.mode();
  // A newcomer dials, and nobody dials a newcomer: it could tell a swarm from nothing.
  const bool newcomer = own_mode == Mode::invite && role_ == noise::Role::responder;
  const bool invited = preamble.mode == Mode::invite && own_mode == Mode::secret;
  if (newcomer || (preamble.mode != own_mode && !invited))
    return fail(Errc::wrong_swarm, Doing::handshaking,
                "the peer's swarm is of mode " + std::string(name_of(preamble.mode)) +
                    ", ours of mode " + std::string(name_of(own_mode)));
  if (preamble.mode == Mode::open) return std::nullopt;
  if (invited) {
    auto key = context_.find_invite ? context_.find_invite(preamble.key) : std::nullopt;
    if (!key)
      return fail(Errc::wrong_swarm, Doing::handshaking,
                  "the peer names an invite that is not open here, key id " + to_hex(preamble.key));
    return key;
  }
  const auto* key = context_.swarm.find(preamble.key);
  if (key == nullptr)
    return fail(Errc::wrong_swarm, Doing::handshaking,
                "the peer names a secret that we do not have, key id " + to_hex(preamble.key));
  noise::Key psk;
  std::ranges::copy(key->psk.view(), psk.begin());
  return psk;
}

Bytes Handshake::take_output() { return std::exchange(output_, {}); }

void Handshake::queue(ByteView message) {
  STARLING_CHECK_OP(message.size(), <=, limits::kMaxHandshakeMessage);
  output_.push_back(static_cast<std::byte>(message.size() >> 8));
  output_.push_back(static_cast<std::byte>(message.size() & 0xffU));
  output_.insert(output_.end(), message.begin(), message.end());
}

std::size_t Handshake::needed() const {
  if (step_ == Step::preamble) return limits::kPreamble;
  if (input_.size() < 2) return 2;
  return 2 + read_length(input_);
}

Result<void> Handshake::feed(TimePoint now, ByteView bytes) {
  STARLING_CHECK(step_ != Step::done && step_ != Step::failed);
  // Byte counts of single steps are bounded, so `input_` holds at most one handshake message;
  // everything behind the handshake is records and goes to the outcome.
  while (!bytes.empty() && step_ != Step::done) {
    const auto part = bytes.first(std::min(bytes.size(), needed() - input_.size()));
    if (step_ == Step::redeeming) {
      step_ = Step::failed;
      return fail(Errc::bad_message, Doing::handshaking, "bytes before message 2 was sent");
    }
    input_.insert(input_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (needed() > limits::kMaxHandshakeMessage + 2) {
      step_ = Step::failed;
      return fail(Errc::too_large, Doing::handshaking,
                  "a handshake message of " + std::to_string(needed() - 2) + " bytes");
    }
    if (input_.size() < needed()) continue;
    const auto unit = std::exchange(input_, {});
    if (auto stepped = step(now, unit); !stepped) {
      step_ = Step::failed;
      return stepped;
    }
  }
  if (outcome_) outcome_->rest.assign(bytes.begin(), bytes.end());
  return {};
}

Result<void> Handshake::step(TimePoint now, ByteView unit) {
  switch (step_) {
    case Step::preamble:
      return on_preamble(unit);
    case Step::message1:
      return on_message1(now, unit.subspan(2));
    case Step::message2:
      return on_message2(unit.subspan(2));
    case Step::message3:
      return on_message3(unit.subspan(2));
    case Step::redeeming:
    case Step::done:
    case Step::failed:
      break;
  }
  STARLING_CHECK(false);
  return {};
}

Result<void> Handshake::on_preamble(ByteView unit) {
  TRY(const auto preamble, decode_preamble(unit.first<limits::kPreamble>()));
  TRY_VOID(start_noise(preamble));
  if (preamble.mode == Mode::invite) invite_ = preamble.key;
  step_ = Step::message1;
  return {};
}

Result<void> Handshake::on_message1(TimePoint now, ByteView message) {
  const auto read = noise_->read_message(message);
  if (!read)
    // Under a secret the key id was right and yet the bytes do not decrypt: somebody guessed.
    return fail(context_.swarm.mode() == Mode::secret ? Errc::wrong_swarm : Errc::bad_message,
                Doing::handshaking, "message 1: " + read.error().detail);
  if (!read->empty()) return fail(Errc::bad_message, Doing::handshaking, "message 1 has a payload");
  if (context_.swarm.mode() == Mode::secret) {
    noise::Key ephemeral;
    std::copy_n(message.begin(), ephemeral.size(), ephemeral.begin());
    if (!context_.replays.remember(now, ephemeral))
      return fail(Errc::already_exists, Doing::accepting, "message 1 was seen before: a recording");
  }
  if (context_.may_answer && !context_.may_answer())
    return fail(Errc::too_many, Doing::accepting, "too many handshakes at once");
  if (invite_) {
    step_ = Step::redeeming;
    return {};
  }
  return answer();
}

std::optional<KeyId> Handshake::redeeming() const {
  return step_ == Step::redeeming ? invite_ : std::nullopt;
}

Result<void> Handshake::on_redeemed(bool counted) {
  STARLING_CHECK(step_ == Step::redeeming);
  if (counted) return answer();
  step_ = Step::failed;
  return fail(Errc::refused, Doing::handshaking,
              "the invite is used, or its use could not be counted");
}

Result<void> Handshake::answer() {
  TRY_VOID(write_hello());
  answered_ = true;
  step_ = Step::message3;
  return {};
}

Result<void> Handshake::on_message2(ByteView message) {
  TRY(const auto payload, noise_->read_message(message));
  TRY(auto peer, check_hello(payload));
  if (peer.identity == context_.own.identity && peer.instance == context_.own.instance)
    return fail(Errc::already_exists, Doing::handshaking,
                "this is our own address: we dialled ourselves");
  if (peer.identity == context_.own.identity)
    return fail(Errc::duplicate_identity, Doing::handshaking,
                "another process runs with our identity: two nodes share one key file");
  if (pin_ && peer.identity != *pin_)
    return fail(Errc::wrong_identity, Doing::handshaking,
                "dialled " + short_form(*pin_) + ", found " + short_form(peer.identity));
  if (context_.check_peer) TRY_VOID(context_.check_peer(peer));
  TRY_VOID(write_hello());
  finish(std::move(peer));
  return {};
}

Result<void> Handshake::on_message3(ByteView message) {
  TRY(const auto payload, noise_->read_message(message));
  TRY(auto peer, check_hello(payload));
  finish(std::move(peer));
  return {};
}

Result<void> Handshake::write_hello() {
  TRY(auto message, noise_->begin_write());
  auto hello = context_.own;
  const auto transcript = signed_transcript(role_, hello.swarm, context_.noise_static.public_key(),
                                            noise_->hash_before_payload());
  hello.signature = context_.identity.sign(kIdentityDomain, transcript);
  noise_->end_write(encode_hello(hello), message);
  queue(message);
  return {};
}

Result<Hello> Handshake::check_hello(ByteView payload) const {
  TRY(auto hello, decode_hello(payload));
  if (hello.swarm != context_.own.swarm)
    return fail(Errc::wrong_swarm, Doing::handshaking,
                "the peer belongs to swarm " + short_form(hello.swarm) + ", we to " +
                    short_form(context_.own.swarm));
  const auto transcript = signed_transcript(other(role_), hello.swarm, *noise_->remote_static(),
                                            noise_->hash_before_payload());
  if (Ed25519Verifier{}.verify(hello.identity, kIdentityDomain, transcript, hello.signature) !=
      Verdict::valid)
    return fail(Errc::bad_signature, Doing::handshaking,
                "the peer did not prove that it is " + short_form(hello.identity));
  return hello;
}

void Handshake::finish(Hello peer) {
  const auto ciphers = noise_->split();
  outcome_.emplace();
  outcome_->peer = std::move(peer);
  outcome_->send = ciphers.send;
  outcome_->receive = ciphers.receive;
  outcome_->invited = invite_.has_value() || context_.swarm.mode() == Mode::invite;
  noise_.reset();
  step_ = Step::done;
}

Error Handshake::on_end_of_stream() const {
  const bool silence = role_ == noise::Role::initiator && step_ == Step::message2 && input_.empty();
  if (silence && context_.swarm.mode() == Mode::invite)
    return {Errc::wrong_swarm, Doing::handshaking,
            "closed without a reply: the invite was used, has expired, or is another node's"};
  if (silence)
    return {Errc::wrong_swarm, Doing::handshaking,
            "closed without a reply: wrong secret, another swarm or version, or busy"};
  return {Errc::closed, Doing::handshaking, "the connection ended inside the handshake"};
}

HandshakeOutcome Handshake::take_outcome() {
  STARLING_CHECK(outcome_.has_value());
  auto outcome = std::move(*outcome_);
  outcome_.reset();
  return outcome;
}

}  // namespace starling::transport
