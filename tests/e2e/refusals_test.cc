// What a node refuses, and how it says so.
#include "node/base/bytes.h"
#include "tests/e2e/swarm.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

using namespace starling::e2e;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

// A connection that says a byte a second and waits.
class Drip {
 public:
  // From 127.1.0.`source` to a port of 127.0.0.1.
  Drip(std::uint8_t source, std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    REQUIRE(fd_ >= 0);
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f010000U | source);
    REQUIRE(::bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) == 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(port);
    open_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Drip() { (void)::close(fd_); }
  Drip(const Drip&) = delete;
  Drip& operator=(const Drip&) = delete;

  // Says its byte if it is time, and looks whether the other side hung up.
  void look(Clock::time_point now) {
    if (!open_) return;
    if (now >= next_byte_) {
      next_byte_ += 1s;
      (void)::send(fd_, "S", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    char byte = 0;
    const auto got = ::recv(fd_, &byte, 1, MSG_DONTWAIT);
    if (got > 0) ++replied_;
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      open_ = false;
      lived_ = now - began_;
    }
  }
  [[nodiscard]] bool open() const { return open_; }
  [[nodiscard]] int replied() const { return replied_; }
  [[nodiscard]] Clock::duration lived() const { return lived_; }

 private:
  int fd_ = -1;
  bool open_ = false;
  int replied_ = 0;
  Clock::time_point began_ = Clock::now();
  Clock::time_point next_byte_ = began_;
  Clock::duration lived_{};
};

std::uint16_t port_of(const NodeProcess& node) {
  const auto address = node.address();
  return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

// A folder for each class with some images of eight gray pixels a side.
std::filesystem::path class_folders(const std::filesystem::path& root,
                                    const std::vector<std::string>& names) {
  const auto png = starling::from_hex(
      "89504e470d0a1a0a0000000d49484452000000080000000808020000004b6d29dc0000000f4944415478da63"
      "48c0011886960400226c4801dbdd20f90000000049454e44ae426082");
  for (const std::string& name : names) {
    std::filesystem::create_directories(root / name);
    for (const char* file : {"1.png", "2.png", "3.png", "4.png"}) {
      std::ofstream out(root / name / file, std::ios::binary);
      for (const std::byte b : *png) out.put(static_cast<char>(b));
    }
  }
  return root;
}

}  // namespace

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
    CHECK(contains(text, "swarm.new_secret"));  // said before anybody was dialled
    CHECK(alive_members(swarm.node(0)) == 1);
  }

  TEST_CASE("who meets nobody is told what came of each address, and trains alone") {
    Swarm swarm(endless_run());
    swarm.start(1);
    const TempDir other;
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--peer", swarm.node(0).address(), "--peer", "127.0.0.1:1",
                                       "--join-grace", "10s"});
    NodeProcess stranger(other.path() / "stranger", arguments);

    REQUIRE(eventually(60s, [&] { return stranger.step() > 0; }));

    const auto text = stranger.process().standard_error();
    INFO(text);
    CHECK(contains(text, "wrong secret"));
    CHECK(contains(text, "address=" + swarm.node(0).address()));
    CHECK(contains(text, "address=127.0.0.1:1"));
    CHECK(contains(text, "refused"));
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

  TEST_CASE("data whose labels would mean other classes joins nobody, and is told the remedy") {
    const TempDir images;
    const auto all = class_folders(images.path() / "all", {"ant", "bee", "cat"});
    const auto fewer = class_folders(images.path() / "fewer", {"ant", "cat"});
    const std::vector<std::string> run{"--model", "small",   "--batch",
                                       "8",       "--until", "samples=1000000000",
                                       "--img",   "32",      "--data"};
    auto first = run;
    first.push_back(all.string());
    Swarm swarm(first);
    swarm.start(1);
    auto second = run;
    second.insert(second.end(),
                  {fewer.string(), "--peer", swarm.node(0).address(), "--secret-file",
                   swarm.secret_file(), "--require-peers", "1", "--join-timeout", "20s"});
    const TempDir other;
    NodeProcess stranger(other.path() / "stranger", second);

    const auto ended = stranger.process().wait(60s);

    const auto text = stranger.process().standard_error();
    INFO(text);
    REQUIRE(ended.has_value());
    CHECK(ended->status == 5);
    CHECK(contains(text, "the model is for 3 classes"));
    CHECK(contains(text, "an empty one for each class"));
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

  TEST_CASE("what cannot be written to standard output is no success") {
    const auto finished =
        run_to_end({"/bin/sh", "-c", "exec " + starling_binary() + " version >/dev/full"});

    CHECK(finished.status == 75);
    CHECK(contains(finished.err, "standard output"));
  }

  TEST_CASE("a dry run says what a start would make, and makes nothing") {
    const TempDir scratch;
    const auto dir = scratch.path() / "n";
    const auto plan = [&] {
      return run_to_end({starling_binary(), "run", "--dry-run", "--dir", dir.string(), "--data",
                         "synthetic:classes=3,size=8,train=30,val=6", "--model", "small"});
    };
    const auto fresh = plan();
    INFO(fresh.err);
    CHECK(fresh.status == 0);
    CHECK(contains(fresh.out, "would train small"));
    for (const char* made : {"/n: ", "/n/identity.key: ", "/n/secret: "})
      CHECK(contains(fresh.out, made));
    CHECK(std::filesystem::is_empty(scratch.path()));

    std::filesystem::create_directory(dir);
    CHECK(plan().status == 0);
    CHECK(std::filesystem::is_empty(dir));
  }

  TEST_CASE("a run whose time is over before anybody could train says so at once") {
    const TempDir dir;
    const auto said = run_to_end({starling_binary(), "run", "--dir", (dir.path() / "n").string(),
                                  "--listen", "127.0.0.1:0", "--http", "off", "--data",
                                  "synthetic:size=16,channels=1", "--model", "small", "--peer",
                                  "127.0.0.1:1", "--until", "time=1s", "--join-grace", "2s"});

    INFO(said.err);
    CHECK(said.status == 2);
    CHECK(contains(said.err, "time=1s was over before training began"));
    CHECK(contains(said.err, "--join-grace"));
  }

  TEST_CASE("an empty token file is refused, not taken for no guard") {
    const TempDir dir;
    std::ofstream(dir.path() / "token") << "\r\n";
    std::filesystem::permissions(dir.path() / "token", std::filesystem::perms::owner_read);
    const auto finished = run_to_end(
        {starling_binary(), "run", "--dir", (dir.path() / "n").string(), "--listen", "127.0.0.1:0",
         "--http", "127.0.0.1:0", "--set", "http.token_file=" + (dir.path() / "token").string(),
         "--data", "synthetic:classes=3,size=8,train=30,val=6", "--model", "small"});

    INFO(finished.err);
    CHECK(finished.status == 2);
    CHECK(contains(finished.err, "http.token_file"));
  }

  TEST_CASE("a secret file that is not there is named, with where to get it") {
    const TempDir dir;
    const auto missing = (dir.path() / "secret").string();
    const auto said =
        run_to_end({starling_binary(), "run", "--dir", (dir.path() / "n").string(), "--listen",
                    "127.0.0.1:0", "--http", "off", "--data", "synthetic:size=16,channels=1",
                    "--model", "small", "--secret-file", missing});
    CHECK(said.status == 3);
    CHECK(contains(said.err, "swarm.secret_file " + missing));
    CHECK(contains(said.err, "copy it"));
  }

  TEST_CASE("a port that another node has is refused with the remedy") {
    Swarm swarm(endless_run());
    swarm.start(1);
    const TempDir dir;
    const auto said = run_to_end({starling_binary(), "run", "--dir", (dir.path() / "n").string(),
                                  "--listen", swarm.node(0).address(), "--http", "off", "--data",
                                  "synthetic:size=16,channels=1", "--model", "small"});
    CHECK(said.status == 3);
    CHECK(contains(said.err, swarm.node(0).address()));
    CHECK(contains(said.err, "another with --listen"));
  }

  TEST_CASE("a file that may not grow is told like a full disk, and ends nothing by a signal") {
    const TempDir dir;
    const auto file = (dir.path() / "x.packed").string();
    const auto said = run_to_end(
        {"/bin/bash", "-c",
         "ulimit -f 8; exec " + starling_binary() +
             " data pack --data synthetic:size=32,train=400,val=40 --form raw --out " + file});
    CHECK(said.status > 0);
    CHECK(said.status < 128);
    CHECK(contains(said.err, file));
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

  TEST_CASE("a node whose images are gone keeps what it trained, is seen as left and says why") {
    const TempDir images;
    const auto data = class_folders(images.path() / "all", {"ant", "bee"});
    Swarm swarm({"--model", "small", "--batch", "8", "--until", "samples=1000000000", "--img", "32",
                 "--set", "data.max_bad=0", "--data", data.string()});
    swarm.start(1);
    // The other one reads the same images from a folder that stays.
    std::filesystem::copy(data, images.path() / "kept", std::filesystem::copy_options::recursive);
    NodeProcess& node = swarm.node(0);
    NodeProcess other(images.path() / "other",
                      {"--model", "small", "--batch", "8", "--until", "samples=1000000000", "--img",
                       "32", "--data", (images.path() / "kept").string(), "--peer", node.address(),
                       "--secret-file", swarm.secret_file()});
    REQUIRE(eventually(60s, [&] { return alive_members(other) == 2 && node.step() > 5; }));
    const auto id = node.id();

    std::filesystem::remove_all(data);

    // It waits for its storage first, for 51 s at most where no image is left.
    const auto ended = node.process().wait(180s);
    INFO(node.process().standard_error());
    REQUIRE(ended.has_value());
    CHECK(ended->status == 7);
    CHECK(contains(node.process().standard_error(), "No such file or directory"));
    const auto kept = nlohmann::json::parse(
        read_text(node.dir() / "checkpoints" / "latest" / "state.json"), nullptr, false);
    REQUIRE(kept.is_object());
    CHECK(kept.at("step") > 5);
    CHECK(eventually(10s, [&] { return other.state_of(id) == "left"; }));
  }

  TEST_CASE("a node whose images are away for long is not live until they are back") {
    const TempDir images;
    const auto data = class_folders(images.path() / "all", {"ant", "bee"});
    NodeProcess node(
        images.path() / "node",
        {"--model", "small", "--batch", "8", "--until", "samples=1000000000", "--img", "32",
         "--data", data.string(), "--http", "127.0.0.1:0", "--set", "http.train_limit=3s"});
    const auto exit_of_status = [&] {
      return run_to_end({starling_binary(), "status", "--quiet", "--dir", node.dir().string()})
          .status;
    };
    REQUIRE(eventually(60s, [&] { return node.step() > 5; }));
    CHECK(contains(node.page("/livez"), " 200 "));
    CHECK(exit_of_status() == 0);

    std::filesystem::rename(data, images.path() / "away");

    CHECK(eventually(60s, [&] { return contains(node.page("/livez"), " 503 "); }));
    REQUIRE(node.process().running());
    CHECK(eventually(10s, [&] { return exit_of_status() == 1; }));
    // No step ends, so what it shows is no speed: at most one batch in these seconds.
    const auto status = node.status();
    REQUIRE(status.is_object());
    CHECK(status.at("train").at("images_per_second") < 8 / 2);
    CHECK(contains(status.at("warnings").dump(), "no step for "));
    const auto step = node.step();
    std::filesystem::rename(images.path() / "away", data);
    CHECK(eventually(60s, [&] { return node.step() > step + 5; }));
    CHECK(contains(node.page("/livez"), " 200 "));
    CHECK(eventually(10s, [&] { return exit_of_status() == 0; }));
  }

  TEST_CASE("a node that nobody can dial says which port to open, and trains all the same") {
    Swarm swarm(endless_run());
    swarm.start(1);
    const TempDir other;
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--peer", swarm.node(0).address(), "--secret-file",
                                       swarm.secret_file(), "--advertise", "127.0.0.1:1"});
    NodeProcess node(other.path() / "node", arguments);

    REQUIRE(eventually(60s, [&] { return node.step() > 0; }));
    CHECK(eventually(30s, [&] {
      const auto status = node.status();
      return status.is_object() && status.at("reachable") == "no";
    }));
    const auto text = node.process().standard_error();
    INFO(text);
    CHECK(contains(text, "WARN node.not_reachable address=127.0.0.1:1 "));
    CHECK(contains(text, "open or forward TCP " + std::to_string(port_of(node))));
  }

  TEST_CASE(
      "metrics count the checkpoints that fail, and know when one was written before a start") {
    const TempDir dir;
    const auto checkpoints = dir.path() / "node" / "checkpoints";
    auto arguments = endless_run();
    arguments.insert(arguments.end(), {"--http", "127.0.0.1:0", "--set"});
    auto often = arguments;
    often.emplace_back("checkpoint.every=1s");
    {
      NodeProcess node(dir.path() / "node", often);
      REQUIRE(eventually(60s, [&] { return std::filesystem::exists(checkpoints / "latest"); }));
      const auto page = node.page("/metrics");
      CHECK(contains(page, "\nstarling_checkpoint_failures_total 0\n"));
      CHECK(contains(page, "\nstarling_last_step_age_seconds "));
      std::filesystem::rename(checkpoints, dir.path() / "kept");
      std::ofstream(checkpoints) << "no folder";
      CHECK(eventually(30s, [&] {
        const auto metrics = node.page("/metrics");
        return contains(metrics, "\nstarling_checkpoint_failures_total ") &&
               !contains(metrics, "\nstarling_checkpoint_failures_total 0\n");
      }));
    }
    std::filesystem::remove(checkpoints);
    std::filesystem::rename(dir.path() / "kept", checkpoints);
    arguments.emplace_back("checkpoint.every=1h");
    NodeProcess again(dir.path() / "node", arguments);
    REQUIRE(eventually(60s, [&] { return again.step() > 0; }));
    CHECK(
        contains(again.page("/metrics"), "\nstarling_checkpoint_last_success_timestamp_seconds 1"));
  }

  TEST_CASE("hundreds of strangers that say a byte a second are hung up on, and a member joins") {
    Swarm swarm(endless_run());
    swarm.start(1);
    const auto port = port_of(swarm.node(0));
    std::vector<std::unique_ptr<Drip>> strangers;
    for (int round = 0; round < 12; ++round)
      for (std::uint8_t source = 1; source <= 64; ++source)
        strangers.push_back(std::make_unique<Drip>(source, port));
    swarm.start_with_peer(swarm.node(0));

    const auto patience = Clock::now() + 60s;
    for (bool any = true; any && Clock::now() < patience;) {
      for (const auto& stranger : strangers) stranger->look(Clock::now());
      any = std::ranges::any_of(strangers, [](const auto& stranger) { return stranger->open(); });
      (void)::poll(nullptr, 0, 50);
    }

    Clock::duration longest{};
    for (const auto& stranger : strangers) {
      CHECK_FALSE(stranger->open());
      CHECK(stranger->replied() == 0);
      longest = std::max(longest, stranger->lived());
    }
    // Those that found a place had five seconds for a handshake, whatever they said meanwhile.
    CHECK(longest > 4s);
    CHECK(longest < 30s);
    CHECK(eventually(60s, [&] { return swarm.all_see({0, 1}, 2); }));
  }
}
