#include "gossip/consensus/merge.h"

#include "gossip/consensus/contribution.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace starling::gossip::consensus::testing {
namespace {

using namespace std::chrono_literals;

constexpr ModelShape kShape{.parameters = 5000, .channels = 2, .counters = 1, .chunk_blocks = 1};

// A few nodes in lockstep: all messages at once in order, then time moves to the next deadline.
struct Group {
  explicit Group(std::size_t count) {
    for (std::size_t k = 0; k < count; ++k) {
      signers.push_back(std::make_unique<FakeSigner>(node_id(k)));
      ConsensusOptions options;
      options.fingerprint = hash_of(as_bytes("settings"));
      options.shape = kShape;
      merges.push_back(std::make_unique<Merge>(options, *signers[k], verifier));
      y.emplace_back(kShape.parameters, static_cast<float>(k + 1));
      x.emplace_back(kShape.parameters, 0.0F);
    }
    alive.assign(count, true);
    merged.assign(count, 0);
    failed.assign(count, {});
    for (std::size_t a = 0; a < count; ++a)
      for (std::size_t b = 0; b < count; ++b)
        if (a != b) act(a, merges[a]->on_session_up(now, node_id(b)));
  }

  std::size_t index(const NodeId& id) const {
    for (std::size_t k = 0; k < signers.size(); ++k)
      if (signers[k]->id() == id) return k;
    return 0;
  }

  void act(std::size_t k, ConsensusEffects effects) {
    for (auto& out : effects.send) wire.push_back({k, index(out.to), std::move(out.message)});
    if (effects.merged) ++merged[k];
    if (effects.merged) samples = effects.merged->samples;
    if (effects.failed) failed[k] = effects.failed->detail;
    if (effects.freeze) {
      CHECK(*effects.freeze == RunKind::merge);
      act(k, merges[k]->on_frozen(now));
    }
    for (const auto& job : effects.jobs) {
      const JobMemory memory{y[k],        small,           small,           counters, x[k],
                             result_mean, result_variance, result_counters, {}};
      act(k, merges[k]->on_job_done(now, run_job(job, ChunkPlan(kShape), memory)));
    }
  }

  void run(Duration limit) {
    const auto end = now + limit;
    while (true) {
      while (!wire.empty()) {
        auto [from, to, message] = std::move(wire.front());
        wire.pop_front();
        if (refuses && refuses(message)) {
          act(from, merges[from]->on_refused(now, node_id(to), message));
          continue;
        }
        if (alive[from] && alive[to]) act(to, merges[to]->on_message(now, node_id(from), message));
      }
      TimePoint next = end;
      for (std::size_t k = 0; k < merges.size(); ++k)
        if (alive[k]) next = std::min(next, merges[k]->next_deadline());
      now = std::max(now, next);
      if (now >= end) return;
      for (std::size_t k = 0; k < merges.size(); ++k)
        if (alive[k]) act(k, merges[k]->on_tick(now));
    }
  }

  struct Letter {
    std::size_t from;
    std::size_t to;
    ConsensusMessage message;
  };
  FakeVerifier verifier;
  std::vector<std::unique_ptr<FakeSigner>> signers;
  std::vector<std::unique_ptr<Merge>> merges;
  std::vector<std::vector<float>> y, x;
  std::vector<float> small{0.5F, 1.5F};
  std::vector<std::int64_t> counters{7};
  std::vector<float> result_mean{0, 0}, result_variance{0, 0};
  std::vector<std::int64_t> result_counters{0};
  std::vector<bool> alive;
  std::vector<int> merged;
  std::vector<std::string> failed;
  std::uint64_t samples = 0;  // of the last merge
  std::deque<Letter> wire;
  std::function<bool(const ConsensusMessage& message)> refuses;  // its receiver has no room for it
  TimePoint now{};
};

}  // namespace

