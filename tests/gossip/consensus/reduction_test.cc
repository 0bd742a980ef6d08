// One node's reduction by itself: how much of others it lets come at a time.
#include "gossip/consensus/reduction.h"

#include "tests/gossip/consensus/fake_signing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace starling::gossip::consensus::testing {

namespace {

// All others have a session with node 0 and with nobody else.
Agreed make_star(std::size_t nodes) {
  std::vector<Finish> statements(nodes);
  for (std::size_t k = 0; k < nodes; ++k) statements[k].signer = node_id(k);
  for (std::size_t k = 1; k < nodes; ++k) {
    statements[k].sessions = {node_id(0)};
    statements[0].sessions.push_back(node_id(k));
  }
  std::ranges::sort(statements[0].sessions);
  std::vector<const Finish*> views;
  for (const auto& statement : statements) views.push_back(&statement);
  return make_agreed({{}, Epoch{1}}, views);
}

std::size_t chunks_begun(std::size_t nodes, std::size_t node) {
  const ChunkPlan plan({.parameters = 40 * kChunkBlocks * kBlockValues});
  ChunkStore store(plan.count());
  const FakeSigner signer(node_id(node));
  const FakeVerifier verifier;
  Reduction reduction(
      {.round = {{}, Epoch{1}}, .self = signer.id(), .fingerprint = {}, .agreed = make_star(nodes)},
      plan, store, signer, verifier);
  return reduction.start().jobs.size();
}

}  // namespace

TEST_SUITE("gossip/consensus/reduction") {
  TEST_CASE("a hub begins as many chunks as it has room for the sums of all others") {
    CHECK(chunks_begun(5, 0) == 8);
    CHECK(chunks_begun(5, 1) == 8);
    CHECK(chunks_begun(64, 1) == 8);
    CHECK(chunks_begun(64, 0) == 1);  // 62 or 63 sums of 0.9 MB
    CHECK(chunks_begun(32, 0) == 2);
    CHECK(chunks_begun(200, 0) == 1);  // one goes on in any case
  }
}

}  // namespace starling::gossip::consensus::testing
