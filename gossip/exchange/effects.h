// What the exchange room asks its shell to do, and what it tells logs and metrics.
#pragma once

#include "gossip/delta/jobs.h"
#include "gossip/exchange/level_control.h"
#include "gossip/exchange/messages.h"
#include "node/base/clock.h"
#include "node/base/ids.h"

#include <string>
#include <variant>
#include <vector>

namespace starling::gossip {

// Whose decision something was.
enum class By : std::uint8_t { us, them };

struct EdgeOpened {
  NodeId peer;
  Generation generation;
  OpenMode mode = OpenMode::genesis;
};
struct EdgeWasReset {
  NodeId peer;
  Generation generation;  // the new one
  ResetReason reason = ResetReason::sequence_differs;
  By by = By::us;
};
struct EdgeWasClosed {
  NodeId peer;
  Generation generation;
  CloseReason reason = CloseReason::not_wanted;
  By by = By::us;
};
struct EdgeResumed {
  NodeId peer;
  Generation generation;
};

// How this node took part in an exchange.
enum class Role : std::uint8_t { initiator, responder, crossing };

struct Exchanged {
  NodeId peer;
  Seq seq;
  Role role = Role::initiator;
  Level own_level = Level::l2;
  Weight weight;
  float norm = 0;   // |q_their - q_own|
  float scale = 1;  // below 1: the increment was clipped
  Duration took{};  // from the own offer to its answer; zero for a responder
  std::size_t bytes_sent = 0;
  std::size_t bytes_received = 0;
  std::size_t channels_clipped = 0;  // BatchNorm statistics that were out of reason
};
// An exchange that was applied here and cannot be completed there (algorithm 5.6).
struct ExchangeTorn {
  NodeId peer;
  Seq seq;
};
struct OfferParked {
  NodeId peer;
  Seq seq;
};
// An offer was not answered.
struct OfferVoided {
  NodeId peer;
  Seq seq;
  By by = By::them;
  Duration retry_after{};
};
// Bytes of a peer did not decode, or contradict what it said before.
struct PayloadRefused {
  NodeId peer;
  Error error;
  std::uint32_t offences = 1;  // of this peer within the window, this one included
};
struct LevelChanged {
  NodeId peer;
  LevelDecision decision;
};
struct PeriodChanged {
  PeriodDecision decision;
};

using ExchangeEvent =
    std::variant<EdgeOpened, EdgeWasReset, EdgeWasClosed, EdgeResumed, Exchanged, ExchangeTorn,
                 OfferParked, OfferVoided, PayloadRefused, LevelChanged, PeriodChanged>;

// One aligned line for logs and traces, without a time.
[[nodiscard]] std::string to_string(const ExchangeEvent& event);

struct OutgoingExchange {
  NodeId to;
  ExchangeMessage message;
};
// A signed record that came with an opening: for membership, which checks it.
struct IncomingRecord {
  NodeId from;
  Bytes record;
};

// To be carried out in order: messages as handed over, jobs on the codec lane.
struct ExchangeEffects {
  std::vector<OutgoingExchange> send;
  std::vector<CodecJob> jobs;
  std::vector<ExchangeEvent> events;
  std::vector<IncomingRecord> records;
};

}  // namespace starling::gossip
