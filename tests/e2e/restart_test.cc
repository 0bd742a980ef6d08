// Processes that end and begin again on the same folder: after the end, and after a crash.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <string>
#include <vector>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

std::vector<std::string> small_run(const std::string& samples) {
  return {"--data",  "synthetic:size=16,channels=1", "--model",   "small", "--batch", "32",
          "--until", "samples=" + samples,           "--threads", "1"};
}

std::string model_of(const NodeProcess& node) {
  return sha256_of(node.dir() / "final" / "model.safetensors");
}

// Whether any process in this folder began to train since its events were cleared.
bool ever_trained(const NodeProcess& node) {
  return read_text(node.dir() / "events.jsonl").find("\"phase\":\"training\"") != std::string::npos;
}

std::string phase_of(const NodeProcess& node) {
  const auto status = node.status();
  return status.is_object() ? status.at("phase").get<std::string>() : std::string();
}

}  // namespace

TEST_SUITE("e2e/restart") {
  TEST_CASE("a finished node that starts again trains never, and serves its model where told to") {
    Swarm swarm(small_run("20000"));
    swarm.start(2);
    INFO(swarm.logs());
    REQUIRE(swarm.wait_all({0, 1}, 180s) == std::vector<int>{0, 0});
    const std::string model = model_of(swarm.node(0));
    REQUIRE(model == model_of(swarm.node(1)));
    for (const std::size_t index : {0U, 1U})
      std::filesystem::remove(swarm.node(index).dir() / "events.jsonl");

    NodeProcess& idle = swarm.restart(1);
    const auto idle_ended = idle.process().wait(20s);
    REQUIRE(idle_ended.has_value());
    CHECK(idle_ended->status == 0);
    CHECK(idle.process().standard_output().find("2/2 replicas identical") != std::string::npos);
    CHECK_FALSE(ever_trained(idle));

    NodeProcess& server = swarm.restart(0, {"--set", "finish.then=serve"});
    REQUIRE(eventually(30s, [&] { return phase_of(server) == "finished"; }));
    NodeProcess& joiner = swarm.start_with_peer(server);
    const auto joined = joiner.process().wait(60s);

    INFO(swarm.logs());
    REQUIRE(joined.has_value());
    CHECK(joined->status == 0);
    CHECK(joiner.process().standard_output().find("(adopted)") != std::string::npos);
    CHECK(model_of(joiner) == model);
    CHECK(joiner.certificate() == server.certificate());
    CHECK_FALSE(ever_trained(joiner));

    CHECK(server.process().running());
    CHECK_FALSE(ever_trained(server));
    server.process().signal(SIGTERM);
    const auto served = server.process().wait(10s);
    REQUIRE(served.has_value());
    CHECK(served->status == 0);
  }
}
