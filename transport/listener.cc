#include "transport/listener.h"

#include "node/base/fault.h"
#include "transport/dialer.h"
#include "transport/limits.h"

#include <asio/error.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/socket_base.hpp>
#include <fcntl.h>

#include <cerrno>
#include <string>
#include <utility>

namespace starling::transport {

using asio::ip::tcp;

namespace {

int open_reserve() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

Listener::Listener(asio::any_io_executor executor, Log& log, OnSocket on_socket)
    : executor_(std::move(executor)),
      log_(log),
      on_socket_(std::move(on_socket)),
      tasks_(executor_, log) {}

Result<Endpoint> Listener::listen(const Endpoint& endpoint) {
  const auto refuse = [&](const std::error_code& error) {
    return fail(Errc::listen_failed, Doing::listening,
                to_string(endpoint) + ": " + error.message());
  };
  std::error_code error;
  const auto address = asio::ip::make_address(endpoint.host, error);
  if (error)
    return fail(Errc::listen_failed, Doing::listening,
                "'" + endpoint.host +
                    "' is no IP address: one of this machine's is needed, or "
                    "0.0.0.0, or ::");
  tcp::acceptor acceptor(executor_);
  tcp::endpoint local(address, endpoint.port);
  acceptor.open(local.protocol(), error);
  const bool every_address = address.is_v6() && address.is_unspecified();
  if (error == asio::error::address_family_not_supported && every_address) {
    local = {asio::ip::address_v4::any(), endpoint.port};  // a machine without IPv6
    acceptor.open(local.protocol(), error);
  }
  if (error) return refuse(error);
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (error) return refuse(error);
  if (local.protocol() == tcp::v6()) {
    // "::" is every address, IPv4's too, whatever the machine's default.
    acceptor.set_option(asio::ip::v6_only(!every_address), error);
    if (error) return refuse(error);
  }
  acceptor.bind(local, error);
  if (error) return refuse(error);
  acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return refuse(error);
  acceptor.non_blocking(true, error);  // turn_away() asks without waiting
  if (error) return refuse(error);
  const auto bound = acceptor.local_endpoint(error);
  if (error) return refuse(error);
  if (!reserve_) reserve_.emplace(open_reserve());
  auto& kept = acceptors_.emplace_back(std::move(acceptor));
  tasks_.spawn("listener.accept", [this, &kept] { return accept_loop(kept); });
  return endpoint_of(bound);
}

// NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): see acceptors_.
Task<> Listener::accept_loop(tcp::acceptor& acceptor) {
  asio::steady_timer pause(executor_);
  while (!tasks_.stopping()) {
    auto [error, socket] = co_await acceptor.async_accept(as_result);
    if (tasks_.stopping()) break;
    if (!error && fault::maybe("net.accept")) error = asio::error::connection_aborted;
    if (!error) {
      on_socket_(std::move(socket));
      continue;
    }
    // Nothing else is known to fail for good; out of descriptors is the case that would spin.
    log_.warn("listener.accept_failed", {{"reason", error.message()}});
    if (error.value() == EMFILE || error.value() == ENFILE) turn_away(acceptor);
    pause.expires_after(limits::kAcceptPause);
    const auto [ignored] = co_await pause.async_wait(as_result);
    (void)ignored;
  }
}

void Listener::turn_away(tcp::acceptor& acceptor) {
  reserve_.reset();
  std::error_code ignored;  // another thread took the descriptor, or the peer gave up meanwhile
  tcp::socket socket(executor_);
  acceptor.accept(socket, ignored);
  socket.close(ignored);
  reserve_.emplace(open_reserve());
}

Task<> Listener::stop() {
  co_await tasks_.stop();
  acceptors_.clear();
}

}  // namespace starling::transport
