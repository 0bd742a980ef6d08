#include "transport/listener.h"

#include "node/base/clock.h"
#include "node/base/posix_file.h"
#include "transport/limits.h"

#include <asio/buffer.hpp>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <array>
#include <functional>
#include <list>
#include <string>
#include <vector>

namespace starling::transport {
namespace {

using asio::ip::tcp;

// When the listener complained.
class RecordingLog final : public Log {
 public:
  void write(LogLevel, std::string_view event, std::initializer_list<LogField>) override {
    if (event == "listener.accept_failed") failures.push_back(clock_.now());
  }
  std::vector<TimePoint> failures;

 private:
  SteadyClock clock_;
};

// While it lives this process can open nothing.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    // A limit that is soon reached.
    const int lowest = taken_.emplace_back(::dup(STDERR_FILENO)).number();
    const rlimit low{static_cast<rlim_t>(lowest) + 32, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &low) == 0);
    while (taken_.back().ok()) taken_.emplace_back(::dup(STDERR_FILENO));
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::list<Descriptor> taken_;
};

// A listener and those who connect to it.
struct Place {
  asio::io_context io{1};
  RecordingLog log;
  std::vector<tcp::socket> accepted;
  Listener listener{io.get_executor(), log,
                    [this](tcp::socket socket) { accepted.push_back(std::move(socket)); }};
  const Endpoint bound;

  explicit Place(const std::string& host = "127.0.0.1")
      : bound(listener.listen({host, 0}).value()) {}
  ~Place() {
    asio::co_spawn(io, [this] { return listener.stop(); }, [](std::exception_ptr) {});
    io.run();
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  void connect(tcp::socket& socket) const {
    socket.connect(tcp::endpoint(asio::ip::make_address(bound.host), bound.port));
  }
  // Runs handlers until the condition holds; false after 30 s without it.
  bool run_until(const std::function<bool()>& condition) {
    const SteadyClock clock;
    const auto end = clock.now() + std::chrono::seconds(30);
    while (!condition()) {
      if (clock.now() > end) return false;
      io.run_one_for(std::chrono::milliseconds(50));
    }
    return true;
  }
};

TEST_SUITE("transport/listener") {
  TEST_CASE("a listener on every address is reached over IPv4") {
    Place place("::");
    tcp::socket caller(place.io, tcp::v4());

    caller.connect(tcp::endpoint(asio::ip::address_v4::loopback(), place.bound.port));

    CHECK(place.run_until([&] { return place.accepted.size() == 1; }));
  }

  TEST_CASE("without descriptors connections are turned away in turn, with pauses between them") {
    std::size_t ended = 0;
    std::array<std::byte, 1> byte{};
    Place place;
    std::array<tcp::socket, 3> callers{tcp::socket(place.io, tcp::v4()),
                                       tcp::socket(place.io, tcp::v4()),
                                       tcp::socket(place.io, tcp::v4())};
    {
      const NoDescriptors none;
      for (auto& caller : callers) {
        place.connect(caller);
        caller.async_read_some(asio::buffer(byte),
                               [&](std::error_code error, std::size_t) { ended += error ? 1 : 0; });
      }
      REQUIRE(place.run_until([&] { return ended == callers.size(); }));
      CHECK(place.accepted.empty());
      REQUIRE(place.log.failures.size() >= callers.size());
      for (std::size_t i = 1; i < place.log.failures.size(); ++i)
        CHECK(place.log.failures[i] - place.log.failures[i - 1] >= limits::kAcceptPause);
    }

    tcp::socket caller(place.io, tcp::v4());
    place.connect(caller);
    CHECK(place.run_until([&] { return place.accepted.size() == 1; }));
  }
}

}  // namespace
}  // namespace starling::transport
