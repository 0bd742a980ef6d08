// `starling chaos`: its schedule, what it says, and the doors that cut lines. The verb as a whole
// is tests/e2e's.
#include "node/cli/byte_proxies.h"
#include "node/cli/chaos_plan.h"
#include "node/observe/events.h"
#include "node/observe/line_tail.h"
#include "node/state_dir.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace starling::node::testing;

namespace {

// A socket on loopback that closes itself; everything on it has half a minute.
class Socket {
 public:
  explicit Socket(int number) : number_(number) {}
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int number() const { return number_; }

  void say(const std::string& text) const {
    CHECK(::send(number_, text.data(), text.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(text.size()));
  }
  [[nodiscard]] bool hears(int limit_ms) const {
    pollfd waiting{number_, POLLIN, 0};
    return ::poll(&waiting, 1, limit_ms) == 1;
  }
  [[nodiscard]] std::string heard() const {
    std::array<char, 64> bytes{};
    if (!hears(30'000)) return "silence";
    const auto count = ::recv(number_, bytes.data(), bytes.size(), 0);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
  }

 private:
  int number_;
};

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

int new_socket() { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

bool connects(const Socket& socket, const std::string& address) {
  const sockaddr_in to = loopback(std::stoi(address.substr(address.rfind(':') + 1)));
  return ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

// A node behind a door, as far as the door can tell.
struct Behind {
  explicit Behind(const std::filesystem::path& file) : listener(new_socket()) {
    sockaddr_in address = loopback(0);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(listener.number(), generic, size) == 0);
    REQUIRE(::listen(listener.number(), 8) == 0);
    REQUIRE(::getsockname(listener.number(), generic, &size) == 0);
    REQUIRE(write_whole(file, "127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "\n"));
  }
  [[nodiscard]] int accept() const {
    return listener.hears(30'000) ? ::accept(listener.number(), nullptr, nullptr) : -1;
  }
  Socket listener;
};

}  // namespace

TEST_SUITE("node/chaos") {
  TEST_CASE("a seed draws one schedule, in which every fault that was named happens") {
    const auto faults = parse_faults("kill,stop,partition,join,leave,kill").value();

    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      CAPTURE(seed);
      const auto plan = plan_chaos(faults, 4, seed);
      const auto again = plan_chaos(faults, 4, seed);
      REQUIRE(plan.size() == faults.size());
      for (std::size_t k = 0; k < plan.size(); ++k) {
        CHECK(plan[k].fault == again[k].fault);
        CHECK(plan[k].victims == again[k].victims);
      }
      for (const auto fault : faults)
        CHECK(std::ranges::count(plan, fault, &PlannedFault::fault) ==
              std::ranges::count(faults, fault));
    }
  }

  TEST_CASE("events are read to the last one, also where the file is begun anew") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.path() / "events.jsonl";
    LineTail tail(file);
    CHECK(tail.read().empty());

    std::size_t numbers = 0;
    for (int look = 0; look < 50; ++look) {
      CAPTURE(look);
      {
        // Its end waits until all is written. Five events are less than a file, so none is renamed
        // twice between two looks.
        auto events = EventLog::open(file, log, {.max_bytes = 700});
        REQUIRE(events);
        for (int i = 0; i < 5; ++i)
          events->append("member", {{"i", 5 * look + i}, {"name", std::string(50, 'n')}});
      }
      for (const auto& line : tail.read()) {
        const auto event = nlohmann::json::parse(line, nullptr, false);
        REQUIRE(event.is_object());
        CHECK(event.at("i") == numbers++);
      }
      CHECK(numbers == static_cast<std::size_t>(5 * look + 5));
    }
    CHECK(std::filesystem::exists(file.string() + ".1"));
  }

  TEST_CASE("a line is read when its end is there") {
    const TempFolder scratch;
    const auto file = scratch.write("events.jsonl", "one\ntw");
    LineTail tail(file);
    CHECK(tail.read() == std::vector<std::string>{"one"});
    std::ofstream(file, std::ios::app) << "o\nthree\n";
    CHECK(tail.read() == std::vector<std::string>{"two", "three"});
    CHECK(tail.read().empty());
  }

  TEST_CASE("who has left is no victim any more, and two nodes stay") {
    const auto faults = parse_faults("leave,leave,leave,kill,partition,stop").value();

    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      CAPTURE(seed);
      std::vector<std::size_t> left;
      for (const auto& planned : plan_chaos(faults, 3, seed)) {
        for (const auto victim : planned.victims)
          CHECK(std::ranges::find(left, victim) == left.end());
        if (planned.fault == ChaosFault::leave) left.push_back(planned.victims.front());
      }
      CHECK(left.size() == 1);
    }
  }

  TEST_CASE("a fault is told in a line and as an object, and what was not seen says so") {
    const FaultOutcome outcome{.planned = {ChaosFault::partition, {1, 4}},
                               .others_percent = 99.6,
                               .noticed_first_s = 1.25,
                               .noticed_all_s = std::nullopt,
                               .longest_pause_s = 0,
                               .whole_s = 0.9};

    CHECK(contains(chaos_line(outcome), "partition node-1,4"));
    CHECK(contains(chaos_line(outcome), "100 %"));
    CHECK(contains(chaos_line(outcome), "by all after not seen"));
    const auto json = to_json(outcome);
    CHECK(json.at("nodes") == nlohmann::json::array({1, 4}));
    CHECK(json.at("noticed_all_s").is_null());
    CHECK(json.at("whole_s") == 0.9);
  }

  TEST_CASE("a chaos that cannot be is refused before anything starts") {
    const auto code = [](Words words) {
      words.insert(words.begin(), "chaos");
      return said_by(words).code;
    };

    CHECK(code({"--nodes", "2"}) == 2);
    CHECK(code({"--faults", "kill,earthquake"}) == 2);
    CHECK(code({"--faults", ""}) == 2);
    CHECK(code({"--each", "1s"}) == 2);
    CHECK(code({"--schedule", "-1"}) == 2);
  }

  TEST_CASE("a door carries bytes both ways, holds them while its line is cut, and shuts") {
    const TempFolder folder;
    const auto file = folder.path() / "address";
    const Behind node(file);
    const auto proxies = ByteProxies::start(2).value();
    REQUIRE(proxies->open(0, ::getpid(), folder.path() / "nobody"));
    REQUIRE(proxies->open(1, ::getpid(), file));

    const Socket dialler(new_socket());
    REQUIRE(connects(dialler, proxies->address(1)));
    dialler.say("hello");
    const Socket dialled(node.accept());
    REQUIRE(dialled.number() >= 0);
    CHECK(dialled.heard() == "hello");
    dialled.say("yes?");
    CHECK(dialler.heard() == "yes?");

    proxies->split({0, 1});
    dialler.say("lost?");
    CHECK(!dialled.hears(300));
    proxies->mend();
    CHECK(dialled.heard() == "lost?");

    proxies->close(1);
    const Socket late(new_socket());
    CHECK(!connects(late, proxies->address(1)));
  }
}
