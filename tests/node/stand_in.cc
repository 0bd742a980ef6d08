// A stand-in for the starling binary: all its verbs, and a `run` that trains nothing.
#include "node/cli/verbs.h"
#include "node/state_dir.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;

namespace {

// A node that trains nothing: it takes its folder, "ends" with a hash, and goes. The batch says
// how: 6 gives the second node another hash, 7 makes it fail, 8 kills the first, and with 9 each
// writes down its process and stays.
int stand_in(const Config& config, RunMode, const Terminal& terminal) {
  auto state = StateDir::open(config.node.dir);
  if (!state) return 3;
  if (config.train.batch == 9U) {
    if (!write_whole(state->path() / "process", std::to_string(::getpid()) + "\n")) return 1;
    while (true) (void)::poll(nullptr, 0, -1);
  }
  const bool first = config.net.peers.empty();
  const bool open = config.swarm.mode == SwarmMode::open;
  const bool told = first || (config.net.peers.front() == "127.0.0.1:4711" &&
                              (open ? config.swarm.secret_file.empty()
                                    : read_whole(config.swarm.secret_file, 100) == "sesame"));
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
  if (!open && !write_whole(state->secret(), "sesame", FileMode::secret)) return 1;
  if (!state->write_address("127.0.0.1:4711")) return 1;
  // The first node stays until the others had time to read its address: the demo reads on.
  for (int i = 0; first && i < 200; ++i) {
    if (std::filesystem::exists(state->path().parent_path() / "node-2")) break;
    (void)::poll(nullptr, 0, 25);
  }
  terminal.out << "trained " << config.data.train << ' ' << config.train.model << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const Surroundings surroundings{{}, Terminal{std::cout, std::cerr}, VerbHooks{.run = &stand_in}};
  const int code = run_command_line(words, surroundings);
  std::cout << std::flush;
  return code;
}
