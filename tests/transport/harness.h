// Two or more Transports in one process, on loopback, driven by one io_context.
#pragma once

#include "node/base/clock.h"
#include "node/base/log.h"
#include "transport/transport.h"

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <doctest/doctest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling::transport {

// Records everything that a Transport reports.
class RecordingEvents final : public SessionEvents {
 public:
  void on_session_up(const SessionInfo& info) override { up.push_back(info); }
  void on_session_down(const NodeId& peer, const Error& why) override {
    down.emplace_back(peer, why);
  }
  void on_message(const NodeId& peer, Message message) override {
    messages.emplace_back(peer, std::move(message));
  }
  bool admit(const NodeId&, std::uint16_t, ByteView, std::size_t) override {
    ++asked;
    return admits;
  }
  void on_refused(const NodeId&, std::uint16_t type, ByteView body) override {
    refused.emplace_back(type, to_bytes(body));
  }
  void on_dial_failed(const Endpoint&, const Error& why) override { dial_failed.push_back(why); }

  bool admits = true;
  int asked = 0;
  std::vector<SessionInfo> up;
  std::vector<std::pair<NodeId, Error>> down;
  std::vector<std::pair<NodeId, Message>> messages;
  std::vector<std::pair<std::uint16_t, Bytes>> refused;
  std::vector<Error> dial_failed;
};

// What the calendar says in these tests, in seconds since 1970.
inline constexpr std::uint64_t kCalendar = 1'800'000'000;

// What some tests choose.
struct TestChoice {
  Identity identity = Identity::generate();
  TransportOptions options = {};
  InviteDesk* invites = nullptr;
};

// One node's transport with its identity and events.
struct TestNode {
  TestNode(asio::io_context& io, SwarmKey key, std::uint64_t instance, TestChoice choice = {})
      : identity(std::move(choice.identity)) {
    auto& options = choice.options;
    options.name = "node-" + std::to_string(instance);
    options.instance = {instance};
    options.advertised = {{"192.0.2.1", 7411}};
    const TransportHost host{io, events, log, choice.invites, [] { return kCalendar; }};
    transport = std::make_unique<Transport>(host, identity, std::move(key), std::move(options));
  }

  [[nodiscard]] NodeId id() const { return identity.id(); }

  NullLog log;
  Identity identity;
  RecordingEvents events;
  std::unique_ptr<Transport> transport;
};

// The world of one test: io_context, a swarm secret, nodes. Stops every node at its end.
class TestWorld {
 public:
  TestWorld() = default;
  ~TestWorld() {
    assert_io_thread();
    std::size_t stopped = 0;
    for (auto& node : nodes_) {
      auto* transport = node->transport.get();
      asio::co_spawn(
          io_, [transport] { return transport->stop(); },
          [&stopped](const std::exception_ptr&) { ++stopped; });
    }
    run_until([&] { return stopped == nodes_.size(); });
    io_.run();  // drains by itself: nothing is left behind
  }
  TestWorld(const TestWorld&) = delete;
  TestWorld& operator=(const TestWorld&) = delete;

  TestNode& add() { return add(SwarmKey::of(secret_)); }
  TestNode& add(SwarmKey key) {
    ++instances_;
    return *nodes_.emplace_back(std::make_unique<TestNode>(io_, std::move(key), instances_));
  }
  TestNode& add(TransportOptions options) {
    ++instances_;
    return *nodes_.emplace_back(std::make_unique<TestNode>(
        io_, SwarmKey::of(secret_), instances_, TestChoice{.options = std::move(options)}));
  }
  // A node that honours invites.
  TestNode& add(InviteDesk& invites) {
    ++instances_;
    return *nodes_.emplace_back(std::make_unique<TestNode>(io_, SwarmKey::of(secret_), instances_,
                                                           TestChoice{.invites = &invites}));
  }
  // A node with the key file of another one.
  TestNode& add_clone_of(std::span<const std::byte, 32> seed) {
    ++instances_;
    return *nodes_.emplace_back(std::make_unique<TestNode>(
        io_, SwarmKey::of(secret_), instances_, TestChoice{.identity = Identity::from_seed(seed)}));
  }

  // Runs handlers until the condition holds; false after 30 s without it.
  bool run_until(const std::function<bool()>& condition) {
    const SteadyClock clock;
    const auto end = clock.now() + std::chrono::seconds(30);
    while (!condition()) {
      if (clock.now() > end) return false;
      io_.run_one_for(std::chrono::milliseconds(50));
      if (io_.stopped()) io_.restart();
    }
    return true;
  }
  // Runs handlers for a while, to see that something does not happen.
  void run_for(std::chrono::milliseconds time) {
    io_.run_for(time);
    if (io_.stopped()) io_.restart();
  }

  [[nodiscard]] asio::io_context& io() { return io_; }
  [[nodiscard]] const SwarmSecret& secret() const { return secret_; }

 private:
  asio::io_context io_{1};
  SwarmSecret secret_ = SwarmSecret::generate();
  std::uint64_t instances_ = 0;
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

inline const Endpoint kAnyPort{"127.0.0.1", 0};

// Two nodes with a session, which the left one dialled.
struct Pair {
  TestWorld world;
  TestNode& left = world.add();
  TestNode& right = world.add();

  Pair() {
    assert_io_thread();
    const auto port = right.transport->listen(kAnyPort).value();
    left.transport->dial({port, {}});
    REQUIRE(world.run_until([&] { return !left.events.up.empty() && !right.events.up.empty(); }));
  }
};

[[nodiscard]] inline Message control_message(std::uint16_t type, std::string_view text) {
  Message message;
  message.type = type;
  message.body = to_bytes(as_bytes(text));
  return message;
}

[[nodiscard]] inline Message bulk_message(std::uint16_t type, std::size_t size) {
  Message message;
  message.type = type;
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 257) & 0xffU);
  message.attachment = share(std::move(bytes));
  return message;
}

}  // namespace starling::transport
