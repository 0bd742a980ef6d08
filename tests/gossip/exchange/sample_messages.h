// One message of each kind with every field set, for round trips and as fuzz seeds.
#pragma once

#include "gossip/exchange/messages.h"
#include "node/base/hash.h"

#include <vector>

namespace starling::gossip {

inline std::vector<ExchangeMessage> sample_messages() {
  const auto bytes = [](std::string_view text) { return share(to_bytes(as_bytes(text))); };
  const ReplicaFigures figures{.samples = 123456789, .steps = 4321, .age = 4000.5};
  return {
      EdgeOpen{{3}, OpenMode::genesis, hash_of(as_bytes("r")), 12.5, {}, nullptr},
      EdgeOpen{{4},
               OpenMode::snapshot,
               hash_of(as_bytes("r")),
               1e6,
               to_bytes(as_bytes("signed record")),
               bytes("L6 bytes of a replica")},
      EdgeOpenAck{{4}, hash_of(as_bytes("r")), 7},
      Offer{{4},
            {15},
            0x1122334455667788,
            9,
            Purpose::leave,
            figures,
            3.5F,
            {77, hash_of(as_bytes("block"))},
            {Level::l5, Statistics::with, bytes("a delta with statistics")}},
      Answer{
          {4}, {16}, 42, {33}, figures, {Level::l2, Statistics::without, bytes("another delta")}},
      Busy{{4}, {16}, hash_of(as_bytes("offer")), std::chrono::milliseconds(250)},
      Resume{{4}, {17}, 99, Pending::offer},
      EdgeReset{{5}, ResetReason::bad_header},
      EdgeClose{{5}, CloseReason::failed},
  };
}

}  // namespace starling::gossip
