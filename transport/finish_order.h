// FinishOrder: an admin's word that a run is to end now (`finish.by = admin`).
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"

#include <cstddef>
#include <string>
#include <string_view>

namespace starling::transport {

// One run of one swarm. It is no secret: whoever has it can end that run, and nothing else; it is
// good for as long as that run goes on, whoever shows it.
struct FinishOrder {
  SwarmId swarm;
  Hash settings;  // the fingerprint that `starling status` shows
  Signature signature;

  friend bool operator==(const FinishOrder&, const FinishOrder&) = default;
};

// The bytes of the signature: swarm id (32), fingerprint of the settings (32).
inline constexpr std::string_view kFinishOrderDomain = "starling/finish-order/1";
[[nodiscard]] inline Bytes ordered_part(const SwarmId& swarm, const Hash& settings) {
  Bytes bytes = to_bytes(swarm.view());
  bytes.insert(bytes.end(), settings.bytes.begin(), settings.bytes.end());
  return bytes;
}
[[nodiscard]] FinishOrder order_finish(const SwarmId& swarm, const Hash& settings,
                                       const Signer& admin);
[[nodiscard]] bool signed_by(const NodeId& admin, const FinishOrder& order);

// One line: a word, then base64 of version (u8: 1), swarm id (32), fingerprint (32), signature
// (64).
[[nodiscard]] std::string print_finish_order(const FinishOrder& order);
// Errors:  corrupt, too_large. The signature is not checked.
// Tested:  tests/fuzz/transport_certificate_fuzz.cc.
[[nodiscard]] Result<FinishOrder> parse_finish_order(std::string_view text);
inline constexpr std::size_t kMaxFinishOrderText = 256;

}  // namespace starling::transport
