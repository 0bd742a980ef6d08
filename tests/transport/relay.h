// A relay between two nodes that changes or cuts what passes through it.
#pragma once

#include "transport/endpoint.h"

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/write.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace starling::transport {

// Forwards one connection, from whoever connects to `port()` to `target`.
class Relay {
 public:
  Relay(asio::io_context& io, const Endpoint& target)
      : acceptor_(io, {asio::ip::address_v4::loopback(), 0}), near_(io), far_(io) {
    far_.connect({asio::ip::make_address(target.host), target.port});
    acceptor_.async_accept(near_, [this](const std::error_code& error) {
      if (error) return;
      forward(near_, far_, there_);
      forward(far_, near_, back_);
    });
  }

  [[nodiscard]] Endpoint endpoint() const {
    return {"127.0.0.1", acceptor_.local_endpoint().port()};
  }
  // The next byte from the near to the far side gets another lowest bit.
  void flip_next() { flip_ = true; }
  // Both connections end without a word.
  void cut() {
    near_.close();
    far_.close();
  }
  void stop() {
    acceptor_.close();
    cut();
  }

 private:
  using Buffer = std::array<unsigned char, 65'536>;

  void forward(asio::ip::tcp::socket& from, asio::ip::tcp::socket& to, Buffer& buffer) {
    from.async_read_some(asio::buffer(buffer), [this, &from, &to, &buffer](
                                                   const std::error_code& error, std::size_t size) {
      if (error) {
        std::error_code ignored;
        to.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
        return;
      }
      if (&from == &near_ && flip_) {
        flip_ = false;
        buffer[size - 1] ^= 1U;
      }
      asio::async_write(to, asio::buffer(buffer, size),
                        [this, &from, &to, &buffer](const std::error_code& failed, std::size_t) {
                          if (!failed) forward(from, to, buffer);
                        });
    });
  }

  asio::ip::tcp::acceptor acceptor_;
  asio::ip::tcp::socket near_;
  asio::ip::tcp::socket far_;
  Buffer there_{};
  Buffer back_{};
  bool flip_ = false;
};

}  // namespace starling::transport