TEST_SUITE("gossip/consensus/merge") {
  TEST_CASE("a merge gives every member the exact mean and leaves it ready for the next") {
    Group group(3);

    for (std::uint64_t number : {5ULL, 6ULL}) {
      auto begun = group.merges[1]->request(group.now, number);
      REQUIRE(begun.has_value());
      group.act(1, std::move(*begun));
      CHECK_FALSE(group.merges[1]->request(group.now, 9).has_value());
      group.run(30s);
    }

    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(group.merged[k] == 2);
      CHECK(group.failed[k].empty());
      CHECK(group.x[k] == std::vector<float>(kShape.parameters, 2.0F));
      CHECK_FALSE(group.merges[k]->running());
      CHECK(group.merges[k]->next_deadline() == kNever);
    }
  }

  TEST_CASE("a death aborts a merge at all, with the reason, and nothing is applied") {
    Group group(4);
    auto begun = group.merges[0]->request(group.now, 5);
    REQUIRE(begun.has_value());
    group.alive[3] = false;
    group.act(0, std::move(*begun));
    for (std::size_t k = 0; k < 3; ++k)
      group.act(k, group.merges[k]->on_session_down(group.now, node_id(3)));

    // Node 3 was stated as a session by nobody that is left: the merge goes on without it.
    group.run(60s);
    for (std::size_t k = 0; k < 3; ++k) CHECK(group.merged[k] == 1);

    group.alive[3] = true;
    for (std::size_t k = 0; k < 3; ++k) {
      group.act(k, group.merges[k]->on_session_up(group.now, node_id(3)));
      group.act(3, group.merges[3]->on_session_up(group.now, node_id(k)));
    }
    begun = group.merges[0]->request(group.now, 6);
    REQUIRE(begun.has_value());
    group.act(0, std::move(*begun));
    group.run(100ms);
    group.alive[3] = false;  // it made its statement, and dies before the set is confirmed
    group.run(60s);
    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(group.merged[k] == 1);
      CHECK_FALSE(group.failed[k].empty());
      CHECK_FALSE(group.merges[k]->running());
    }
  }

  TEST_CASE("a merge does not wait for who died before it signed: nobody shows it the result") {
    Group group(3);
    group.refuses = [](const ConsensusMessage& message) {
      const auto* signature = std::get_if<HashSignature>(&message);
      return signature != nullptr && signature->signer == node_id(2);
    };
    auto begun = group.merges[0]->request(group.now, 5);
    REQUIRE(begun.has_value());
    group.act(0, std::move(*begun));
    group.run(10s);
    CHECK(group.merges[0]->running());

    group.alive[2] = false;
    for (const std::size_t k : {0U, 1U})
      group.act(k, group.merges[k]->on_session_down(group.now, node_id(2)));
    group.run(5s);

    for (const std::size_t k : {0U, 1U}) CHECK_FALSE(group.failed[k].empty());
  }

  TEST_CASE("a merge survives that a member had no room for a message of each kind") {
    Group group(3);
    std::set<std::size_t> refused;
    group.refuses = [&](const ConsensusMessage& message) {
      const bool bulk = std::visit([](const auto& m) { return requires { m.values; }; }, message);
      return bulk && refused.insert(message.index()).second;
    };

    auto begun = group.merges[0]->request(group.now, 5);
    REQUIRE(begun.has_value());
    group.act(0, std::move(*begun));
    group.run(30s);

    CHECK(refused.size() == 3);  // Exponents, Sum, ResultChunk
    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(group.merged[k] == 1);
      CHECK(group.failed[k].empty());
      CHECK(group.x[k] == std::vector<float>(kShape.parameters, 2.0F));
    }
  }

  TEST_CASE("a merge names the samples of the swarm") {
    Group group(2);
    group.merges[0]->on_samples(1000);
    group.merges[1]->on_samples(1200);

    group.act(0, group.merges[0]->request(group.now, 5).value());
    group.run(30s);

    CHECK(group.merged[1] == 1);
    CHECK(group.samples == 1200);
  }

  TEST_CASE(
      "whom a merge leaves out hears so at once, ends it for nobody and takes part in the next") {
    Group group(4);
    bool aborted = false;
    group.refuses = [&](const ConsensusMessage& message) {
      aborted = aborted || std::holds_alternative<MergeAbort>(message);
      return false;
    };
    group.act(3, group.merges[3]->on_standing(group.now, Role::follower));

    group.act(0, group.merges[0]->request(group.now, 5).value());
    group.run(10s);

    for (std::size_t k = 0; k < 3; ++k) CHECK(group.merged[k] == 1);
    CHECK_FALSE(group.merges[3]->running());
    CHECK(group.failed[3].find("merge without this node") != std::string::npos);
    CHECK_FALSE(aborted);

    group.act(3, group.merges[3]->on_standing(group.now, Role::participant));
    group.act(0, group.merges[0]->request(group.now, 6).value());
    group.run(10s);

    for (std::size_t k = 0; k < 4; ++k) {
      CHECK(group.merged[k] == (k < 3 ? 2 : 1));
      CHECK(group.x[k] == std::vector<float>(kShape.parameters, 2.5F));
    }
  }

  TEST_CASE("a Finish aborts a merge everywhere") {
    Group group(3);
    auto begun = group.merges[0]->request(group.now, 5);
    REQUIRE(begun.has_value());
    group.act(0, std::move(*begun));
    group.run(50ms);

    group.act(2, group.merges[2]->abort(group.now, "the run finishes"));
    group.run(10s);

    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(group.merged[k] == 0);
      CHECK(group.failed[k].find("the run finishes") != std::string::npos);
    }
  }
}

}  // namespace starling::gossip::consensus::testing
