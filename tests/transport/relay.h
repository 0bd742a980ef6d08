// A relay between two nodes that changes, holds back or cuts what passes through it.
#pragma once

#include "transport/endpoint.h"

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace starling::transport {

// Forwards every connection from whoever connects to `endpoint()` to `target`. Connections are
// numbered in the order in which they came, from 0.
class Relay {
 public:
  enum class Way : std::uint8_t { there, back };

  Relay(asio::io_context& io, const Endpoint& target)
      : io_(io), target_(target), acceptor_(io, {asio::ip::address_v4::loopback(), 0}) {
    // Little room in the kernel: what the relay holds back waits at its sender.
    acceptor_.set_option(asio::socket_base::receive_buffer_size(16 * 1024));
    accept();
  }

  [[nodiscard]] Endpoint endpoint() const {
    return {"127.0.0.1", acceptor_.local_endpoint().port()};
  }
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }
  // Connections from now on are accepted and hear nothing.
  void fall_silent() { silent_ = true; }
  // The next byte from the near to the far side gets another lowest bit.
  void flip_next() { flip_ = true; }
  // What goes this way waits here until go_on().
  void hold(std::size_t connection, Way way) { flow(connection, way).held = true; }
  void go_on(std::size_t connection, Way way) {
    auto& held = flow(connection, way);
    held.held = false;
    if (held.waiting > 0) deliver(held, std::exchange(held.waiting, 0));
  }
  // Both ends of the connection see it end without a word.
  void cut(std::size_t connection) {
    connections_.at(connection)->near.close();
    connections_.at(connection)->far.close();
  }
  // Ends everything; the relay has to exist until it is idle().
  void stop() {
    acceptor_.close();
    for (std::size_t i = 0; i < connections_.size(); ++i) cut(i);
  }
  // No handler that belongs to this relay is left to run.
  [[nodiscard]] bool idle() const { return pending_ == 0; }

 private:
  struct Flow {
    asio::ip::tcp::socket& from;
    asio::ip::tcp::socket& to;
    std::array<unsigned char, 65'536> buffer{};
    bool held = false;
    std::size_t waiting = 0;
  };
  struct Connection {
    Connection(asio::io_context& io, asio::ip::tcp::socket accepted)
        : near(std::move(accepted)), far(io) {}
    asio::ip::tcp::socket near;
    asio::ip::tcp::socket far;
    Flow there{near, far};
    Flow back{far, near};
  };

  Flow& flow(std::size_t connection, Way way) {
    auto& chosen = *connections_.at(connection);
    return way == Way::there ? chosen.there : chosen.back;
  }

  void accept() {
    ++pending_;
    acceptor_.async_accept([this](const std::error_code& error, asio::ip::tcp::socket near) {
      --pending_;
      if (error || !acceptor_.is_open()) return;
      auto& connection =
          *connections_.emplace_back(std::make_unique<Connection>(io_, std::move(near)));
      if (!silent_) {
        connection.far.connect({asio::ip::make_address(target_.host), target_.port});
        forward(connection.there);
        forward(connection.back);
      }
      accept();
    });
  }

  void forward(Flow& flow) {
    ++pending_;
    flow.from.async_read_some(asio::buffer(flow.buffer),
                              [this, &flow](const std::error_code& error, std::size_t size) {
                                --pending_;
                                if (error) {
                                  std::error_code ignored;
                                  flow.to.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
                                  return;
                                }
                                if (flip_ && is_there(flow)) {
                                  flip_ = false;
                                  flow.buffer[size - 1] ^= 1U;
                                }
                                if (flow.held)
                                  flow.waiting = size;
                                else
                                  deliver(flow, size);
                              });
  }

  void deliver(Flow& flow, std::size_t size) {
    ++pending_;
    asio::async_write(flow.to, asio::buffer(flow.buffer, size),
                      [this, &flow](const std::error_code& failed, std::size_t) {
                        --pending_;
                        if (!failed) forward(flow);
                      });
  }

  [[nodiscard]] bool is_there(const Flow& flow) const {
    for (const auto& connection : connections_)
      if (&connection->there == &flow) return true;
    return false;
  }

  asio::io_context& io_;
  Endpoint target_;
  asio::ip::tcp::acceptor acceptor_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::size_t pending_ = 0;  // handlers that are still to run
  bool silent_ = false;
  bool flip_ = false;
};

}  // namespace starling::transport
