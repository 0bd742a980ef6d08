// What a node refuses, and how it says so.
#include "tests/e2e/swarm.h"

#include <doctest/doctest.h>

using namespace starling::e2e;
using namespace std::chrono_literals;

TEST_SUITE("e2e/refusals") {
  TEST_CASE("a wrong secret is named as the likely cause, with exit 5") {
    Swarm swarm(endless_run());
    swarm.start(1);
    const TempDir other;
    NodeProcess stranger(
        other.path() / "stranger",
        {"--data", "synthetic", "--model", "small", "--peer", swarm.node(0).address(),
         "--require-peers", "1", "--join-timeout", "20s"});

    const auto ended = stranger.process().wait(60s);

    const auto text = stranger.process().standard_error();
    INFO(text);
    REQUIRE(ended.has_value());
    CHECK(ended->status == 5);
    CHECK(contains(text, "wrong secret"));
    CHECK(alive_members(swarm.node(0)) == 1);
  }

  TEST_CASE("another model is refused with the difference, with exit 5") {
    Swarm swarm(endless_run());
    swarm.start(1);
    const TempDir other;
    NodeProcess stranger(
        other.path() / "stranger",
        {"--data", "synthetic", "--model", "resnet18", "--img", "32", "--peer",
         swarm.node(0).address(), "--secret-file", swarm.secret_file(), "--require-peers", "1",
         "--join-timeout", "20s", "--until", "samples=5000"});

    const auto ended = stranger.process().wait(60s);

    const auto text = stranger.process().standard_error();
    INFO(text);
    REQUIRE(ended.has_value());
    CHECK(ended->status == 5);
    CHECK(contains(text, "resnet18"));
    CHECK(contains(text, "small"));
  }

  TEST_CASE("nobody to meet is exit 4 only where peers were required") {
    const TempDir dir;
    NodeProcess lonely(dir.path() / "lonely",
                       {"--data", "synthetic", "--model", "small", "--peer", "127.0.0.1:1",
                        "--require-peers", "1", "--join-timeout", "3s"});

    const auto ended = lonely.process().wait(60s);

    INFO(lonely.process().standard_error());
    REQUIRE(ended.has_value());
    CHECK(ended->status == 4);
  }

  TEST_CASE("a usage error names the flag and is exit 2") {
    const auto finished = run_to_end({starling_binary(), "run", "--bacth", "32"});

    INFO(finished.err);
    CHECK(finished.status == 2);
    CHECK(contains(finished.err, "--bacth"));
    CHECK(contains(finished.err, "--batch"));
  }

  TEST_CASE("an unreadable data set names the file and is exit 7") {
    const TempDir dir;
    const auto finished = run_to_end(
        {starling_binary(), "run", "--dir", (dir.path() / "n").string(), "--listen", "127.0.0.1:0",
         "--http", "off", "--data", "idx:/nonexistent", "--model", "small"});

    INFO(finished.err);
    CHECK(finished.status == 7);
    CHECK(contains(finished.err, "/nonexistent"));
  }
}
