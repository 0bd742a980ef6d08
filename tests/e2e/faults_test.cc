// Faults on real processes: death, freeze, loss of the first node, leaving.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <set>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

std::set<std::string> hashes_of(Swarm& swarm, const std::vector<std::size_t>& nodes) {
  std::set<std::string> hashes;
  for (const auto index : nodes)
    hashes.insert(sha256_of(swarm.node(index).dir() / "final" / "model.safetensors"));
  return hashes;
}

// What the replica that this node trains is worth now, as a share of the validation images.
double accuracy_of(const NodeProcess& node) {
  const auto evaluated =
      run_to_end({starling_binary(), "eval", "--dir", node.dir().string(), "--json"}, 60s);
  INFO(evaluated.err);
  REQUIRE(evaluated.status == 0);
  return nlohmann::json::parse(evaluated.out).at("accuracy_ratio").get<double>();
}

bool in_the_middle(const NodeProcess& node, double share) {
  return eventually(180s, [&] { return progress_share(node) >= share; });
}

// Waits until all of these would be participants of a final consensus, not followers.
bool take_part(Swarm& swarm, const std::vector<std::size_t>& nodes) {
  return eventually(60s, [&] {
    return std::ranges::all_of(nodes, [&](std::size_t index) {
      return exchanges(swarm.node(index)) >= kNewcomerExchanges;
    });
  });
}

}  // namespace

