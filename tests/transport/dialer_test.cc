#include "transport/dialer.h"

#include "node/base/clock.h"

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <doctest/doctest.h>

#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace starling::transport {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;

// Two listeners: one whose kernel answers no connection any more, because nobody takes those that
// wait already, and one that answers.
struct Listeners {
  Listeners() {
    full.open(tcp::v4());
    full.bind({asio::ip::address_v4::loopback(), 0});
    full.listen(0);
    for (int i = 0; i < 4; ++i) {
      auto& socket = waiting.emplace_back(io);
      socket.async_connect(full.local_endpoint(), [](const std::error_code&) {});
    }
    io.run_for(50ms);
  }

  Result<tcp::socket> connect(std::vector<tcp::endpoint> endpoints, Duration in_all) {
    asio::co_spawn(
        io, [&] { return dial(std::move(endpoints), in_all); }, [](const std::exception_ptr&) {});
    const SteadyClock clock;
    for (const auto end = clock.now() + 60s; !done && clock.now() < end;) io.run_one_for(50ms);
    REQUIRE(done);
    return std::move(*done);
  }

  Task<> dial(std::vector<tcp::endpoint> endpoints, Duration in_all) {
    auto connecting = connect_to_any(std::move(endpoints), in_all);
    auto result = co_await std::move(connecting);
    done.emplace(std::move(result));
  }

  asio::io_context io{1};
  std::optional<Result<tcp::socket>> done;
  tcp::acceptor full{io};
  tcp::acceptor open{io, {asio::ip::address_v4::loopback(), 0}};
  std::vector<tcp::socket> waiting;
};

TEST_SUITE("transport/dialer") {
  TEST_CASE("a name with many addresses that say nothing is given up in the time of one dial") {
    Listeners listeners;
    const SteadyClock clock;
    const auto start = clock.now();
    const std::vector<tcp::endpoint> silent(6, listeners.full.local_endpoint());
    const auto socket = listeners.connect(silent, 600ms);
    REQUIRE_FALSE(socket);
    CHECK(socket.error().code == Errc::timed_out);
    CHECK(clock.now() - start < limits::kConnectDeadline);
  }

  TEST_CASE("addresses that say nothing leave time for the last one") {
    Listeners listeners;
    std::vector<tcp::endpoint> endpoints(2, listeners.full.local_endpoint());
    endpoints.push_back(listeners.open.local_endpoint());
    CHECK(listeners.connect(endpoints, 3s));
  }
}

}  // namespace
}  // namespace starling::transport
