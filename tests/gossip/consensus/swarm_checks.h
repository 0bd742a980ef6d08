// What every test of a whole swarm checks at the end.
#pragma once

#include "gossip/consensus/certificate.h"
#include "tests/gossip/consensus/swarm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace starling::gossip::consensus::testing {

inline std::vector<std::size_t> all_of(Swarm& swarm) {
  std::vector<std::size_t> all(swarm.size());
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Every node in `nodes` finished with exactly the result of `participants`, and a certificate that
// names them and verifies.
inline void check_result(Swarm& swarm, const std::vector<std::size_t>& nodes,
                         const std::vector<std::size_t>& participants, Rule rule = Rule::mean) {
  const auto reference = reference_of(swarm, participants, rule);
  std::vector<NodeId> ids;
  for (const auto p : participants) ids.push_back(swarm.node(p).id);
  std::sort(ids.begin(), ids.end());
  for (const auto k : nodes) {
    CAPTURE(k);
    auto& node = swarm.node(k);
    CAPTURE(name_of(node.consensus->state().phase));
    CAPTURE(node.consensus->state().reason);
    REQUIRE(node.finished.has_value());
    CHECK(same_bits(node.x, reference.x));
    CHECK(same_bits(node.result_mean, reference.mean));
    CHECK(same_bits(node.result_variance, reference.variance));
    CHECK(same_bits(node.result_counters, reference.counters));
    const auto& certificate = node.finished->certificate;
    CHECK(certificate.participants == ids);
    CHECK(certificate.hash == swarm.node(nodes.front()).finished->certificate.hash);
    CHECK(verify(certificate, swarm.options().fingerprint, swarm.verifier()).has_value());
    const bool took_part = std::ranges::find(participants, k) != participants.end();
    CHECK((node.finished->role == Role::participant) == took_part);
    CHECK(node.may_exit);
  }
}

inline std::uint64_t epoch_of(Swarm& swarm, std::size_t node) {
  return swarm.node(node).finished->certificate.epoch.value;
}

}  // namespace starling::gossip::consensus::testing