TEST_SUITE("e2e/faults") {
  TEST_CASE("a killed node stops nobody, and the other three end with one model") {
    auto arguments = small_run("120000");
    arguments.insert(arguments.end(), {"--set", "gossip.tau=2"});
    Swarm swarm(arguments);
    swarm.start(4);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1, 2, 3}, 4); }));
    REQUIRE(in_the_middle(swarm.node(0), 0.2));

    swarm.node(3).process().signal(SIGKILL);
    StepWatch watch({&swarm.node(0), &swarm.node(1), &swarm.node(2)});
    const bool noticed = eventually(30s, [&] {
      watch.look();
      return swarm.all_see({0, 1, 2}, 3);
    });

    INFO(swarm.logs());
    CHECK(noticed);
    CHECK(watch.longest_pause() < 5s);
    CHECK(take_part(swarm, {1, 2}));
    CHECK(swarm.finish(0));
    CHECK(swarm.wait_all({0, 1, 2}, 240s) == std::vector<int>{0, 0, 0});
    CHECK(hashes_of(swarm, {0, 1, 2}).size() == 1);
    CHECK(swarm.node(0).certificate().at("participants").size() == 3);
  }

  TEST_CASE("a frozen node stops nobody and comes back by itself") {
    auto arguments = small_run("300000");
    arguments.insert(arguments.end(), {"--set", "gossip.tau=2"});
    Swarm swarm(arguments);
    swarm.start(4);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1, 2, 3}, 4); }));
    REQUIRE(in_the_middle(swarm.node(0), 0.1));

    swarm.node(2).process().signal(SIGSTOP);
    StepWatch watch({&swarm.node(0), &swarm.node(1), &swarm.node(3)});
    const auto thaw = std::chrono::steady_clock::now() + 20s;
    (void)eventually(20s, [&] {
      watch.look();
      return std::chrono::steady_clock::now() > thaw;
    });
    swarm.node(2).process().signal(SIGCONT);

    INFO(swarm.logs());
    CHECK(watch.longest_pause() < 5s);
    CHECK(eventually(30s, [&] { return swarm.all_see({0, 1, 2, 3}, 4); }));
    CHECK(take_part(swarm, {1, 2, 3}));
    CHECK(swarm.finish(2));
    CHECK(swarm.wait_all({0, 1, 2, 3}, 300s) == std::vector<int>{0, 0, 0, 0});
    CHECK(hashes_of(swarm, {0, 1, 2, 3}).size() == 1);
    CHECK(swarm.node(0).certificate().at("participants").size() == 4);
  }

  TEST_CASE("a fifth node joins in the middle, and without the first a sixth still can") {
    // Whoever asks for an evaluation here waits for it, and training may.
    auto arguments = small_run("260000");
    arguments.insert(arguments.end(), {"--set", "eval.share=0.9"});
    Swarm swarm(arguments);
    swarm.start(4);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1, 2, 3}, 4); }));
    REQUIRE(in_the_middle(swarm.node(0), 0.1));

    swarm.start_with_peer(swarm.node(0));
    INFO(swarm.logs());
    REQUIRE(eventually(30s, [&] { return swarm.all_see({0, 1, 2, 3, 4}, 5); }));
    // It begins with what its sponsor has, not with the genesis.
    const double joiner = accuracy_of(swarm.node(4));
    CHECK(joiner > accuracy_of(swarm.node(0)) - 0.1);

    swarm.node(0).process().signal(SIGKILL);
    CHECK(eventually(30s, [&] { return swarm.all_see({1, 2, 3, 4}, 4); }));
    swarm.start_with_peer(swarm.node(3));
    CHECK(eventually(30s, [&] { return swarm.all_see({1, 2, 3, 4, 5}, 5); }));

    CHECK(swarm.finish(1));
    CHECK(swarm.wait_all({1, 2, 3, 4, 5}, 300s) == std::vector<int>{0, 0, 0, 0, 0});
    CHECK(hashes_of(swarm, {1, 2, 3, 4, 5}).size() == 1);
  }

  TEST_CASE("a node that leaves writes its checkpoint, ends with 0, and is seen as left") {
    // So much time that a node which waited for its end would not end in this test.
    std::vector<std::string> arguments = small_run("200000");
    arguments.insert(arguments.end(), {"--set", "leave.timeout=300s"});
    Swarm swarm(arguments);
    swarm.start(3);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1, 2}, 3); }));
    REQUIRE(in_the_middle(swarm.node(0), 0.05));
    const std::string by_signal = swarm.node(2).id();
    const std::string by_verb = swarm.node(1).id();

    swarm.node(2).process().signal(SIGTERM);
    const auto ended = swarm.node(2).process().wait(60s);
    const auto asked =
        run_to_end({starling_binary(), "leave", "--dir", swarm.node(1).dir().string()}, 60s);
    const auto left = swarm.node(1).process().wait(60s);

    INFO(swarm.logs());
    REQUIRE(ended.has_value());
    CHECK(ended->status == 0);
    CHECK(asked.status == 0);
    REQUIRE(left.has_value());
    CHECK(left->status == 0);
    for (const std::size_t index : {1U, 2U}) {
      const auto& dir = swarm.node(index).dir();
      const auto kept = nlohmann::json::parse(
          read_text(dir / "checkpoints" / "latest" / "state.json"), nullptr, false);
      const auto last = nlohmann::json::parse(read_text(dir / "status.json"), nullptr, false);
      REQUIRE(kept.is_object());
      REQUIRE(last.is_object());
      CHECK(kept.at("step") == last.at("progress").at("step"));  // not one step is lost
    }
    CHECK(eventually(10s, [&] { return swarm.node(0).state_of(by_signal) == "left"; }));
    CHECK(eventually(10s, [&] { return swarm.node(0).state_of(by_verb) == "left"; }));
  }

  TEST_CASE("a node that is told to leave while the swarm ends has its part in the end") {
    std::vector<std::string> arguments = endless_run();
    arguments.insert(arguments.end(), {"--set", "leave.timeout=300s", "--set", "gossip.tau=2"});
    Swarm swarm(arguments);
    swarm.start(2);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1}, 2); }));
    REQUIRE(take_part(swarm, {1}));
    Process finish({starling_binary(), "finish", "--dir", swarm.node(0).dir().string()},
                   swarm.path());
    // A moment of tenths of a second: wherever in it, or just behind it, the signal comes.
    REQUIRE(eventually(60s, [&] {
      return contains(read_text(swarm.node(1).dir() / "events.jsonl"), "\"finishing\"");
    }));

    swarm.node(1).process().signal(SIGTERM);

    CHECK(swarm.wait_all({0, 1}, 240s) == std::vector<int>{0, 0});
    INFO(swarm.logs());
    CHECK(hashes_of(swarm, {0, 1}).size() == 1);
    CHECK(swarm.node(0).certificate().at("participants").size() == 2);
    CHECK(contains(swarm.node(1).process().standard_output(), "final consensus: 2/2 replicas"));
  }
}
