// Consensus messages to and from the wire. Everything a peer sent is bounded and checked here, but
// for what needs state: sizes that follow from the model (reduction.cc) and signatures.
#pragma once

#include "gossip/consensus/messages.h"
#include "node/base/result.h"
#include "transport/message.h"

#include <cstddef>
#include <cstdint>

namespace starling::gossip::consensus {

enum class MessageType : std::uint16_t {
  finish = 0x0301,
  participants = 0x0302,
  exponents = 0x0303,
  sum = 0x0304,
  contribution = 0x0305,
  result_chunk = 0x0306,
  hash_signature = 0x0307,
  refusal = 0x0308,
  certificate = 0x0309,
  chunk_request = 0x030a,
  chunk = 0x030b,
  acknowledge = 0x030c,
  merge_request = 0x030d,
  merge_abort = 0x030e,
  equivocation = 0x030f,
};

inline constexpr std::size_t kMaxConsensusBody = std::size_t{64} << 10;
inline constexpr std::size_t kMaxAbortReason = 200;
// The largest attachments: 64 bits a value of one chunk; every exponent of 2^20 channels; a
// certificate of 4,096 participants and 65,536 chunks.
inline constexpr std::size_t kMaxConsensusAttachment = std::size_t{8} << 20;

[[nodiscard]] transport::Message encode(const ConsensusMessage& message);

// Errors:  bad_message or too_large, naming the field; never allocates more than the message.
[[nodiscard]] Result<ConsensusMessage> decode(const transport::Message& message);

}  // namespace starling::gossip::consensus
