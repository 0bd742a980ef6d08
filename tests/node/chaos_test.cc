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
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>
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
      const auto plan = plan_chaos(faults, 4, seed).value();
      const auto again = plan_chaos(faults, 4, seed).value();
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

  TEST_CASE("a line that is longer than any event is passed over, and costs no memory") {
    const TempFolder scratch;
    const auto file = scratch.path() / "events.jsonl";
    const std::string longest(LineTail::kMaxLine, 'x');
    for (const bool in_pieces : {false, true}) {
      LineTail tail(file);
      std::ofstream out(file, std::ios::trunc);
      out << "one\n" << longest << 'y' << std::flush;
      if (in_pieces) CHECK(tail.read() == std::vector<std::string>{"one"});
      out << longest << "\ntwo\n" << longest << "\n\n" << std::flush;
      auto lines = tail.read();
      if (!in_pieces) {
        REQUIRE_FALSE(lines.empty());
        CHECK(lines.front() == "one");
        lines.erase(lines.begin());
      }
      CHECK(lines == std::vector<std::string>{"two", longest, ""});
    }
  }

  TEST_CASE("who has left is no victim any more, and two nodes train together during each fault") {
    for (const auto* named : {"leave,kill,partition,stop", "leave,leave,join,kill,partition",
                              "join,join,leave,leave,leave,stop,stop", "leave"}) {
      const auto faults = parse_faults(named).value();
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        CAPTURE(named);
        CAPTURE(seed);
        const auto plan = plan_chaos(faults, 3, seed).value();
        CHECK(plan.size() == faults.size());
        std::set<std::size_t> here{1, 2, 3};
        for (const auto& planned : plan) {
          if (planned.fault == ChaosFault::join) {
            CHECK(here.insert(planned.victims.front()).second);
            continue;
          }
          for (const auto victim : planned.victims) CHECK(here.contains(victim));
          const auto others = here.size() - planned.victims.size();
          CHECK(std::max(others, planned.victims.size()) >= 2);
          if (planned.fault == ChaosFault::leave) here.erase(planned.victims.front());
        }
      }
    }
  }

  TEST_CASE("faults that cannot all be carried out are refused with the reason and the way out") {
    const auto refusal = [](std::size_t nodes, const std::string& named) {
      const auto plan = plan_chaos(parse_faults(named).value(), nodes, 1);
      return plan ? std::string("none") : plan.error();
    };

    CHECK(refusal(3, "leave,leave") ==
          "two nodes that stay: of --nodes 3 and 0 that join at most 1 may leave; name fewer, or "
          "begin with --nodes 4 or more");
    CHECK(refusal(4, "leave,leave") == "none");
    CHECK(refusal(3, "leave,leave,join") == "none");
    CHECK(refusal(15, "join,join") ==
          "17 nodes with --nodes 15, and 16 are the most on one machine: name at most 1 join, or "
          "begin with --nodes 14 or fewer");
    CHECK(refusal(16, "join") ==
          "17 nodes with --nodes 16, and 16 are the most on one machine: name no join, or begin "
          "with --nodes 15 or fewer");
    CHECK(refusal(15, "join") == "none");
    // Also where enough leave before: the order is the seed's, and the refusal is not.
    CHECK(contains(refusal(14, "join,join,join,leave,leave"), "17 nodes"));
  }

  TEST_CASE("of the faults too many are refused by their number, and a wrong one by the names") {
    std::string named = "stop";
    for (int k = 1; k < 100; ++k) named += ",stop";
    CHECK(parse_faults(named).value().size() == 100);
    CHECK(parse_faults(named + ",stop").error() == "at most 100 faults, not 101");
    CHECK(contains(parse_faults("kill,earthquake").error(), "partition"));
  }

  TEST_CASE("a partition is noticed by all when every node of both halves missed another") {
    const PlannedFault planned{ChaosFault::partition, {1, 2}};
    const std::vector<std::size_t> all{1, 2, 3, 4};
    std::vector<Sighting> seen{{3, 1, "suspect", 1.5}, {3, 1, "dead", 2}, {4, 1, "dead", 4},
                               {4, 2, "dead", 3},      {4, 3, "dead", 1}, {3, 3, "dead", 1}};
    CHECK(noticed(planned, all, seen).first_s == 1.5);
    CHECK(!noticed(planned, all, seen).all_s);

    seen.push_back({1, 3, "suspect", 1});
    seen.push_back({1, 3, "dead", 5});
    CHECK(noticed(planned, all, seen).first_s == 1);
    CHECK(!noticed(planned, all, seen).all_s);

    seen.push_back({2, 4, "dead", 6});
    CHECK(noticed(planned, all, seen).all_s == 6);
  }

  TEST_CASE("a death, a goodbye and an arrival are noticed as what they are") {
    const std::vector<std::size_t> others{1, 2};
    const std::vector<Sighting> died{{1, 3, "suspect", 1}, {1, 3, "dead", 3}, {2, 3, "dead", 2}};
    CHECK(noticed({ChaosFault::kill, {3}}, others, died).first_s == 1);
    CHECK(noticed({ChaosFault::kill, {3}}, others, died).all_s == 3);
    CHECK(!noticed({ChaosFault::leave, {3}}, others, died).all_s);

    const std::vector<Sighting> came{{1, 3, "alive", 4}, {2, 3, "alive", 2}, {2, 1, "dead", 1}};
    CHECK(noticed({ChaosFault::join, {3}}, others, came).first_s == 2);
    CHECK(noticed({ChaosFault::join, {3}}, others, came).all_s == 4);
    CHECK(!noticed({ChaosFault::join, {3}}, others, {}).first_s);
  }

  TEST_CASE("a fault is told in a line and as an object, and what was not seen says so") {
    const FaultOutcome outcome{.planned = {ChaosFault::partition, {1, 4}},
                               .others_percent = 99.6,
                               .noticed = {.first_s = 1.25, .all_s = std::nullopt},
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
    const auto said = [](Words words) {
      words.insert(words.begin(), "chaos");
      return said_by(words);
    };

    CHECK(said({"--nodes", "2"}).code == 2);
    CHECK(said({"--faults", "kill,earthquake"}).code == 2);
    CHECK(said({"--faults", ""}).code == 2);
    CHECK(said({"--each", "1s"}).code == 2);
    CHECK(said({"--schedule", "-1"}).code == 2);
    const auto many = said({"--nodes", "15", "--faults", "join,join"});
    CHECK(many.code == 2);
    CHECK(contains(many.err, "--faults join,join needs 17 nodes with --nodes 15"));
    const auto few = said({"--nodes", "3", "--faults", "leave,leave"});
    CHECK(few.code == 2);
    CHECK(contains(few.err, "--faults leave,leave needs two nodes that stay"));
    std::string long_list = "stop";
    for (int k = 0; k < 100; ++k) long_list += ",stop";
    const auto too_long = said({"--faults", long_list});
    CHECK(too_long.code == 2);
    CHECK(contains(too_long.err, "... needs at most 100 faults"));
  }

  TEST_CASE("a door's port is its own before it opens and after it shuts, and refuses who dials") {
    const TempFolder folder;
    const auto file = folder.path() / "address";
    const Behind node(file);
    const auto proxies = ByteProxies::start(2).value();
    const auto address = proxies->address(1);
    const auto is_kept = [&] {
      const Socket thief(new_socket());
      const sockaddr_in to = loopback(std::stoi(address.substr(address.rfind(':') + 1)));
      const int bound = ::bind(thief.number(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
      return bound != 0 && errno == EADDRINUSE;
    };
    const auto refuses = [&] {
      const Socket dialler(new_socket());
      return !connects(dialler, address) && errno == ECONNREFUSED;
    };

    for (int round = 0; round < 3; ++round) {
      CAPTURE(round);
      CHECK(is_kept());
      CHECK(refuses());
      REQUIRE(proxies->open(1, ::getpid(), file));
      CHECK(is_kept());
      const Socket dialler(new_socket());
      CHECK(connects(dialler, address));
      proxies->close(1);
    }
    CHECK(is_kept());
    CHECK(refuses());
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
