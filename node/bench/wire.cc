// `starling bench wire`: two nodes' transports, one encrypted session over 127.0.0.1.
//
// A repeat sends one attachment each way at the same time, and then again with small messages that
// go there and back all the while, one every two milliseconds: megabytes and CPU time are of the
// first (both ends, all threads: sealing, opening, system calls), the second is what small messages
// wait for. Before all that they go over the idle session, one after the other. Every small message
// carries how much bulk its sender had sealed when it was queued, so its receiver knows how much of
// it went before the message all the same.
//
// With `--cipher none` two plain sockets do what of this they can: the yardstick.
#include "node/bench/bench.h"
#include "node/bench/loopback.h"
#include "node/bench/plain_wire.h"

#include <asio/steady_timer.hpp>

#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace starling::node::bench {

namespace {

using transport::Message;

enum class Kind : std::uint16_t { bulk = 0x0271, ping = 0x0272, pong = 0x0273, whole = 0x0274 };

constexpr std::uint64_t kIdlePings = 2'000;
constexpr Duration kPace = std::chrono::milliseconds(2);
constexpr int kWireWarmUps = 1;

// What the 256 bytes of a small message begin with.
struct Small {
  std::uint64_t sealed = 0;  // bytes of bulk records, when this message was queued
  std::uint64_t before = 0;  // of a pong: what of them went before the ping
};

Message message_of(Kind kind, const Small& small) {
  Bytes body(kSmallBody);
  std::memcpy(body.data(), &small, sizeof small);
  return {.type = static_cast<std::uint16_t>(kind), .body = std::move(body), .attachment = nullptr};
}

Small small_of(const Message& message) {
  Small small;
  if (message.body.size() == kSmallBody) std::memcpy(&small, message.body.data(), sizeof small);
  return small;
}

// One end: takes everything, answers pings, says when an attachment came whole.
class WireEnd final : public transport::SessionEvents {
 public:
  explicit WireEnd(LoopbackEnd& end) : end_(end) {}

  void on_session_up(const transport::SessionInfo&) override {}
  void on_session_down(const NodeId&, const Error&) override {}
  bool admit(const NodeId&, std::uint16_t, ByteView, std::size_t) override { return true; }
  void on_refused(const NodeId&, std::uint16_t, ByteView) override {}
  void on_dial_failed(const transport::Endpoint&, const Error&) override {}

  void on_message(const NodeId& peer, Message message) ON_IO_THREAD override {
    switch (static_cast<Kind>(message.type)) {
      case Kind::bulk:
        ++taken_;
        send(peer, Kind::whole, 0);
        break;
      case Kind::whole:
        ++delivered_;
        break;
      case Kind::ping:
        send(peer, Kind::pong, bulk_before(message));
        break;
      case Kind::pong:
        on_pong(message);
        break;
    }
  }

  void send_bulk(const NodeId& peer, SharedBytes bytes) ON_IO_THREAD {
    const Small small{};
    auto message = message_of(Kind::bulk, small);
    message.attachment = std::move(bytes);
    (void)end_.transport->send(peer, std::move(message));
  }
  void ping(const NodeId& peer) ON_IO_THREAD {
    waiting_ = true;
    sent_at_ = clock_.now();
    send(peer, Kind::ping, 0);
  }

  [[nodiscard]] bool waiting() const { return waiting_; }
  // Attachments that came whole, and own ones that the peer said it has.
  [[nodiscard]] std::uint64_t taken() const { return taken_; }
  [[nodiscard]] std::uint64_t delivered() const { return delivered_; }
  // What was measured since the last call.
  struct Measured {
    Repeats round_trip_us;
    Repeats bulk_before;
  };
  [[nodiscard]] Measured measured() { return std::exchange(measured_, {}); }

