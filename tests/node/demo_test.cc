// `starling demo` over real processes: this binary is its own stand-in for a node, because the demo
// starts /proc/self/exe.
#define DOCTEST_CONFIG_IMPLEMENT
#include "node/cli/demo_nodes.h"
#include "node/cli/verbs.h"
#include "node/state_dir.h"
#include "tests/node/scratch.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;

namespace {

// A node that trains nothing: it takes its folder, "ends" with a hash, and goes. The batch says
// how: 6 gives the second node another hash, 7 makes it fail.
int stand_in(const Config& config, RunMode, const Terminal& terminal) {
  auto state = StateDir::open(config.node.dir);
  if (!state) return 3;
  const bool first = config.net.peers.empty();
  const bool told = first || (config.net.peers.front() == "127.0.0.1:4711" &&
                              read_whole(config.swarm.secret_file, 100) == "sesame");
  if (!told) return 2;
  if (config.train.batch == 7U && !first) {
    terminal.err << "the data is broken\n";
    return 7;
  }
  if (config.train.batch == 8U) {
    ::kill(::getpid(), SIGKILL);
  }
  std::filesystem::create_directories(state->final_dir());
  const bool odd = config.train.batch == 6U && !first;
  const std::string certificate = odd ? R"({"hash":"cd"})" : R"({"hash":"ab"})";
  const std::string status = R"({"progress":{"step":10,"samples":640},"model":{"parameters":1000},)"
                             R"("traffic":{"bytes_sent":2000},"eval":{"accuracy_ratio":0.5}})";
  if (!write_whole(state->final_dir() / "certificate.json", certificate)) return 1;
  if (!write_whole(state->last_status(), status)) return 1;
  if (!write_whole(state->secret(), "sesame", FileMode::secret)) return 1;
  if (!state->write_address("127.0.0.1:4711")) return 1;
  // The first node stays until the others had time to read its address: the demo reads on.
  for (int i = 0; first && i < 200; ++i) {
    if (std::filesystem::exists(state->path().parent_path() / "node-2")) break;
    (void)::poll(nullptr, 0, 25);
  }
  terminal.out << "trained " << config.data.train << ' ' << config.train.model << '\n';
  return 0;
}

struct Said {
  int code = 0;
  std::string out;
  std::string err;
};

Said demo(std::vector<std::string> words) {
  const Scratch scratch;
  words.insert(words.begin(), "demo");
  words.insert(words.end(), {"--dir", (scratch.path() / "d").string()});
  std::ostringstream out;
  std::ostringstream err;
  const Surroundings surroundings{{}, Terminal{out, err}, VerbHooks{&stand_in, nullptr, ""}};
  const int code = run_command_line(words, surroundings);
  return {code, out.str(), err.str()};
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("node/demo") {
  TEST_CASE("the nodes get one secret and one address, and end with one line") {
    const auto said = demo({"--nodes", "3", "--data", "synthetic"});
    INFO(said.err);
    CHECK(said.code == 0);
    CHECK(said.out == "final consensus: 3/3 replicas identical  blake2b ab\n");
    CHECK(contains(said.err, "node-3  | trained synthetic small"));
    CHECK(contains(said.err, "0.2 kB a step"));
    CHECK(contains(said.err, "50.0 %"));
  }

  TEST_CASE("replicas that differ are exit 6") {
    const auto said = demo({"--nodes", "3", "--data", "synthetic", "--batch", "6"});
    INFO(said.err);
    CHECK(said.code == 6);
    CHECK(contains(said.out, "2/3 replicas identical"));
  }

  TEST_CASE("a node that fails is named with its last words, and gives its exit code") {
    const auto said = demo({"--nodes", "2", "--data", "synthetic", "--batch", "7"});
    INFO(said.err);
    CHECK(said.code == 7);
    CHECK(contains(said.err, "the data is broken"));
  }

  TEST_CASE("a first node that dies ends the demo with what happened") {
    const auto said = demo({"--nodes", "2", "--data", "synthetic", "--batch", "8"});
    INFO(said.err);
    CHECK(said.code == 128 + SIGKILL);
    CHECK(contains(said.err, "node-1 ended"));
  }
}

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "run") {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const Surroundings surroundings{
        {}, Terminal{std::cout, std::cerr}, VerbHooks{&stand_in, nullptr, ""}};
    const int code = run_command_line(words, surroundings);
    std::cout << std::flush;
    return code;
  }
  return doctest::Context(argc, argv).run();
}
