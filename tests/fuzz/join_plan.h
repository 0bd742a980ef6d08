// What node a fuzzed Join is, who its peers are, and the models that the honest ones hold.
#pragma once

#include "bootstrap/join.h"
#include "node/base/hash.h"

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace starling::bootstrap::testing {

inline constexpr std::size_t kPeers = 4;
inline constexpr std::size_t kGuest = 3;  // the peer that may load from this node
// Of the models: one chunk, a byte more than one, and some chunks with a short one at the end.
inline constexpr std::array<std::size_t, 4> kSizes = {1000, kChunkBytes + 1, 2 * kChunkBytes + 100,
                                                      3 * kChunkBytes + 77};
inline const Hash kCertificate = hash_of(as_bytes("certificate"));

inline NodeId node_named(std::size_t number) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(number + 1);
  return id;
}
inline const NodeId kSelf = node_named(8);

inline transport::Endpoint endpoint(std::size_t number) {
  return {"10.0.0." + std::to_string(number), 7700};
}

inline Seed seed_at(transport::Endpoint endpoint, SeedKind kind = SeedKind::address) {
  Seed seed;
  seed.kind = kind;
  seed.endpoint = std::move(endpoint);
  return seed;
}

inline Settings settings_named(std::size_t number) {
  return *Settings::from(
      {{"lr", number == 1 ? "0.8" : "1.7"}, {"model", number == 2 ? "wide" : "toy"}});
}

// The bytes of a model of this size, cut and hashed once.
inline const Snapshot& model_of(std::size_t bytes) {
  static std::map<std::size_t, Snapshot> made;
  if (const auto at = made.find(bytes); at != made.end()) return at->second;
  Bytes model(bytes);
  Rng rng(bytes);
  for (auto& byte : model) byte = static_cast<std::byte>(rng() & 0xff);
  return made.emplace(bytes, *cut_snapshot({model}, {})).first->second;
}

inline SharedSnapshot snapshot_of(std::size_t bytes, const Hash& fingerprint, double age) {
  Snapshot snapshot = model_of(bytes);
  snapshot.manifest.fingerprint = fingerprint;
  snapshot.manifest.age = age;
  return std::make_shared<const Snapshot>(std::move(snapshot));  // Owners: see SharedSnapshot.
}

struct Plan {
  std::size_t bytes = 0;  // of the true model
  JoinParts parts;
  std::uint8_t seeds = 0;
};

inline Plan plan_from(std::uint8_t first, std::uint8_t second) {
  Plan plan;
  plan.bytes = kSizes[first % 4];
  plan.parts.own = settings_named(0);
  auto& options = plan.parts.options;
  options.transfer.window = std::array<std::size_t, 4>{8, 1, 2, 3}[first / 4 % 4];
  if (first & 16U) {
    options.transfer.max_joiners = 1;
    options.transfer.max_wrong = 2;
  }
  if (first & 32U) plan.parts.forced = {"lr"};
  if (first & 64U) plan.parts.start = Start::checkpoint;
  if (first & 128U) options.require_peers = 1;
  options.join_timeout = std::chrono::seconds(60);
  plan.seeds = second;
  return plan;
}

}  // namespace starling::bootstrap::testing