 private:
  [[nodiscard]] transport::SessionFigures figures() ON_IO_THREAD {
    const auto all = end_.transport->figures();
    return all.empty() ? transport::SessionFigures{} : all.front();
  }
  void send(const NodeId& peer, Kind kind, std::uint64_t before) ON_IO_THREAD {
    const Small small{figures().sent.bulk, before};
    (void)end_.transport->send(peer, message_of(kind, small));
  }
  // Bytes of bulk records that were sealed after this message was queued, and before it.
  [[nodiscard]] std::uint64_t bulk_before(const Message& message) ON_IO_THREAD {
    return figures().received.bulk - small_of(message).sealed;
  }
  void on_pong(const Message& message) ON_IO_THREAD {
    waiting_ = false;
    measured_.round_trip_us.add(1e6 * seconds(clock_.now() - sent_at_));
    measured_.bulk_before.add(static_cast<double>(small_of(message).before));
    measured_.bulk_before.add(static_cast<double>(bulk_before(message)));
  }

  const SteadyClock clock_;
  LoopbackEnd& end_;
  std::uint64_t taken_ = 0;
  std::uint64_t delivered_ = 0;
  bool waiting_ = false;
  TimePoint sent_at_{};
  Measured measured_;
};

Json tail_of(const Repeats& values) {
  return {{"p50", rounded(values.quantile(0.5))},
          {"p99", rounded(values.quantile(0.99))},
          {"max", rounded(values.quantile(1))}};
}

class WireBench {
 public:
  explicit WireBench(std::uint64_t bytes) : bytes_(share(Bytes(bytes))) {}
  ~WireBench() {
    assert_io_thread();
    loopback_.close();
  }
  WireBench(const WireBench&) = delete;
  WireBench& operator=(const WireBench&) = delete;

  Result<void> connect() ON_IO_THREAD {
    loopback_.attach(own_, their_);
    return loopback_.connect();
  }

  Result<WireEnd::Measured> measure_idle() ON_IO_THREAD {
    for (std::uint64_t i = 0; i < kIdlePings; ++i) {
      own_.ping(loopback_.their().id());
      TRY_VOID(loopback_.run_until([this] { return !own_.waiting(); }));
    }
    return own_.measured();
  }

  enum class Beside : std::uint8_t { nothing, pings };

  Result<Cost> exchange(Beside beside) ON_IO_THREAD {
    ++rounds_;
    const Cost before = process_cost();
    own_.send_bulk(loopback_.their().id(), bytes_);
    (void)loopback_.run_there([this] {
      assert_io_thread();
      their_.send_bulk(loopback_.own().id(), bytes_);
      return true;
    });
    pinging_ = beside == Beside::pings;
    if (pinging_) keep_pinging();
    const auto done = loopback_.run_until(
        [this] { return own_.taken() == rounds_ && own_.delivered() == rounds_; });
    pinging_ = false;
    timer_.cancel();
    if (!done) return fail(done.error());
    const Cost after = process_cost();
    TRY_VOID(loopback_.run_until([this] { return !own_.waiting(); }));
    return Cost{after.wall_s - before.wall_s, after.cpu_s - before.cpu_s, 0};
  }

  [[nodiscard]] WireEnd& own() { return own_; }
  // Bytes of records that the own end has sent so far.
  [[nodiscard]] transport::ByteCount sent() ON_IO_THREAD {
    return loopback_.own().transport->totals().sent;
  }

 private:
  void keep_pinging() ON_IO_THREAD {
    if (!own_.waiting()) own_.ping(loopback_.their().id());
    timer_.expires_after(kPace);
    timer_.async_wait([this](const std::error_code& error) {
      // A wait that has ended already is not cancelled any more: its handler comes without error.
      if (error || !pinging_) return;
      assert_io_thread();
      keep_pinging();
    });
  }

  SharedBytes bytes_;
  Loopback loopback_;
  WireEnd own_{loopback_.own()};
  WireEnd their_{loopback_.their()};
  asio::steady_timer timer_{loopback_.own().io};
  bool pinging_ = false;
  std::uint64_t rounds_ = 0;
};

constexpr std::array<std::string_view, 2> kCiphers{"chacha20poly1305", "none"};

struct WireOptions {
  std::uint64_t bytes = 0;  // each way
  std::uint64_t repeats = 0;
  std::string cipher;

