// Messages of the bootstrap room, as plain structs. Bytes: message_codec.h; prose: messages.capnp.
#pragma once

#include "bootstrap/settings.h"
#include "bootstrap/snapshot.h"
#include "gossip/membership/progress.h"
#include "node/base/bytes.h"
#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace starling::bootstrap {

inline constexpr std::size_t kMaxBootstrapBody = std::size_t{64} << 10;
inline constexpr std::size_t kMaxDonors = 16;
inline constexpr std::size_t kMaxReasonBytes = 160;
inline constexpr std::size_t kMaxSavedCounters = 32768;

// How far a node has come.
enum class RunPhase : std::uint8_t {
  starting = 1,  // has no model yet
  training = 2,
  finishing = 3,
  finished = 4,  // holds a certificate
  leaving = 5,
};

// The first thing that either side of a session says, and again when it changes.
struct Hello {
  Settings settings;
  std::set<std::string> forced;
  std::uint64_t alive = 0;    // members as far as the sender knows, itself included if it trains
  std::uint64_t samples = 0;  // P
  double age = 0;             // of its replica, in steps; 0: genesis, or none yet
  RunPhase phase = RunPhase::starting;
  std::uint32_t load = 0;  // joiners that it serves now
  Hash certificate;        // zero unless finished

  friend bool operator==(const Hello&, const Hello&) = default;
};

// "Give me a model", or, with an id, "do you hold this very snapshot?"
struct StateRequest {
  Hash fingerprint;
  Hash snapshot;  // zero: any
  friend bool operator==(const StateRequest&, const StateRequest&) = default;
};

// "This is what you can have from me."
struct StateManifest {
  Manifest manifest;
  std::uint64_t run_age_ms = 0;
  std::vector<NodeId> donors;                  // others that hold it, at most kMaxDonors
  std::vector<gossip::SavedCounter> counters;  // samples of every identity; travel as attachment
  friend bool operator==(const StateManifest&, const StateManifest&) = default;
};

enum class RefusalReason : std::uint8_t {
  busy = 1,            // serves as many as it can
  no_model = 2,        // has none (any more)
  other_settings = 3,  // trains something else
  not_held = 4,        // does not hold that snapshot
  ending = 5,          // leaves or finishes
};

struct StateRefused {
  Hash snapshot;  // as asked for
  RefusalReason reason = RefusalReason::busy;
  friend bool operator==(const StateRefused&, const StateRefused&) = default;
};

struct ChunkRequest {
  Hash snapshot;
  std::uint32_t index = 0;
  friend bool operator==(const ChunkRequest&, const ChunkRequest&) = default;
};

// One chunk, or (without bytes) the word that the snapshot is gone.
struct Chunk {
  Hash snapshot;
  std::uint32_t index = 0;
  SharedBytes bytes;  // the attachment; null: not held any more
  friend bool operator==(const Chunk& a, const Chunk& b) {
    const auto same_bytes = [](const SharedBytes& x, const SharedBytes& y) {
      return (!x && !y) || (x && y && *x == *y);
    };
    return a.snapshot == b.snapshot && a.index == b.index && same_bytes(a.bytes, b.bytes);
  }
};

// "I have everything": the sponsor counts one joiner less, and one donor more.
struct StateDone {
  Hash snapshot;
  friend bool operator==(const StateDone&, const StateDone&) = default;
};

// "Can you open a connection to me, at the address you see and this port?"
struct DialBackRequest {
  std::uint16_t port = 0;
  friend bool operator==(const DialBackRequest&, const DialBackRequest&) = default;
};

struct DialBackReply {
  std::uint16_t port = 0;
  bool reachable = false;
  std::string address;  // that was tried
  std::string detail;   // why not
  friend bool operator==(const DialBackReply&, const DialBackReply&) = default;
};

using BootstrapMessage =
    std::variant<Hello, StateRequest, StateManifest, StateRefused, ChunkRequest, Chunk, StateDone,
                 DialBackRequest, DialBackReply>;

}  // namespace starling::bootstrap
