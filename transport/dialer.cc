#include "transport/dialer.h"

#include "node/base/fault.h"
#include "transport/admission.h"
#include "transport/limits.h"
#include "transport/resolver.h"

#include <asio/error.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace starling::transport {
namespace {

using asio::ip::tcp;

Task<Result<tcp::socket>> connect_one(tcp::endpoint endpoint) {
  tcp::socket socket(co_await asio::this_coro::executor);
  auto [error] = co_await socket.async_connect(endpoint, as_result);
  if (!error && fault::maybe("net.dial")) error = asio::error::timed_out;
  if (error == asio::error::operation_aborted)
    co_return fail(Errc::cancelled, Doing::connecting, "stopping");
  if (error) {
    const bool refused = error == asio::error::connection_refused;
    co_return fail(refused ? Errc::connect_refused : Errc::connect_failed, Doing::connecting,
                   to_string(endpoint_of(endpoint)) + ": " + error.message());
  }
  co_return socket;
}

}  // namespace

Task<Result<tcp::socket>> connect_to(Endpoint target) {
  auto resolving = resolve(std::move(target));
  auto resolved = co_await std::move(resolving);
  if (!resolved) co_return fail(std::move(resolved).error());
  auto connecting = connect_to_any(std::move(*resolved));
  auto socket = co_await std::move(connecting);
  co_return socket;
}

Task<Result<tcp::socket>> connect_to_any(std::vector<tcp::endpoint> endpoints, Duration in_all) {
  Error last{Errc::connect_failed, Doing::connecting, "no address to try"};
  bool all_refused = true;
  const SteadyClock clock;
  const auto end = clock.now() + in_all;
  auto untried = static_cast<std::int64_t>(endpoints.size());
  for (const auto& endpoint : endpoints) {
    const auto share = std::clamp((end - clock.now()) / untried--, Duration{0},
                                  Duration{limits::kConnectDeadline});
    auto connecting = connect_one(endpoint);
    auto socket = co_await with_deadline(share, Doing::connecting, std::move(connecting));
    if (socket) co_return std::move(*socket);
    last = std::move(socket).error();
    if (last.code == Errc::cancelled) break;
    all_refused = all_refused && last.code == Errc::connect_refused;
    if (last.code == Errc::connect_refused && !all_refused) last.code = Errc::connect_failed;
    if (last.code == Errc::timed_out)
      last.detail = to_string(endpoint_of(endpoint)) + " did not answer in time";
  }
  co_return fail(std::move(last));
}

Endpoint endpoint_of(const tcp::endpoint& endpoint) {
  return {unmapped(endpoint.address()).to_string(), endpoint.port()};
}

}  // namespace starling::transport
