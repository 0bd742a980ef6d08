#include "transport/resolver.h"

#include "node/base/clock.h"
#include "node/base/log.h"
#include "tests/transport/names.h"
#include "transport/dialer.h"
#include "transport/task_group.h"

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <doctest/doctest.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling::transport {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;

using Endpoints = std::vector<tcp::endpoint>;

// A node's io thread that asks for names.
struct Asker {
  explicit Asker(const std::shared_ptr<Names>& names) {
    asio::make_service<Resolver>(io,
                                 [names](const std::string& host) { return names->look_up(host); });
  }

  ~Asker() { stop(); }
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

  // The answer appears in the place that is returned.
  std::size_t ask(std::string host, Duration time = 1h) {
    answers.emplace_back();
    tasks.spawn("ask", [this, at = answers.size() - 1, host = std::move(host), time] {
      return wait(at, host, time);
    });
    return answers.size() - 1;
  }

  Task<> wait(std::size_t at, std::string host, Duration time) {
    auto resolving = resolve({std::move(host), 7'000}, time);
    auto resolved = co_await std::move(resolving);
    answers[at].emplace(std::move(resolved));
  }

  // Asks after stop() has begun.
  Task<> wait_late(std::string host) {
    answers.emplace_back();
    asio::steady_timer never(io, asio::steady_timer::time_point::max());
    const auto [error] = co_await never.async_wait(as_result);
    REQUIRE(error);
    auto waiting = wait(0, std::move(host), 1h);
    co_await std::move(waiting);
  }

  void stop() {
    asio::co_spawn(io, [this] { return tasks.stop(); }, [](const std::exception_ptr&) {});
    io.restart();
    io.run();  // returns by itself
  }

  bool run_until_answered(std::size_t at) {
    const SteadyClock clock;
    for (const auto end = clock.now() + 30s; !answers[at] && clock.now() < end;) {
      if (io.stopped()) io.restart();
      io.run_one_for(50ms);
    }
    return answers[at].has_value();
  }

  asio::io_context io{1};
  NullLog log;
  TaskGroup tasks{io.get_executor(), log};
  std::vector<std::optional<Result<Endpoints>>> answers;
};

const Endpoints kAnswer{{asio::ip::address_v4::loopback(), 7'000}};

TEST_SUITE("transport/resolver") {
  TEST_CASE("leaving does not wait for a name that gets no answer") {
    // Owners: this test and the thread that looks the name up.
    const auto names = std::make_shared<Names>();
    {
      Asker asker(names);
      const auto silent = asker.ask("silent.example");
      asker.io.poll();
      REQUIRE(names->wait_for_inside(1));

      asker.stop();
      REQUIRE(asker.answers[silent]);
      REQUIRE_FALSE(*asker.answers[silent]);
      CHECK(asker.answers[silent]->error().code == Errc::cancelled);
    }
    // The io_context has gone, the look-up has not: its answer finds nobody.
    CHECK(names->inside() == 1);
    names->speak();
    CHECK(names->wait_for_inside(0));
  }

  TEST_CASE("a name that gets no answer holds up no other") {
    // Owners: this test and the threads that look names up.
    const auto names = std::make_shared<Names>();
    Asker asker(names);
    const auto silent = asker.ask("silent.example");
    asker.io.poll();
    REQUIRE(names->wait_for_inside(1));

    const auto other = asker.ask("other.example", 5s);
    REQUIRE(asker.run_until_answered(other));
    REQUIRE(*asker.answers[other]);
    CHECK(**asker.answers[other] == kAnswer);
    CHECK_FALSE(asker.answers[silent]);

    names->speak();
    REQUIRE(asker.run_until_answered(silent));
    CHECK(**asker.answers[silent] == kAnswer);
  }

  TEST_CASE("a name without an answer in time is timed out, and has one look-up all the same") {
    // Owners: this test and the threads that look names up.
    const auto names = std::make_shared<Names>();
    Asker asker(names);
    for (int i = 0; i < 3; ++i) {
      CAPTURE(i);
      const auto silent = asker.ask("silent.example", 1ms);
      REQUIRE(asker.run_until_answered(silent));
      REQUIRE_FALSE(*asker.answers[silent]);
      CHECK(asker.answers[silent]->error().code == Errc::timed_out);
      CHECK(asker.answers[silent]->error().detail.starts_with("silent.example"));
    }
    REQUIRE(names->wait_for_inside(1));
    CHECK(names->asked().size() == 1);

    // Those who wait when the answer comes all get it, and the next one asks anew.
    const auto early = asker.ask("silent.example");
    const auto late = asker.ask("silent.example");
    asker.io.poll();
    names->speak();
    REQUIRE(asker.run_until_answered(early));
    REQUIRE(asker.run_until_answered(late));
    CHECK(**asker.answers[early] == kAnswer);
    CHECK(**asker.answers[late] == kAnswer);
    CHECK(names->asked().size() == 1);
    REQUIRE(asker.run_until_answered(asker.ask("silent.example")));
    CHECK(names->asked().size() == 2);
  }

  TEST_CASE("look-ups are bounded, further names wait for one to end, unless nobody wants them") {
    // Owners: this test and the threads that look names up.
    const auto names = std::make_shared<Names>();
    Asker asker(names);
    for (int i = 0; i < Resolver::kMaxLookUps; ++i) asker.ask("silent" + std::to_string(i));
    asker.io.poll();
    REQUIRE(names->wait_for_inside(Resolver::kMaxLookUps));
    const auto unwanted = asker.ask("unwanted.example", 1ms);
    REQUIRE(asker.run_until_answered(unwanted));
    CHECK_FALSE(*asker.answers[unwanted]);
    const auto other = asker.ask("other.example");
    asker.io.poll();
    CHECK(std::ssize(names->asked()) == Resolver::kMaxLookUps);

    names->speak();
    for (std::size_t at = 0; at <= other; ++at) REQUIRE(asker.run_until_answered(at));
    CHECK(**asker.answers[other] == kAnswer);
    CHECK(names->most_inside() == Resolver::kMaxLookUps);
    CHECK(std::ranges::count(names->asked(), "unwanted.example") == 0);
  }

  TEST_CASE("who is being stopped asks nothing any more") {
    // Owners: this test and the threads that look names up.
    const auto names = std::make_shared<Names>();
    Asker asker(names);
    asker.tasks.spawn("late", [&asker] { return asker.wait_late("other.example"); });
    asker.io.poll();
    asker.stop();
    REQUIRE(asker.answers[0]);
    REQUIRE_FALSE(*asker.answers[0]);
    CHECK(asker.answers[0]->error().code == Errc::cancelled);
    CHECK(names->asked().empty());
  }

  TEST_CASE("a name without an address says so, with its name, and a number is asked of nobody") {
    // Owners: this test and the threads that look names up.
    const auto names = std::make_shared<Names>();
    Asker asker(names);
    const auto unknown = asker.ask("unknown");
    REQUIRE(asker.run_until_answered(unknown));
    REQUIRE_FALSE(*asker.answers[unknown]);
    CHECK(asker.answers[unknown]->error().code == Errc::resolve_failed);
    CHECK(asker.answers[unknown]->error().detail == "unknown: not here");

    const auto number = asker.ask("127.0.0.1");
    REQUIRE(asker.run_until_answered(number));
    CHECK(**asker.answers[number] == kAnswer);
    CHECK(names->asked().size() == 1);
  }

  TEST_CASE("the system resolves a number to itself, and nothing to an error with its name") {
    CHECK(look_up("127.0.0.1").value() == Addresses{asio::ip::address_v4::loopback()});
    const auto nothing = look_up("");
    REQUIRE_FALSE(nothing);
    CHECK(nothing.error().code == Errc::resolve_failed);
    CHECK(nothing.error().detail.starts_with(": "));
  }
}

}  // namespace
}  // namespace starling::transport
