// Signals that come before a node is up or ask it for something, and the keys of the live screen.
#include "tests/e2e/swarm.h"
#include "tests/support/terminal_process.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

// What makes a command the first process of its own world, as in a container; empty where this
// machine allows that to nobody.
std::vector<std::string> first_process() {
  for (std::vector<std::string> command :
       {std::vector<std::string>{"/usr/bin/unshare"},
        std::vector<std::string>{"/usr/bin/unshare", "--user"}}) {
    command.insert(command.end(), {"--pid", "--fork", "--kill-child"});
    auto probe = command;
    probe.emplace_back("/bin/true");
    if (run_to_end(probe).status == 0) return command;
  }
  return {};
}

// `starling run` that waits for the end of its invite, a pipe that it is given; behind `prefix`.
class Preparing {
 public:
  explicit Preparing(const std::vector<std::string>& prefix) {
    REQUIRE(::pipe(invite_.data()) == 0);
    REQUIRE(::fcntl(invite_[1], F_SETFD, FD_CLOEXEC) == 0);
    auto command = prefix;
    command.insert(command.end(), {starling_binary(), "run", "--dir", dir_.path() / "node",
                                   "--invite", "@/dev/fd/" + std::to_string(invite_[0])});
    for (const auto& word : small_run("1000")) command.push_back(word);
    process_ = std::make_unique<Process>(command, dir_.path());
    // Once what was written is gone from the pipe, it waits for more.
    REQUIRE(::write(invite_[1], "s", 1) == 1);
    REQUIRE(eventually(60s, [&] {
      int left = -1;
      return ::ioctl(invite_[0], FIONREAD, &left) == 0 && left == 0;
    }));
    pid_ = process_->pid();
    if (prefix.empty()) return;
    const auto of = std::to_string(pid_);
    std::istringstream(read_text("/proc/" + of + "/task/" + of + "/children")) >> pid_;
    REQUIRE(pid_ != process_->pid());
  }
  ~Preparing() {
    for (const int end : invite_)
      if (end >= 0) ::close(end);
  }
  Preparing(const Preparing&) = delete;
  Preparing& operator=(const Preparing&) = delete;

  void signal(int number) const { (void)::kill(pid_, number); }
  [[nodiscard]] Process& process() const { return *process_; }

 private:
  TempDir dir_;
  std::array<int, 2> invite_{-1, -1};
  std::unique_ptr<Process> process_;
  pid_t pid_ = -1;
};

}  // namespace

TEST_SUITE("e2e/signals") {
  TEST_CASE("a node that still prepares ends in order, the first process of a container too") {
    std::vector<std::vector<std::string>> prefixes{{}};
    if (auto first = first_process(); !first.empty())
      prefixes.push_back(std::move(first));
    else
      MESSAGE("this machine makes no process the first of its own world");
    for (const auto& prefix : prefixes) {
      for (const int number : {SIGTERM, SIGINT}) {
        CAPTURE(prefix.size());
        CAPTURE(number);
        const Preparing node(prefix);
        node.signal(number);
        const auto ended = node.process().wait(10s);
        REQUIRE(ended.has_value());
        CHECK(ended->status == 0);
        const auto said = node.process().standard_error();
        INFO(said);
        CHECK(contains(said, number == SIGINT ? "signal=SIGINT" : "signal=SIGTERM"));
      }
    }
  }

  TEST_CASE("a node that still prepares ends at no signal that asks for something else") {
    const Preparing node({});
    for (const int number : {SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT}) node.signal(number);
    node.signal(SIGTERM);
    const auto ended = node.process().wait(10s);
    REQUIRE(ended.has_value());
    CHECK(ended->status == 0);
  }

  TEST_CASE("SIGUSR1 saves a checkpoint, SIGQUIT tells the state, SIGUSR2 ends nothing") {
    const TempDir folder;
    NodeProcess node(folder.path() / "node", endless_run());
    REQUIRE(eventually(60s, [&] { return node.step() > 0; }));
    const auto tells = [&](const std::string& what) {
      return eventually(60s, [&] { return contains(node.process().standard_error(), what); });
    };
    CHECK_FALSE(std::filesystem::exists(node.dir() / "checkpoints" / "latest"));

    node.process().signal(SIGUSR1);
    CHECK(tells("checkpoint.saved"));
    CHECK(std::filesystem::exists(node.dir() / "checkpoints" / "latest" / "state.json"));

    node.process().signal(SIGQUIT);
    CHECK(tells("node.state line="));
    CHECK(eventually(60s, [&] { return std::filesystem::exists(node.dir() / "status.json"); }));
    const auto whole = nlohmann::json::parse(read_text(node.dir() / "status.json"));
    CHECK(whole.at("phase") == "training");

    node.process().signal(SIGUSR2);
    const auto step = node.step();
    CHECK(eventually(60s, [&] { return node.step() > step; }));
    node.process().signal(SIGTERM);
    const auto ended = node.process().wait(60s);
    REQUIRE(ended.has_value());
    CHECK(ended->status == 0);
  }

  TEST_CASE("the live screen of a run closes with q and with Ctrl-C, and the held lines come out") {
    for (const bool quits : {true, false}) {
      CAPTURE(quits);
      const TempDir dir;
      std::vector<std::string> command{
          starling_binary(), "run",         "--dir",    dir.path() / "node", "--ui",   "tui",
          "--name",          "mossy-otter", "--listen", "127.0.0.1:0",       "--http", "off"};
      for (const auto& word : endless_run()) command.push_back(word);
      starling::TerminalProcess node(command, {"TERM=xterm-256color", "LANG=C.UTF-8"});
      node.wait_for("mossy-otter");
      node.wait_for("img/s");
      CHECK(node.seen().find("samples=") == std::string::npos);  // of a line
      if (quits) {
        node.press("q");
        node.wait_for(starling::kPageBefore);
        node.wait_for("samples=");
      }
      node.press("\x03");  // leaves
      node.wait_for(starling::kPageBefore);
      node.wait_for("samples=");
      CHECK(node.end() == 0);
      CHECK(node.seen().rfind("samples=") > node.seen().find(starling::kPageBefore));
    }
  }
}
