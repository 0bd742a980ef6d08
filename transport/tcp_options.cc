#include "transport/tcp_options.h"

#include "transport/limits.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <string_view>
#include <system_error>

namespace starling::transport {

void set_common_options(asio::ip::tcp::socket& socket) {
  std::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto patience = static_cast<unsigned>(
      std::chrono::duration_cast<std::chrono::milliseconds>(limits::kUnacknowledged).count());
  (void)::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience,
                     sizeof patience);
}

void limit_not_sent(asio::ip::tcp::socket& socket, std::size_t bytes) {
  const int value = static_cast<int>(bytes);
  (void)::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, sizeof value);
}

bool use_bbr(asio::ip::tcp::socket& socket) {
  constexpr std::string_view kName = "bbr";
  return ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, kName.data(),
                      kName.size()) == 0;
}

}  // namespace starling::transport