  [[nodiscard]] double both_ways() const { return 2 * static_cast<double>(bytes); }
  [[nodiscard]] Json json() const {
    return {{"bytes", bytes}, {"repeats", repeats}, {"cipher", cipher}, {"threads", 2}};
  }
};

// What an exchange of so many bytes each way takes, whatever carries them.
struct ExchangeRepeats {
  Repeats ms, mb_per_s, cpu_s_per_gb;

  void add(const Cost& cost, double both_ways) {
    ms.add(1e3 * cost.wall_s);
    mb_per_s.add(both_ways / (1e6 * cost.wall_s));
    cpu_s_per_gb.add(1e9 * cost.cpu_s / both_ways);
  }
  [[nodiscard]] Json json(const WireOptions& options) const {
    return {{"params", options.json()},
            {"exchange_ms", ms.json()},
            {"mb_per_s", mb_per_s.json()},
            {"cpu_s_per_gb", cpu_s_per_gb.json()}};
  }
};

// Two plain sockets, a thread each, and the cipher by itself.
Result<Json> measure_plain(const WireOptions& options) {
  PlainWire wire;
  TRY_VOID(wire.connect());
  TRY(const Repeats idle, wire.round_trips_us(kIdlePings));
  const Bytes bytes(options.bytes);
  ExchangeRepeats exchanges;
  Repeats with_cipher;
  for (int i = -kWireWarmUps; i < static_cast<int>(options.repeats); ++i) {
    TRY(const Cost cost, wire.exchange(bytes));
    const double cipher_s = 2 * cipher_cpu_s(options.bytes);
    if (i < 0) continue;
    exchanges.add(cost, options.both_ways());
    with_cipher.add(1e9 * (cost.cpu_s + cipher_s) / options.both_ways());
  }
  Json report = exchanges.json(options);
  report["and_cipher_cpu_s_per_gb"] = with_cipher.json();
  report["idle_round_trip_us"] = tail_of(idle);
  return report;
}

Result<Json> measure_session(const WireOptions& options) ON_IO_THREAD {
  WireBench bench(options.bytes);
  TRY_VOID(bench.connect());
  TRY(const auto idle, bench.measure_idle());

  ExchangeRepeats exchanges;
  std::uint64_t sent = 0;
  for (int i = -kWireWarmUps; i < static_cast<int>(options.repeats); ++i) {
    const auto before = bench.sent().total();
    TRY(const Cost cost, bench.exchange(WireBench::Beside::nothing));
    const auto after = bench.sent().total();
    if (i == 0) (void)bench.own().measured();
    TRY_VOID(bench.exchange(WireBench::Beside::pings));
    if (i < 0) continue;
    sent = after - before;
    exchanges.add(cost, options.both_ways());
  }
  const auto busy = bench.own().measured();
  Json report = exchanges.json(options);
  report["wire_bytes"] = sent;
  report["idle_round_trip_us"] = tail_of(idle.round_trip_us);
  report["busy_round_trip_us"] = tail_of(busy.round_trip_us);
  report["busy_bulk_before_bytes"] = tail_of(busy.bulk_before);
  return report;
}

Result<Json> measure_wire(const Arguments& arguments, const Terminal& /*terminal*/) {
  assert_io_thread();
  WireOptions options;
  TRY(options.bytes, count_of(arguments, {"--bytes", 4 * kResnet50Parameters, 1,
                                          transport::limits::kMaxAttachment}));
  TRY(options.repeats, count_of(arguments, {"--repeats", 7, 1, 100}));
  TRY(options.cipher, word_of(arguments, "--cipher", kCiphers));
  return options.cipher == "none" ? measure_plain(options) : measure_session(options);
}

constexpr std::array<std::string_view, 3> kWireFlags{"--bytes", "--repeats", "--cipher"};

}  // namespace

constinit const Bench kWireBench{
    "wire",
    "Encrypted bytes both ways over 127.0.0.1, small messages between them.",
    kWireFlags,
    {},
    &measure_wire};

}  // namespace starling::node::bench
