// Real processes that die, or whose files fail, at a named moment (node/base/fault_points.h).
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

constexpr int kKilled = 128 + SIGKILL;

// STARLING_FAULT for the processes that are started while this object lives.
class Fault {
 public:
  explicit Fault(const std::string& text) { ::setenv("STARLING_FAULT", text.c_str(), 1); }
  ~Fault() { ::unsetenv("STARLING_FAULT"); }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
};

// A release build has no fault points: it runs as if nothing were set.
bool has_fault_points() {
  const Fault nonsense("no.such_point@1:kill");
  const bool refuses = run_to_end({starling_binary(), "version"}).status == 2;
  if (!refuses) MESSAGE("this binary has no fault points: nothing is tested");
  return refuses;
}

std::set<std::string> models_of(Swarm& swarm, const std::vector<std::size_t>& nodes) {
  std::set<std::string> hashes;
  for (const auto index : nodes)
    hashes.insert(sha256_of(swarm.node(index).dir() / "final" / "model.safetensors"));
  return hashes;
}

// The largest step in the names of whole checkpoints.
std::int64_t newest_checkpoint(const std::filesystem::path& dir) {
  std::int64_t newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "checkpoints")) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-"))
      newest = std::max<std::int64_t>(newest, std::stoll(name.substr(5)));
  }
  return newest;
}

// Nodes of which one dies at a moment; the others must end with one model. How that one ended.
int end_of_one(const std::string& moment) {
  const bool at_the_end = contains(moment, "consensus.");
  // As many exchanges as the moment counts, however much the codec takes of such small steps.
  auto arguments = at_the_end ? endless_run() : small_run("16000");
  // And who has signed waits for the dead no longer than this test has to.
  arguments.insert(arguments.end(), {"--set", "gossip.tau=2", "--set", "finish.linger=5s"});
  Swarm swarm(arguments);
  swarm.start(1);
  {
    // The second, which is there from the beginning on as the last might not be.
    const Fault fault(moment);
    swarm.start(1);
  }
  swarm.start(2);
  INFO(swarm.logs());
  if (at_the_end) {
    CHECK(eventually(120s, [&] { return exchanges(swarm.node(1)) >= kNewcomerExchanges; }));
    CHECK(swarm.finish(0));
  }
  const int ended = swarm.wait_all({1}, 120s).front();
  CHECK(swarm.wait_all({0, 2, 3}, 120s) == std::vector<int>{0, 0, 0});
  CHECK(models_of(swarm, {0, 2, 3}).size() == 1);
  return ended;
}

void survive(const std::string& moment) {
  CAPTURE(moment);
  // A root divides and the others add up: of a model of few chunks not every node does both.
  const bool by_chance = contains(moment, "divided") || contains(moment, "summed");
  int ended = end_of_one(moment);
  for (int more = 2; by_chance && ended == 0 && more > 0; --more) ended = end_of_one(moment);
  CHECK((ended == kKilled || (by_chance && ended == 0)));
}

// A node to which the machine refuses something at a moment says so and asks to be started again.
void end_for_want(const std::string& moment, const std::vector<std::string>& run,
                  const std::string& words) {
  CAPTURE(moment);
  const TempDir dir;
  const Fault fault(moment + ":once");
  NodeProcess node(dir.path() / "node", run);
  const auto ended = node.process().wait(60s);
  REQUIRE(ended);
  CHECK(ended->status == 75);
  CHECK(contains(node.process().standard_error(), words));
}

}  // namespace

