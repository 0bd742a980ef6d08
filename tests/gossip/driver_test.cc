// The shell around Gossip, over real transports on loopback.
#include "gossip/driver.h"

#include "tests/gossip/virtual_swarm.h"
#include "tests/transport/harness.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::gossip;
using starling::transport::kAnyPort;
using starling::transport::TestNode;
using starling::transport::TestWorld;

namespace {

// One node whose transport tells its driver what comes of dials.
class Dialling final : public transport::SessionEvents, public GossipHost {
 public:
  explicit Dialling(TestWorld& world)
      : world_(world),
        model_{.layout = Layout::make({{"conv.weight", {4, 16}}}, 0).value(),
               .genesis = std::vector<float>(64)},
        node_(options_, model_, 0, clock_.now()),
        transport_({world.io(), *this, log_, nullptr, [] { return transport::kCalendar; }},
                   node_.identity, transport::SwarmKey::of(world.secret()),
                   {.name = "dialling", .instance = node_.instance, .advertised = {}}),
        driver_(world.io(), clock_, transport_, *node_.gossip, *this) {}
  ~Dialling() override {
    assert_io_thread();
    driver_.stop();
    bool stopped = false;
    asio::co_spawn(
        world_.io(), [this] { return transport_.stop(); },
        [&stopped](const std::exception_ptr&) { stopped = true; });
    world_.run_until([&] { return stopped; });
  }
  Dialling(const Dialling&) = delete;
  Dialling& operator=(const Dialling&) = delete;

  void want(const NodeId& id, std::vector<std::string> addresses) {
    assert_io_thread();
    GossipEffects effects;
    effects.emplace_back(WantedSession{id, std::move(addresses)});
    driver_.carry_out(std::move(effects));
  }
  [[nodiscard]] bool has_session(const NodeId& id) const {
    return std::ranges::find(up_, id) != up_.end();
  }

  void on_session_up(const transport::SessionInfo& info) override {
    up_.push_back(info.peer);
    assert_io_thread();
    driver_.on_session_up(info);
  }
  void on_session_down(const NodeId&, const Error&) override {}
  void on_message(const NodeId&, transport::Message) override {}
  bool admit(const NodeId&, std::uint16_t, ByteView, std::size_t) override { return false; }
  void on_refused(const NodeId&, std::uint16_t, ByteView) override {}
  void on_dial_failed(const transport::Endpoint& target, const Error& why) override {
    assert_io_thread();
    driver_.on_dial_failed(target, why);
  }
  void on_effect(GossipEffect) override {}

 private:
  TestWorld& world_;
  SteadyClock clock_;
  NullLog log_;
  gossip::testing::SwarmOptions options_;
  gossip::testing::SwarmModel model_;
  gossip::testing::SimNode node_;
  transport::Transport transport_;
  Driver driver_;
  std::vector<NodeId> up_;
};

}  // namespace

TEST_SUITE("gossip/driver") {
  TEST_CASE("a member is found by its second address where another member answers at the first") {
    assert_io_thread();
    TestWorld world;
    TestNode& other = world.add();
    TestNode& wanted = world.add();
    const auto private_address = to_string(other.transport->listen(kAnyPort).value());
    const auto public_address = to_string(wanted.transport->listen(kAnyPort).value());
    Dialling node(world);
    node.want(other.id(), {private_address});
    REQUIRE(world.run_until([&] { return node.has_session(other.id()); }));

    node.want(wanted.id(), {private_address, public_address});

    CHECK(world.run_until([&] { return node.has_session(wanted.id()); }));
  }

  TEST_CASE("who is met at the address of a member that is gone is greeted") {
    assert_io_thread();
    TestWorld world;
    TestNode& fresh = world.add();
    const auto address = to_string(fresh.transport->listen(kAnyPort).value());
    Dialling node(world);

    node.want(transport::Identity::generate().id(), {address});

    CHECK(world.run_until([&] { return node.has_session(fresh.id()); }));
  }
}
