// Handshake: preamble, three Noise messages, and the proof of identity inside them; bytes in, bytes
// out.
#pragma once

#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "transport/identity.h"
#include "transport/limits.h"
#include "transport/noise.h"
#include "transport/secret.h"
#include "transport/wire_codec.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <unordered_set>

namespace starling::transport {

inline constexpr std::uint8_t kWireVersion = 1;

// The first 16 bytes of a connection, in clear.
struct Preamble {
  std::uint8_t version = kWireVersion;
  Mode mode = Mode::open;
  KeyId key{};

  friend bool operator==(const Preamble&, const Preamble&) = default;
};

[[nodiscard]] std::array<std::byte, limits::kPreamble> encode_preamble(const Preamble& preamble);
// Errors:  bad_message for bytes that are no preamble; version_mismatch for another version.
[[nodiscard]] Result<Preamble> decode_preamble(std::span<const std::byte, limits::kPreamble> bytes);

// Ephemeral keys of messages 1 that were answered, so that a recording of one opens nothing.
//
// Owned by the listener's side of transport, one per process. Thread: io. Limit: the newest 4,096
// keys of the last 120 s; a flood from holders of the secret can push older ones out, strangers
// never get one in.
class ReplayMemory {
 public:
  // True if the key was not seen within limits::kReplayMemory; it is remembered from now on.
  bool remember(TimePoint now, const noise::Key& ephemeral);
  [[nodiscard]] std::size_t size() const { return order_.size(); }

 private:
  struct KeyHash {
    std::size_t operator()(const noise::Key& key) const noexcept;
  };

  std::deque<std::pair<TimePoint, noise::Key>> order_;
  std::unordered_set<noise::Key, KeyHash> keys_;
};

// What this node brings into every handshake. Everything referred to outlives the handshake.
struct HandshakeContext {
  const Identity& identity;
  const noise::KeyPair& noise_static;  // lives as long as the process
  const SwarmKey& swarm;
  ReplayMemory& replays;
  Hello own;  // identity, signature and swarm are filled in by the handshake
  // Asked by the initiator when it knows the peer, before it sends message 3: an error ends the
  // handshake. May be empty.
  std::function<Result<void>(const Hello& peer)> check_peer;
  // Asked by the responder for the key of an invite, which nobody has used yet. May be empty: no
  // invites here.
  std::function<std::optional<noise::Key>(const KeyId&)> find_invite = {};
  // Asked by the responder once message 1 is valid and new, before it pays for a key exchange: no
  // ends the handshake. May be empty: it answers everybody.
  std::function<bool()> may_answer = {};
};

// What both sides have afterwards.
struct HandshakeOutcome {
  Hello peer;
  noise::CipherState send;
  noise::CipherState receive;
  Bytes rest;            // bytes after the handshake: the first records
  bool invited = false;  // the initiator came with an invite
};

// One side of one handshake.
//
//   initiator    | start           | bytes                                   | end of stream
//   want hello 2 | -               | msg 2 valid: send msg 3, done; else fail| wrong_swarm
//   ("silence")
//                                                                            | or closed, if part
//                                                                            came
//   (responder)  |                 |                                         |
//   want preamble| -               | valid: want msg 1; else fail            | closed
//   want msg 1   | -               | valid and new: send msg 2; else fail    | closed
//                                  | valid under an invite: redeeming        |
//   redeeming    | (on_redeemed: send msg 2, or fail)  any: fail             | -
//   want msg 3   | -               | valid: done; else fail                  | closed
//   done, failed | CHECK           | CHECK                                   | CHECK
//
// Owned by the coroutine that serves the connection; dropped afterwards. Thread: io. Cost: 0.13 ms
// for the responder, as much for the initiator; a stranger under a secret costs one AEAD of no
// bytes. A failure is never told to the peer: the caller closes without a word.
class Handshake {
 public:
  // The side that dials, perhaps knowing whom.
  [[nodiscard]] static Handshake initiate(HandshakeContext context, std::optional<NodeId> pin);
  // The side that accepted.
  [[nodiscard]] static Handshake respond(HandshakeContext context);

  // Bytes to send; empty when there are none. Each is given once.
  [[nodiscard]] Bytes take_output();

  // Consumes bytes from the peer, in any fragmentation.
  //
  // Errors:  bad_message, too_large, version_mismatch, wrong_swarm, bad_signature, wrong_identity,
  //          already_exists (we dialled ourselves, or a recorded message 1), duplicate_identity,
  //          too_many (may_answer said no).
  //          The handshake has failed.
  [[nodiscard]] Result<void> feed(TimePoint now, ByteView bytes);

  // The invite that the peer proved to hold: its use has to be counted, durably, before
  // on_redeemed() lets the handshake go on. Nothing at any other time.
  [[nodiscard]] std::optional<KeyId> redeeming() const;
  // Errors:  refused if the invite was used meanwhile, or its use could not be counted: the
  //          handshake has failed.
  [[nodiscard]] Result<void> on_redeemed(bool counted);

  // What the end of the stream means here.
  [[nodiscard]] Error on_end_of_stream() const;

  [[nodiscard]] bool done() const { return outcome_.has_value(); }
  [[nodiscard]] HandshakeOutcome take_outcome();

  // Once the responder knows that the peer holds the secret (it decrypted message 1); in an open
  // swarm, once message 1 was read.
  [[nodiscard]] bool answered() const { return answered_; }

 private:
  enum class Step : std::uint8_t {
    preamble,
    message1,
    redeeming,
    message2,
    message3,
    done,
    failed
  };

  Handshake(HandshakeContext context, noise::Role role, std::optional<NodeId> pin);

  [[nodiscard]] std::size_t needed() const;  // bytes of input that the next step waits for
  [[nodiscard]] Result<void> step(TimePoint now, ByteView unit);
  [[nodiscard]] Result<void> on_preamble(ByteView unit);
  [[nodiscard]] Result<void> on_message1(TimePoint now, ByteView message);
  [[nodiscard]] Result<void> on_message2(ByteView message);
  [[nodiscard]] Result<void> on_message3(ByteView message);
  [[nodiscard]] Result<void> start_noise(const Preamble& preamble);
  // The pre-shared key that the preamble names; nothing in an open swarm.
  [[nodiscard]] Result<std::optional<noise::Key>> find_psk(const Preamble& preamble) const;
  // The responder's message 2.
  [[nodiscard]] Result<void> answer();
  [[nodiscard]] Result<void> write_hello();
  [[nodiscard]] Result<Hello> check_hello(ByteView payload) const;
  void queue(ByteView message);
  void finish(Hello peer);

  HandshakeContext context_;
  noise::Role role_;
  std::optional<NodeId> pin_;
  Step step_;
  Bytes input_;
  Bytes output_;
  std::optional<noise::HandshakeState> noise_;
  std::optional<HandshakeOutcome> outcome_;
  std::optional<KeyId> invite_;  // that the preamble names
  bool answered_ = false;
};

}  // namespace starling::transport
