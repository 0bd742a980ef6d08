// `starling demo` over real processes: a stand-in for the binary, which the demo starts again for
// each node.
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

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

// A verb whose nodes stay, in a temporary folder of its own, that is sent a signal when the first
// of them runs.
struct Stopped {
  int code = -1;
  bool nodes_run = true;
  bool leaves_files = true;
};

Stopped stopped(const std::string& verb, int number) {
  const starling::TempFolder scratch;
  const auto place = "TMPDIR=" + scratch.path().string();
  std::vector<std::string> words{"/usr/bin/env", place,      STARLING_STAND_IN, verb,
                                 "--nodes",      "3",        "--batch",         "9",
                                 "--data",       "synthetic"};
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t process = -1;
  REQUIRE(::posix_spawn(&process, pointers[0], nullptr, nullptr, pointers.data(), environ) == 0);
  pid_t node = -1;
  for (int look = 0; look < 3'000 && node < 0; ++look) {
    (void)::poll(nullptr, 0, 20);
    for (const auto& folder : std::filesystem::directory_iterator(scratch.path()))
      if (const auto text = text_of(folder.path() / "node-1" / "process"); text.ends_with('\n'))
        node = std::stoi(text);
  }
  (void)::kill(process, number);
  int status = -1;
  REQUIRE(::waitpid(process, &status, 0) == process);
  REQUIRE(node > 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ::kill(node, 0) == 0,
          !std::filesystem::is_empty(scratch.path())};
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

  TEST_CASE("a demo and a chaos that are stopped end with 128 and the signal, and no node stays") {
    for (const int number : {SIGTERM, SIGINT}) {
      CAPTURE(number);
      const auto demo = stopped("demo", number);
      CHECK(demo.code == 128 + number);
      CHECK_FALSE(demo.nodes_run);
      const auto chaos = stopped("chaos", number);
      CHECK(chaos.code == 128 + number);
      CHECK_FALSE(chaos.nodes_run);
      CHECK_FALSE(chaos.leaves_files);
    }
  }
}
