#include "transport/tcp_options.h"

#include <asio/io_context.hpp>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>

namespace starling::transport {
namespace {

using asio::ip::tcp;

std::string congestion_control_of(tcp::socket& socket) {
  std::array<char, 16> name{};
  socklen_t size = name.size();
  REQUIRE(::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) ==
          0);
  return name.data();
}

bool kernel_has(const std::string& name) {
  std::ifstream file("/proc/sys/net/ipv4/tcp_available_congestion_control");
  using Words = std::istream_iterator<std::string>;
  return std::find(Words(file), Words(), name) != Words();
}

}  // namespace

TEST_SUITE("tcp options") {
  TEST_CASE("a connection is paced by BBR where the kernel has it, and stays as it was elsewhere") {
    asio::io_context io;
    tcp::socket socket(io, tcp::v4());
    const std::string before = "reno";  // every kernel has it, and this machine's own may be BBR
    REQUIRE(::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, before.data(),
                         static_cast<socklen_t>(before.size())) == 0);
    const bool taken = use_bbr(socket);
    CHECK(taken == kernel_has("bbr"));  // loaded by now, where it is a module and we may
    CHECK(congestion_control_of(socket) == (taken ? "bbr" : before));
  }
}

}  // namespace starling::transport
