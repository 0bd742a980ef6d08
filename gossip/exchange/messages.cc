#include "gossip/exchange/messages.h"

#include "node/base/hash.h"

#include <bit>

namespace starling::gossip {

std::string_view name_of(OpenMode mode) {
  return mode == OpenMode::genesis ? "genesis" : "snapshot";
}

std::string_view name_of(ResetReason reason) {
  switch (reason) {
    case ResetReason::sequence_differs:
      return "sequence_differs";
    case ResetReason::chain_differs:
      return "chain_differs";
    case ResetReason::spot_differs:
      return "spot_differs";
    case ResetReason::generation_differs:
      return "generation_differs";
    case ResetReason::bad_payload:
      return "bad_payload";
    case ResetReason::bad_header:
      return "bad_header";
  }
  return "?";
}

std::string_view name_of(CloseReason reason) {
  switch (reason) {
    case CloseReason::not_wanted:
      return "not_wanted";
    case CloseReason::full:
      return "full";
    case CloseReason::stale_generation:
      return "stale_generation";
    case CloseReason::too_many_resets:
      return "too_many_resets";
    case CloseReason::cooling:
      return "cooling";
    case CloseReason::genesis_differs:
      return "genesis_differs";
    case CloseReason::bad_snapshot:
      return "bad_snapshot";
    case CloseReason::timed_out:
      return "timed_out";
    case CloseReason::unknown_edge:
      return "unknown_edge";
    case CloseReason::replica_changed:
      return "replica_changed";
    case CloseReason::leaving:
      return "leaving";
    case CloseReason::finishing:
      return "finishing";
    case CloseReason::failed:
      return "failed";
    case CloseReason::misbehaved:
      return "misbehaved";
    case CloseReason::too_many_openings:
      return "too_many_openings";
    case CloseReason::session_lost:
      return "session_lost";
    case CloseReason::peer_restarted:
      return "peer_restarted";
  }
  return "?";
}

Hash name_of_offer(const Offer& offer) {
  Hasher hasher;
  hasher.add("starling offer")
      .add(offer.generation.value)
      .add(offer.seq.value)
      .add(offer.chain8)
      .add(offer.attempt)
      .add(static_cast<std::uint64_t>(offer.payload.level))
      .add(offer.figures.samples)
      .add(offer.figures.steps)
      .add(std::bit_cast<std::uint64_t>(offer.figures.age))
      .add(std::uint64_t{offer.spot.block})
      .add(offer.spot.hash.view())
      .add(offer.payload.bytes ? offer.payload.bytes->size() : 0);
  return hasher.finish();
}

}  // namespace starling::gossip
