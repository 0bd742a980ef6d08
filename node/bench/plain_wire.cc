#include "node/bench/plain_wire.h"

#include "node/base/check.h"
#include "node/base/clock.h"
#include "transport/limits.h"
#include "transport/noise.h"

#include <asio/co_spawn.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

namespace starling::node::bench {

namespace {

using transport::as_result;
namespace noise = transport::noise;

// The fastest on loopback, where all of it is one segment (node/decisions/0036).
constexpr std::size_t kWrite = transport::limits::kMaxBulkRecord;
constexpr std::size_t kRead = std::size_t{256} * 1024;

// The context is run until it has ended; what failed stands in its end.
void start(asio::io_context& io, transport::Task<> task) {
  asio::co_spawn(io, std::move(task), [](const std::exception_ptr&) {});
}

}  // namespace

Result<void> PlainWire::connect() {
  using asio::ip::tcp;
  const tcp::endpoint anywhere(asio::ip::address_v4::loopback(), 0);
  const tcp::no_delay at_once(true);
  tcp::acceptor acceptor(own_.io);
  std::error_code error;
  acceptor.open(anywhere.protocol(), error);
  if (!error) acceptor.bind(anywhere, error);
  if (!error) acceptor.listen(1, error);
  tcp::endpoint place;
  if (!error) place = acceptor.local_endpoint(error);
  if (!error) their_.socket.connect(place, error);
  if (!error) acceptor.accept(own_.socket, error);
  for (End* end : {&own_, &their_})
    if (!error) end->socket.set_option(at_once, error);
  if (!error) return {};
  return fail(Errc::connect_failed, Doing::connecting, "127.0.0.1: " + error.message());
}

transport::Task<> PlainWire::End::ping(std::uint64_t count) {
  const SteadyClock clock;
  std::array<std::byte, kSmallBody> bytes{};
  for (std::uint64_t i = 0; i < count && !error; ++i) {
    const TimePoint begin = clock.now();
    std::tie(error, std::ignore) =
        co_await asio::async_write(socket, asio::buffer(bytes), as_result);
    if (error) break;
    std::tie(error, std::ignore) =
        co_await asio::async_read(socket, asio::buffer(bytes), as_result);
    round_trips_us.add(1e6 * seconds(clock.now() - begin));
  }
}

transport::Task<> PlainWire::End::echo(std::uint64_t count) {
  std::array<std::byte, kSmallBody> bytes{};
  for (std::uint64_t i = 0; i < count && !error; ++i) {
    std::tie(error, std::ignore) =
        co_await asio::async_read(socket, asio::buffer(bytes), as_result);
    if (error) break;
    std::tie(error, std::ignore) =
        co_await asio::async_write(socket, asio::buffer(bytes), as_result);
  }
}

transport::Task<> PlainWire::End::send(ByteView bytes) {
  while (!bytes.empty() && !error) {
    const ByteView piece = bytes.first(std::min(kWrite, bytes.size()));
    bytes = bytes.subspan(piece.size());
    std::tie(error, std::ignore) =
        co_await asio::async_write(socket, asio::buffer(piece.data(), piece.size()), as_result);
  }
}

transport::Task<> PlainWire::End::receive(std::size_t bytes) {
  const auto message = std::make_unique_for_overwrite<std::byte[]>(bytes);
  prefer_huge_pages(message.get(), bytes);
  std::size_t received = 0;
  while (received < bytes && !error) {
    std::size_t came = 0;
    std::tie(error, came) = co_await socket.async_read_some(
        asio::buffer(message.get() + received, std::min(kRead, bytes - received)), as_result);
    received += came;
  }
}

Result<void> PlainWire::run_both() {
  own_.io.restart();
  their_.io.restart();
  // Who has failed closes, so that the other end does not wait for ever.
  const auto run = [](End& end) {
    end.io.run();
    std::error_code ignored;
    if (end.error) (void)end.socket.close(ignored);
  };
  std::thread there([&] { run(their_); });
  run(own_);
  there.join();
  const std::error_code error = own_.error ? own_.error : their_.error;
  if (!error) return {};
  return fail(Errc::closed, Doing::reading_record, "127.0.0.1: " + error.message());
}

Result<Repeats> PlainWire::round_trips_us(std::uint64_t count) {
  own_.round_trips_us = {};
  start(own_.io, own_.ping(count));
  start(their_.io, their_.echo(count));
  TRY_VOID(run_both());
  return own_.round_trips_us;
}

Result<Cost> PlainWire::exchange(ByteView bytes) {
  for (End* end : {&own_, &their_}) {
    start(end->io, end->send(bytes));
    start(end->io, end->receive(bytes.size()));
  }
  const Cost before = process_cost();
  TRY_VOID(run_both());
  const Cost after = process_cost();
  return Cost{after.wall_s - before.wall_s, after.cpu_s - before.cpu_s, 0};
}

double cipher_cpu_s(std::uint64_t bytes) {
  // Making a key chooses libsodium's fast code as well.
  const noise::Key key = noise::KeyPair::generate().public_key();
  noise::CipherState seals;
  noise::CipherState opens;
  seals.set_key(key);
  opens.set_key(key);
  Bytes record(transport::limits::kMaxRecordBody + noise::kTagSize);
  const Cost cost = cost_of([&] {
    for (std::uint64_t done = 0; done < bytes; done += transport::limits::kMaxRecordBody) {
      const auto size = static_cast<std::size_t>(
          std::min<std::uint64_t>(transport::limits::kMaxRecordBody, bytes - done));
      const auto plain = std::span(record).first(size);
      const auto sealed = std::span(record).first(size + noise::kTagSize);
      seals.encrypt({}, plain, sealed);
      STARLING_CHECK(opens.decrypt({}, sealed, plain).has_value());
    }
  });
  return cost.cpu_s;
}

}  // namespace starling::node::bench
