// `starling demo` over real processes: a stand-in for the binary, which the demo starts again for
// each node.
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

using namespace starling::node;
using namespace starling::node::testing;

namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Said demo(const std::string& flags) {
  const starling::TempFolder scratch;
  const auto out = scratch.path() / "out";
  const auto err = scratch.path() / "err";
  const auto dir = scratch.path() / "d";
  const std::string command = std::string(STARLING_STAND_IN) + " demo --data synthetic " + flags +
                              " --dir " + dir.string() + " > " + out.string() + " 2> " +
                              err.string();
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(out), text_of(err)};
}

}  // namespace

TEST_SUITE("node/demo") {
  TEST_CASE("the nodes get one secret and one address, and end with one line") {
    const auto said = demo("--nodes 3");
    INFO(said.err);
    CHECK(said.code == 0);
    CHECK(said.out == "final consensus: 3/3 replicas identical  blake2b ab\n");
    CHECK(contains(said.err, "node-3  | trained synthetic small"));
    CHECK(contains(said.err, "0.2 kB a step"));
    CHECK(contains(said.err, "50.0 %"));
  }

  TEST_CASE("the nodes of an open swarm are given no secret") {
    const auto said = demo("--nodes 2 --open");
    INFO(said.err);
    CHECK(said.code == 0);
    CHECK(contains(said.out, "2/2 replicas identical"));
  }

  TEST_CASE("what the demo chooses itself is refused, not ignored") {
    for (const auto* flag : {"--listen 127.0.0.1:1", "--peer 10.0.0.1:1", "--http off", "--ui none",
                             "--secret-file /nonexistent"}) {
      CAPTURE(flag);
      const auto said = demo(std::string("--nodes 2 ") + flag);
      CHECK(said.code == 2);
      CHECK(contains(said.err, "leave it out"));
    }
  }

  TEST_CASE("replicas that differ are exit 6") {
    const auto said = demo("--nodes 3 --batch 6");
    INFO(said.err);
    CHECK(said.code == 6);
    CHECK(contains(said.out, "2/3 replicas identical"));
  }

  TEST_CASE("a node that fails is named with its last words, and gives its exit code") {
    const auto said = demo("--nodes 2 --batch 7");
    INFO(said.err);
    CHECK(said.code == 7);
    CHECK(contains(said.err, "the data is broken"));
  }

  TEST_CASE("a first node that dies ends the demo with what happened") {
    const auto said = demo("--nodes 2 --batch 8");
    INFO(said.err);
    CHECK(said.code == 128 + SIGKILL);
    CHECK(contains(said.err, "node-1 ended"));
  }
}
