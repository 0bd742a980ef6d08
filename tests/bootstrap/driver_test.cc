#include "bootstrap/driver.h"

#include "node/base/clock.h"
#include "node/base/log.h"
#include "tests/transport/names.h"
#include "transport/resolver.h"

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <doctest/doctest.h>

#include <exception>
#include <memory>
#include <optional>
#include <string>

namespace starling::bootstrap {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;

struct NoHost final : BootstrapHost, transport::SessionEvents {
  void on_effect(JoinEffect) override {}
  void on_session_up(const transport::SessionInfo&) override {}
  void on_session_down(const NodeId&, const Error&) override {}
  void on_message(const NodeId&, transport::Message) override {}
  bool admit(const NodeId&, std::uint16_t, ByteView, std::size_t) override { return false; }
  void on_refused(const NodeId&, std::uint16_t, ByteView) override {}
  void on_dial_failed(const transport::Endpoint&, const Error&) override {}
};

// A node that only looks for peers.
struct Seeker {
  explicit Seeker(const std::shared_ptr<transport::Names>& names) {
    asio::make_service<transport::Resolver>(
        io, [names](const std::string& name) { return names->look_up(name); });
  }

  transport::Task<> leave() {
    co_await driver.stop();
    assert_io_thread();
    co_await transport.stop();
  }

  asio::io_context io{1};
  SteadyClock clock;
  NullLog log;
  NoHost host;
  transport::Identity identity = transport::Identity::generate();
  transport::Transport transport{
      transport::TransportHost{io, host, log}, identity, transport::SwarmKey::open("test"), {}};
  Join join{clock.now(), {.own = {}, .forced = {}, .options = {}}, Rng(1)};
  Driver driver{io, clock, transport, join, host, log};
};

TEST_SUITE("bootstrap/driver") {
  TEST_CASE("a name that gets no answer holds up neither the search nor leaving") {
    assert_io_thread();
    // Owners: this test and the threads that look names up.
    const auto names = std::make_shared<transport::Names>();
    {
      Seeker seeker(names);
      tcp::acceptor peer(seeker.io, {asio::ip::address_v4::loopback(), 0});
      std::optional<std::error_code> dialled;
      peer.async_accept([&](const std::error_code& error, const tcp::socket&) { dialled = error; });

      seeker.driver.start();
      seeker.driver.carry_out(seeker.join.begin(seeker.clock.now()));
      for (const std::string name : {"silent.example", "peer.example"}) {
        const Seed seed{SeedKind::address, {name, peer.local_endpoint().port()}, {}, name};
        seeker.driver.carry_out(seeker.join.add_seeds(seeker.clock.now(), {seed}).value());
      }
      const auto end = seeker.clock.now() + 20s;
      while (!(dialled && names->inside() == 1) && seeker.clock.now() < end)
        seeker.io.run_one_for(50ms);
      CHECK(dialled == std::error_code());
      peer.close();

      asio::co_spawn(seeker.io, [&] { return seeker.leave(); }, [](const std::exception_ptr&) {});
      seeker.io.run();  // returns by itself
    }
    CHECK(names->inside() == 1);
    names->speak();
    CHECK(names->wait_for_inside(0));
  }
}

}  // namespace
}  // namespace starling::bootstrap