TEST_SUITE("e2e/fault_points") {
  TEST_CASE("a point that there is not is refused by name") {
    if (!has_fault_points()) return;
    for (const std::string wrong : {"no.such_point@1:kill", "net.read@0:fail", "net.read"}) {
      CAPTURE(wrong);
      const Fault fault(wrong);
      const auto ended = run_to_end({starling_binary(), "version"});
      CHECK(ended.status == 2);
      CHECK(ended.err.starts_with("starling: "));
    }
    const Fault fault("net.read@1000000:fail");
    CHECK(run_to_end({starling_binary(), "version"}).status == 0);
  }

  TEST_CASE("a node that dies in the middle of an exchange leaves the others one model") {
    if (!has_fault_points()) return;
    for (const char* moment :
         {"net.half_attachment@30:kill", "exchange.offered@30:kill", "exchange.applied@30:kill"})
      survive(moment);
  }

  TEST_CASE("a node that dies in any phase of the final consensus leaves the others one model") {
    if (!has_fault_points()) return;
    for (const char* phase : {"set_closed", "frozen", "summed", "divided", "reduced", "signed",
                              "certified", "finished"})
      survive("consensus." + std::string(phase) + "@1:kill");
  }

  TEST_CASE("a node that dies while it writes a checkpoint goes on from the one before") {
    if (!has_fault_points()) return;
    for (const std::string moment :
         {"checkpoint.before_state@3:kill", "checkpoint.before_rename@3:kill",
          "checkpoint.after_rename@3:kill", "file.flushed@8:kill"}) {
      CAPTURE(moment);
      auto arguments = endless_run();
      arguments.insert(arguments.end(), {"--set", "checkpoint.every=1s"});
      Swarm swarm(arguments);
      {
        const Fault fault(moment);
        swarm.start(1);
        CHECK(swarm.wait_all({0}, 60s) == std::vector<int>{kKilled});
      }
      const auto saved = newest_checkpoint(swarm.node(0).dir());
      REQUIRE(saved > 0);
      NodeProcess& again = swarm.restart(0);
      INFO(swarm.logs());
      std::int64_t first = -1;
      CHECK(eventually(30s, [&] {
        first = again.step();
        return first > 0;
      }));
      CHECK(first >= saved);  // a node that began anew would count from one
    }
  }

  TEST_CASE("a node that dies at the end of an extended run has what it goes on from") {
    if (!has_fault_points()) return;
    Swarm swarm(small_run("6400"));
    swarm.start(1);
    REQUIRE(swarm.wait_all({0}, 120s) == std::vector<int>{0});
    const auto model = models_of(swarm, {0});
    const std::vector<std::string> more{"--set", "run.extend=1", "--until", "samples=640"};
    {
      const Fault fault("final.before_certificate@1:kill");
      swarm.restart(0, more);
      REQUIRE(swarm.wait_all({0}, 120s) == std::vector<int>{kKilled});
    }
    CHECK(models_of(swarm, {0}) == model);
    const auto dir = swarm.node(0).dir();
    std::filesystem::remove_all(dir / "checkpoints");

    swarm.restart(0, more);
    INFO(swarm.logs());
    CHECK(swarm.wait_all({0}, 120s) == std::vector<int>{0});
    CHECK(models_of(swarm, {0}) != model);
    CHECK_FALSE(std::filesystem::exists(dir / "final.partial"));

    // Nobody is told of a model that is gone.
    std::filesystem::remove(dir / "final" / "model.safetensors");
    NodeProcess& without = swarm.restart(0, more);
    CHECK(swarm.wait_all({0}, 60s) != std::vector<int>{0});
    CHECK(contains(without.process().standard_error(), "remove the folder"));
  }

  TEST_CASE("a checkpoint that cannot be written is told, and training goes on") {
    if (!has_fault_points()) return;
    for (const char* moment :
         {"file.write@60:fail", "file.flush@5:fail", "checkpoint.before_rename@2:fail"}) {
      CAPTURE(moment);
      auto arguments = endless_run();
      arguments.insert(arguments.end(), {"--set", "checkpoint.every=1s"});
      Swarm swarm(arguments);
      {
        const Fault fault(moment);
        swarm.start(1);
      }
      NodeProcess& node = swarm.node(0);
      INFO(swarm.logs());
      REQUIRE(eventually(
          30s, [&] { return contains(node.process().standard_error(), "checkpoint.failed"); }));
      const auto step = node.step();
      CHECK(eventually(20s, [&] { return node.step() > step + 20; }));
      Finished status;
      CHECK(eventually(20s, [&] {
        status = run_to_end({starling_binary(), "status", "--dir", node.dir().string()}, 60s);
        return status.status == 1 && contains(status.out, "the last checkpoint was not written");
      }));
      INFO(status.out);
      // What was written before is whole: another process reads it.
      const auto evaluated =
          run_to_end({starling_binary(), "eval", "--dir", node.dir().string(), "--json"}, 60s);
      CHECK(evaluated.status == 0);
    }
  }

  TEST_CASE("a node that has no memory left for an exchange says so and ends, and no other does") {
    if (!has_fault_points()) return;
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--set", "gossip.tau=2"});
    Swarm swarm(arguments);
    swarm.start(1);
    {
      const Fault fault("lane.no_memory@20:fail");
      swarm.start(1);
    }
    CHECK(swarm.wait_all({1}, 60s) == std::vector<int>{75});
    CHECK(contains(swarm.node(1).process().standard_error(), "the machine has no memory left"));
    CHECK(swarm.node(0).process().running());
  }

  TEST_CASE("a node that has no memory for what it does beside training says so and ends") {
    if (!has_fault_points()) return;
    for (const char* moment :
         {"build.no_memory@1", "consensus.no_memory@1", "consensus.no_memory@2"})
      end_for_want(moment, small_run("2000"), "the machine has no memory left");
  }

  TEST_CASE("a node whose final model cannot be written keeps what it trained, and says why") {
    if (!has_fault_points()) return;
    Swarm swarm(endless_run());
    {
      const Fault fault("final.before_rename@1:fail");
      swarm.start(1);
    }
    NodeProcess& node = swarm.node(0);
    REQUIRE(eventually(30s, [&] { return node.step() > 5; }));
    const auto asked = run_to_end({starling_binary(), "finish", "--dir", node.dir().string()}, 60s);
    CHECK(asked.status != 0);
    CHECK(contains(asked.err, "final"));
    CHECK(swarm.wait_all({0}, 60s) == std::vector<int>{1});
    CHECK(contains(node.process().standard_error(), "the certified model is lost here"));
    CHECK(newest_checkpoint(node.dir()) > 5);
  }

  TEST_CASE("a node to which the machine refuses a thread that it needs says so and ends") {
    if (!has_fault_points()) return;
    // The one that writes events, the pools, the codec lane, the trainer.
    for (const int number : {1, 2, 3, 4})
      end_for_want("thread.refused@" + std::to_string(number), endless_run(),
                   "the machine refused a thread");
  }

  TEST_CASE("whoever asks a node to leave is told that its last checkpoint was not written") {
    if (!has_fault_points()) return;
    Swarm swarm(endless_run());
    {
      const Fault fault("checkpoint.before_rename@1:fail");
      swarm.start(1);
    }
    NodeProcess& node = swarm.node(0);
    REQUIRE(eventually(30s, [&] { return node.step() > 5; }));
    const auto left = run_to_end({starling_binary(), "leave", "--dir", node.dir().string()}, 60s);
    CHECK(left.status != 0);
    CHECK(contains(left.err, "since the checkpoint before is lost"));
    CHECK(swarm.wait_all({0}, 60s) == std::vector<int>{left.status});
    CHECK(contains(node.process().standard_error(), "since the checkpoint before is lost"));
  }
}
