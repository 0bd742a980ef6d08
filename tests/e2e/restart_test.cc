// Processes that end and begin again on the same folder: after the end, and after a crash.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

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

std::vector<nlohmann::json> events_of(const NodeProcess& node, const std::string& name) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(read_text(node.dir() / "events.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    auto event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object() && event.value("event", "") == name) events.push_back(std::move(event));
  }
  return events;
}

// Of the last evaluation that a node's events tell.
double final_accuracy(const NodeProcess& node) {
  const auto evals = events_of(node, "eval");
  return evals.empty() ? -1 : evals.back().at("accuracy_ratio").get<double>();
}

}  // namespace

TEST_SUITE("e2e/restart") {
  TEST_CASE("a finished node that starts again trains never, and serves its model where told to") {
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--set", "gossip.tau=2"});
    Swarm swarm(arguments);
    swarm.start(2);
    INFO(swarm.logs());
    // Both have a part in the end, which nobody waits for.
    REQUIRE(eventually(60s, [&] { return exchanges(swarm.node(1)) >= kNewcomerExchanges; }));
    CHECK(swarm.finish(0));
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

    // Nobody knows any more what is beside it, and training again would replace that.
    std::filesystem::resize_file(server.dir() / "final" / "certificate.json", 300);
    const NodeProcess& damaged = swarm.restart(0);
    CHECK(swarm.wait_all({0}, 60s) == std::vector<int>{3});
    CHECK(contains(damaged.process().standard_error(), "certificate.json"));
    CHECK(model_of(damaged) == model);
  }

  TEST_CASE("an evaluation asked for after the end is one of the certified model") {
    auto arguments = small_run("6000");
    arguments.insert(arguments.end(), {"--set", "finish.then=serve"});
    Swarm swarm(arguments);
    swarm.start(1);
    const auto shown = [&] {
      const auto status = swarm.node(0).status();
      const bool evaluated = status.is_object() && status.at("eval").is_object();
      return evaluated ? status.at("eval").at("of").get<std::string>() : std::string();
    };
    INFO(swarm.logs());
    REQUIRE(eventually(120s, [&] { return shown() == "consensus"; }));

    const auto ask = [&] {
      return run_to_end(
          {starling_binary(), "eval", "--dir", swarm.node(0).dir().string(), "--json"});
    };
    const auto answer = ask();
    REQUIRE(answer.status == 0);
    CHECK(nlohmann::json::parse(answer.out).at("of") == "consensus");
    CHECK(shown() == "consensus");

    // A process that only serves has nothing to evaluate with, and says what to do instead.
    swarm.node(0).process().signal(SIGTERM);
    REQUIRE(swarm.wait_all({0}, 30s) == std::vector<int>{0});
    const NodeProcess& server = swarm.restart(0);
    REQUIRE(eventually(30s, [&] { return phase_of(server) == "finished"; }));
    const auto refused = ask();
    CHECK(refused.status == 3);
    CHECK(contains(refused.err, "final/model.safetensors"));
  }

  TEST_CASE("a finished run that is extended goes on from its certified model") {
    Swarm swarm(small_run("40000"));
    swarm.start(2);
    INFO(swarm.logs());
    REQUIRE(swarm.wait_all({0, 1}, 180s) == std::vector<int>{0, 0});
    const std::string model = model_of(swarm.node(0));
    const double accuracy = final_accuracy(swarm.node(0));
    for (const std::size_t index : {0U, 1U})
      std::filesystem::remove(swarm.node(index).dir() / "events.jsonl");

    // A handful of steps: from genesis they would lead nowhere near.
    std::vector<std::string> more{"--set", "run.extend=1", "--until", "samples=64"};
    const NodeProcess& first = swarm.restart(0, more);
    more.insert(more.end(), {"--peer", first.address()});
    swarm.restart(1, more);
    CHECK(swarm.wait_all({0, 1}, 180s) == std::vector<int>{0, 0});

    CHECK(ever_trained(first));
    CHECK(model_of(first) != model);
    CHECK(model_of(first) == model_of(swarm.node(1)));
    CHECK(first.certificate().at("samples") >= 64);
    CHECK(first.certificate().at("samples") < 4'000);
    CHECK(final_accuracy(first) > accuracy - 0.1);

    // Nobody extends what it does not have.
    std::filesystem::remove_all(swarm.node(1).dir() / "final");
    NodeProcess& without = swarm.restart(1, {"--set", "run.extend=2"});
    const auto refused = without.process().wait(20s);
    REQUIRE(refused.has_value());
    CHECK(refused->status == 2);
    CHECK(without.process().standard_error().find("run.extend = 2") != std::string::npos);
  }

  TEST_CASE("a killed node goes on from its checkpoint, finds the swarm and is in the final hash") {
    auto arguments = small_run("200000");
    arguments.insert(arguments.end(), {"--set", "checkpoint.every=1s"});
    Swarm swarm(arguments);
    swarm.start(3);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1, 2}, 3); }));
    REQUIRE(eventually(180s, [&] { return progress_share(swarm.node(0)) >= 0.2; }));
    const auto state_file = swarm.node(0).dir() / "checkpoints" / "latest" / "state.json";
    REQUIRE(eventually(60s, [&] { return std::filesystem::exists(state_file); }));

    // The first node: it was told of no peer and dialled nobody.
    const std::string id = swarm.node(0).id();
    const auto before = swarm.node(0).status();
    REQUIRE(before.is_object());
    const auto step = before.at("progress").at("step").get<std::int64_t>();
    const auto samples = before.at("progress").at("samples").get<std::int64_t>();
    swarm.node(0).process().signal(SIGKILL);
    REQUIRE(swarm.node(0).process().wait(10s).has_value());
    const auto saved = nlohmann::json::parse(read_text(state_file), nullptr, false);
    REQUIRE(saved.is_object());
    CHECK(saved.at("step").get<std::int64_t>() > step / 2);
    NodeProcess& back = swarm.restart(0);
    REQUIRE(eventually(60s, [&] { return back.step() > 0; }));
    const auto now = back.status();

    INFO(swarm.logs());
    REQUIRE(now.is_object());
    CHECK(now.at("node").at("id") == id);
    const auto& progress = now.at("progress");
    CHECK(progress.at("step").get<std::int64_t>() > saved.at("step").get<std::int64_t>());
    CHECK(progress.at("samples").get<std::uint64_t>() > saved.at("samples").get<std::uint64_t>());
    // What it did before the end counts, the checkpoint's part of it once.
    const auto again =
        progress.at("step").get<std::int64_t>() - saved.at("step").get<std::int64_t>();
    CHECK(progress.at("samples").get<std::int64_t>() < samples + samples / 4 + 32 * again);
    CHECK(eventually(30s, [&] { return swarm.all_see({0, 1, 2}, 3); }));

    CHECK(swarm.finish(0));
    CHECK(swarm.wait_all({0, 1, 2}, 300s) == std::vector<int>{0, 0, 0});
    const std::string model = model_of(swarm.node(0));
    CHECK(model == model_of(swarm.node(1)));
    CHECK(model == model_of(swarm.node(2)));
    const auto participants = swarm.node(1).certificate().at("participants");
    CHECK(std::ranges::count(participants, nlohmann::json(id)) == 1);

    const auto replicas = events_of(swarm.node(0), "replica");
    REQUIRE(replicas.size() == 2);
    CHECK(replicas.front().at("origin") == "genesis");
    CHECK(replicas.back().at("origin") == "restored");
    CHECK(replicas.back().at("age_steps").get<double>() > 0);
    CHECK(events_of(swarm.node(1), "replica").size() == 1);
    CHECK(events_of(swarm.node(2), "replica").size() == 1);
  }

  TEST_CASE("a start with a slip in its options costs the run before nothing") {
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--set", "checkpoint.every=1s"});
    Swarm swarm(arguments);
    swarm.start(1);
    const auto dir = swarm.node(0).dir();
    const auto latest = [&] { return read_text(dir / "checkpoints" / "latest" / "state.json"); };
    const auto leave = [&] {
      swarm.node(0).process().signal(SIGTERM);
      REQUIRE(swarm.wait_all({0}, 60s) == std::vector<int>{0});
    };
    REQUIRE(eventually(60s, [&] { return swarm.node(0).step() > 100; }));
    leave();
    const auto saved = nlohmann::json::parse(latest(), nullptr, false);
    REQUIRE(saved.is_object());
    const auto step = saved.at("step").get<std::int64_t>();

    for (int slips = 0; slips < 2; ++slips) {
      NodeProcess& slip = swarm.restart(0, {"--lr", "0.2"});
      INFO(swarm.logs());
      REQUIRE(eventually(60s, [&] { return slip.step() > 0; }));
      leave();
      CHECK(contains(slip.process().standard_error(),
                     slips == 0 ? "checkpoint.of_another_run" : "checkpoint.set_aside"));
      CHECK_FALSE(contains(latest(), saved.at("settings_fingerprint").get<std::string>()));
    }
    auto other = std::vector<std::string>{starling_binary(), "run", "--dir", dir.string()};
    other.insert(other.end(), arguments.begin(), arguments.end());
    other.insert(other.end(), {"--model", "resnet18", "--img", "32", "--dry-run"});
    const auto planned = run_to_end(other);
    INFO(planned.err);
    CHECK(contains(planned.err, "checkpoint.of_another_run"));
    CHECK_FALSE(contains(planned.err, "checkpoint.damaged"));

    NodeProcess& right = swarm.restart(0);
    std::int64_t first = 0;
    REQUIRE(eventually(60s, [&] {
      first = right.step();
      return first > 0;
    }));
    INFO(swarm.logs());
    CHECK(contains(right.process().standard_error(), "checkpoint.loaded"));
    CHECK(first >= step);
    leave();
    CHECK(contains(latest(), saved.at("settings_fingerprint").get<std::string>()));
    std::size_t aside = 0;  // the slip's, under one name
    for (const auto& entry : std::filesystem::directory_iterator(dir))
      aside += entry.path().filename().string().starts_with("checkpoints-") ? 1 : 0;
    CHECK(aside == 1);
  }

  TEST_CASE("a node that begins a swarm says at every start how the next one comes in") {
    const TempDir folder;
    const auto dir = folder.path() / "first";
    const auto secret = (dir / "secret").string();
    const auto leaves = [&](NodeProcess& node) {
      REQUIRE(eventually(60s, [&] { return node.step() > 0; }));
      CHECK(run_to_end({starling_binary(), "leave", "--dir", dir.string()}, 60s).status == 0);
      const auto ended = node.process().wait(60s);
      REQUIRE(ended.has_value());
      CHECK(ended->status == 0);
      return node.process().standard_error();
    };

    NodeProcess first(dir, endless_run());
    const auto address = first.address();
    const auto once = leaves(first);

    INFO(once);
    CHECK(contains(once, "To add a node on this machine"));  // it listens on loopback only
    CHECK(contains(once, "--peer " + address + " --secret-file " + secret));
    // Nothing failed: no end had begun.
    const auto status = nlohmann::json::parse(read_text(dir / "status.json"), nullptr, false);
    REQUIRE(status.is_object());
    CHECK(status.at("consensus").at("state") == "none");

    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--advertise", "node.example:7702"});
    NodeProcess again(dir, arguments);
    const auto twice = leaves(again);

    INFO(twice);
    CHECK(contains(twice, "To add a machine"));
    CHECK(contains(twice, "--peer node.example:7702 --secret-file secret"));
    CHECK(contains(twice, "checkpoint.loaded"));
  }

  TEST_CASE("where the log is JSON every line is, from the first to the last") {
    const TempDir folder;
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--log-format", "json", "--ui", "json"});
    NodeProcess node(folder.path() / "node", arguments);
    REQUIRE(eventually(60s, [&] { return node.step() > 0; }));
    node.process().signal(SIGTERM);
    const auto ended = node.process().wait(60s);
    REQUIRE(ended.has_value());
    CHECK(ended->status == 0);

    const auto text = node.process().standard_error();
    CHECK(contains(text, "node.started"));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(nlohmann::json::parse(line, nullptr, false).is_object());
    }
  }

  TEST_CASE("a checkpoint that is late for the deadline of a leave is told once") {
    const TempDir folder;
    // Large enough to take longer than the half of 100 ms that is left for it.
    NodeProcess node(folder.path() / "node", {"--data", "synthetic:size=32", "--model", "resnet18",
                                              "--batch", "8", "--threads", "1", "--ui", "none"});
    REQUIRE(eventually(120s, [&] { return node.step() > 0; }));

    const auto said = run_to_end(
        {starling_binary(), "leave", "--timeout", "100ms", "--dir", node.dir().string()}, 60s);
    REQUIRE(node.process().wait(60s).has_value());

    CHECK(said.status == 1);
    CHECK(contains(said.err, "not done before the deadline"));
    const auto text = node.process().standard_error();
    INFO(text);
    const std::string lost = "starling run: while";
    const auto first = text.find(lost);
    REQUIRE(first != std::string::npos);
    CHECK(text.find(lost, first + 1) == std::string::npos);
  }

  TEST_CASE("on IPv6 alone a member that is killed and comes back at another address is in again") {
    if (!contains(read_text("/proc/net/if_inet6"), " lo\n")) {
      MESSAGE("this machine has no IPv6 on its loopback");
      return;
    }
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--listen", "[::1]:0"});
    Swarm swarm(arguments);
    swarm.start(2);
    REQUIRE(eventually(60s, [&] { return swarm.all_see({0, 1}, 2); }));
    const std::string before = swarm.node(1).address();
    CHECK(before.starts_with("[::1]:"));

    // Nobody is named to the new process: it has the addresses that the old one saved.
    REQUIRE(eventually(60s, [&] {
      return contains(read_text(swarm.node(1).dir() / "peers.json"), swarm.node(0).address());
    }));
    swarm.node(1).process().signal(SIGKILL);
    REQUIRE(swarm.node(1).process().wait(10s).has_value());
    std::filesystem::remove(swarm.node(1).dir() / "address");
    NodeProcess& back = swarm.restart(1);

    INFO(swarm.logs());
    CHECK(back.address() != before);
    CHECK(eventually(60s, [&] {
      const auto status = swarm.node(0).status();
      if (!status.is_object() || alive_members(swarm.node(0)) != 2) return false;
      return std::ranges::any_of(status.at("members"), [&](const auto& member) {
        return member.value("address", "") == back.address();
      });
    }));
    CHECK(eventually(60s, [&] { return back.step() > 0; }));
  }

  TEST_CASE("join says who was met, and that nobody was, and takes nobody else for it") {
    Swarm swarm(endless_run());
    swarm.start(2);
    INFO(swarm.logs());
    const auto join = [&](const std::string& address) {
      return run_to_end(
          {starling_binary(), "join", address, "--dir", swarm.node(1).dir().string(), "--json"});
    };
    REQUIRE(eventually(30s, [&] { return join(swarm.node(0).address()).status == 0; }));

    const auto nobody = join("127.0.0.1:9");

    CHECK(nobody.status != 0);
    CHECK(contains(nobody.err, "127.0.0.1:9"));
    CHECK(contains(nobody.err, "refused"));
    const auto met = join(swarm.node(0).address());  // a session that is there already
    CHECK(met.status == 0);
    CHECK(contains(met.out, "peer"));
    // By a name, and from the side that was dialled.
    const auto port = swarm.node(1).address().substr(swarm.node(1).address().rfind(':'));
    const auto by_name = run_to_end({starling_binary(), "join", "localhost" + port, "--dir",
                                     swarm.node(0).dir().string(), "--json"});
    INFO(by_name.err);
    CHECK(by_name.status == 0);
    CHECK(contains(by_name.out, "peer"));
  }
}
