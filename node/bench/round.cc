// `starling bench round`: one exchange, from the step that asks for it to the increment in x.
//
// Two whole Gossip state machines with their driver, codec lane and transport, in one process: an
// io thread, a codec lane of --threads threads each, one encrypted session
// over 127.0.0.1. The own end takes a step and so offers; the other one never does. What an
// exchange is made of: encode the offer, seal, send, open, check, encode and apply the answer, the
// same way back, check, apply. Membership goes on beside it, as in a node; there is no trainer that
// wants the master, and no file. Before every repeat both replicas drift, outside the clock.
#include "gossip/delta/exchange.h"
#include "gossip/delta/flat_vector.h"
#include "gossip/delta/host_vectors.h"
#include "gossip/delta/replica.h"
#include "gossip/driver.h"
#include "gossip/gossip.h"
#include "node/base/cores.h"
#include "node/base/cpu_time.h"
#include "node/base/team.h"
#include "node/bench/bench.h"
#include "node/bench/loopback.h"
#include "node/bench/vectors.h"

#include <asio/thread_pool.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling::node::bench {

namespace {

using gossip::FlatVector;
using gossip::Layout;
using gossip::Level;

constexpr std::uint64_t kSeed = 20'260'103;
constexpr std::uint64_t kBatch = 16;

// Both ends draw the same genesis; an edge opens there for free.
void draw_genesis(const Layout& layout, std::span<float> out) {
  Rng rng(kSeed);
  add_noise(layout, rng, 20 * kScale, out);
}

gossip::ModelFacts facts_of(const Layout& layout) {
  return {.name = "bench",
          .fingerprint = hash_of(as_bytes("bench round")),
          .manifest = layout.manifest(),
          .shape = {.parameters = layout.size(),
                    .channels = static_cast<std::uint32_t>(layout.bn_channels()),
                    .counters = 1},
          .blocks = static_cast<std::uint32_t>(layout.blocks()),
          .max_payload = gossip::max_payload_bytes(layout, Level::l6, gossip::Statistics::with),
          .degree = 0,
          .budget = {}};
}

gossip::GossipParts parts_of(const LoopbackEnd& end, Level level,
                             const transport::Ed25519Verifier& verifier) {
  gossip::GossipOptions options;
  options.exchange.levels.fixed_level = level;
  options.exchange.levels.fixed_tau = 1;
  gossip::SelfDescription self;
  self.name = "bench";
  self.addresses = {"127.0.0.1:1"};  // the session is there: nobody dials it
  return {SwarmId{}, std::move(self), options, end.identity, verifier};
}

// The master of an end. Only its codec lane touches it.
struct Master final : gossip::MasterPort {
  Master(FlatVector parameters, std::size_t channels)
      : x(std::move(parameters)), mean(channels, 0.0F), variance(channels, 1.0F) {}
  void with_master(const std::function<void(gossip::MasterView)>& job) override {
    job({x.values(), mean, variance});
  }
  FlatVector x;
  std::vector<float> mean;
  std::vector<float> variance;
};

struct RoundOptions {
  Level level = Level::l2;
  int threads = 1;  // of each end's codec lane
};

// What an end has done so far.
struct Done {
  std::uint64_t exchanges = 0;
  std::uint64_t clipped = 0;
  double codec_cpu_s = 0;
  std::size_t bytes_sent = 0;  // of the last exchange's payloads
  std::size_t bytes_received = 0;
  std::string trouble;  // anything but an exchange that went well
};

// One node's gossip. Its members belong to its io thread, the master and the references to its
// lane.
class RoundNode final : public transport::SessionEvents, private gossip::GossipHost {
 public:
  RoundNode(LoopbackEnd& end, const Layout& layout, const RoundOptions& options, FlatVector x)
      : end_(end),
        layout_(layout),
        master_(std::move(x), layout.bn_channels()),
        team_("codec", options.threads),
        replica_(layout,
                 std::make_unique<gossip::HostVectors>(layout, master_, gossip::detected_isa(),
                                                       shared()),
                 [&layout](std::span<float> out) { draw_genesis(layout, out); }),
        gossip_(clock_.now(), parts_of(end, options.level, verifier_), Rng(kSeed)),
        rng_(first_u64(hash_of(end.id().view()))) {
    draw_genesis(layout, master_.x.values());
    add_noise(layout, rng_, kScale, master_.x.values());
  }

  void begin() ON_IO_THREAD {
    gossip::GossipHost& host = *this;
    driver_.emplace(end_.io, clock_, *end_.transport, gossip_, host);
    driver_->start();
    driver_->carry_out(gossip_.begin_averaging(clock_.now(), facts_of(layout_), {}));
  }
  void end() ON_IO_THREAD { driver_->stop(); }

  // Trains a step, as far as gossip can tell.
  void step() ON_IO_THREAD {
    ++steps_;
    const gossip::TrainingFigures figures{
        .steps = steps_, .samples = steps_ * kBatch, .step_time = std::chrono::milliseconds(100)};
    driver_->carry_out(gossip_.on_steps(clock_.now(), figures));
  }
  [[nodiscard]] bool has_edge(const NodeId& peer) const ON_IO_THREAD {
    const auto* edge = gossip_.mixer()->find_edge(peer);
    return edge != nullptr && edge->state() == gossip::EdgeState::open;
  }
  [[nodiscard]] const Done& done() const ON_IO_THREAD { return done_; }

  [[nodiscard]] asio::thread_pool& lane() { return lane_; }
  // On the lane: what its threads have used so far.
  [[nodiscard]] double codec_cpu_seconds() {
    std::vector<double> used(static_cast<std::size_t>(team_.size()));
    team_.run([&](int part) { used[static_cast<std::size_t>(part)] = thread_cpu_seconds(); });
    return std::accumulate(used.begin(), used.end(), 0.0);
  }
  // On the lane: moves x as training would.
  void drift() { add_noise(layout_, rng_, kDrift * kScale, master_.x.values()); }

  void on_session_up(const transport::SessionInfo& info) ON_IO_THREAD override {
    driver_->on_session_up(info);
    driver_->carry_out(gossip_.on_same_settings(clock_.now(), info.peer));
  }
  void on_session_down(const NodeId& peer, const Error& why) ON_IO_THREAD override {
    driver_->on_session_down(peer, why);
  }
  void on_message(const NodeId& peer, transport::Message message) ON_IO_THREAD override {
    driver_->on_message(peer, message);
  }
  bool admit(const NodeId& peer, std::uint16_t type, ByteView,
             std::size_t size) ON_IO_THREAD override {
    return gossip_.admits(peer, type, size);
  }
  void on_refused(const NodeId& peer, std::uint16_t type, ByteView body) ON_IO_THREAD override {
    driver_->on_refused(peer, type, body);
  }
  void on_dial_failed(const transport::Endpoint& target, const Error& why) ON_IO_THREAD override {
    driver_->on_dial_failed(target, why);
  }

 private:
  void on_effect(gossip::GossipEffect effect) ON_IO_THREAD override {
    if (auto* job = std::get_if<gossip::CodecJob>(&effect)) return run(std::move(*job));
    if (const auto* event = std::get_if<gossip::ExchangeEvent>(&effect)) return note(*event);
    if (const auto* persist = std::get_if<gossip::PersistIncarnation>(&effect)) {
      asio::post(end_.io, [this, ceiling = persist->ceiling] {
        assert_io_thread();
        driver_->carry_out(gossip_.on_incarnations_persisted(clock_.now(), ceiling));
      });
    }
  }
  // As in CpuEngine.
  [[nodiscard]] gossip::ForEachPart shared() {
    if (team_.size() == 1) return {};
    return [this](std::size_t parts, const auto& job) { team_.share(parts, job); };
  }
  void run(gossip::CodecJob job) ON_IO_THREAD {
    asio::post(lane_, [this, job = std::move(job)] {
      const double before = codec_cpu_seconds();
      auto outcome = replica_.run(job);
      const double cpu_s = codec_cpu_seconds() - before;
      asio::post(end_.io, [this, cpu_s, outcome = std::move(outcome)]() mutable {
        assert_io_thread();
        done_.codec_cpu_s += cpu_s;
        driver_->carry_out(gossip_.on_codec_done(clock_.now(), std::move(outcome)));
      });
    });
  }
  void note(const gossip::ExchangeEvent& event) {
    if (const auto* exchanged = std::get_if<gossip::Exchanged>(&event)) {
      ++done_.exchanges;
      done_.clipped += exchanged->scale < 1 ? 1 : 0;
      done_.bytes_sent = exchanged->bytes_sent;
      done_.bytes_received = exchanged->bytes_received;
    } else if (!std::holds_alternative<gossip::EdgeOpened>(event) &&
               !std::holds_alternative<gossip::LevelChanged>(event) &&
               !std::holds_alternative<gossip::PeriodChanged>(event)) {
      done_.trouble = to_string(event);
    }
  }

  const SteadyClock clock_;
  LoopbackEnd& end_;
  const Layout& layout_;
  transport::Ed25519Verifier verifier_;
  Master master_;
  Team team_;
  gossip::Replica replica_;
  gossip::Gossip gossip_;
  std::optional<gossip::Driver> driver_;
  Rng rng_;
  std::uint64_t steps_ = 0;
  Done done_;
  asio::thread_pool lane_{1};  // last: ends before what its jobs touch
};

// CPU seconds of all threads of each end, and what each had done by then.
struct Reading {
  Loopback::CpuSeconds cpu;
  Done own;
  Done their;
  transport::TransportTotals own_wire;
};
struct Round {
  Reading before;
  Reading after;
  double wall_s = 0;
};

class RoundBench {
 public:
  RoundBench(const Layout& layout, const RoundOptions& options, FlatVector own, FlatVector their)
      : own_(loopback_.own(), layout, options, std::move(own)),
        their_(loopback_.their(), layout, options, std::move(their)) {}
  ~RoundBench() {
    assert_io_thread();
    if (begun_) {
      (void)there([this] {
        assert_io_thread();
        their_.end();
        return true;
      });
      own_.end();
    }
    loopback_.close();
  }
  RoundBench(const RoundBench&) = delete;
  RoundBench& operator=(const RoundBench&) = delete;

  Result<void> open() ON_IO_THREAD {
    loopback_.attach(own_, their_);
    begun_ = true;
    own_.begin();
    (void)there([this] {
      assert_io_thread();
      their_.begin();
      return true;
    });
    TRY_VOID(loopback_.connect());
    const auto open_there = [this] {
      assert_io_thread();
      return their_.has_edge(loopback_.own().id());
    };
    return loopback_.run_until([this, open_there] {
      assert_io_thread();
      return own_.has_edge(loopback_.their().id()) && there(open_there);
    });
  }

  // One exchange, after a drift.
  Result<Round> repeat() ON_IO_THREAD {
    for (RoundNode* node : {&own_, &their_})
      (void)loopback_.run_at(node->lane().get_executor(), [node] {
        node->drift();
        return true;
      });
    Reading before = read();
    const TimePoint begin = clock_.now();
    own_.step();
    TRY_VOID(loopback_.run_until([this, &before] {
      assert_io_thread();
      return own_.done().exchanges > before.own.exchanges || !own_.done().trouble.empty();
    }));
    const double wall_s = seconds(clock_.now() - begin);
    Reading after = read();
    for (const Done* done : {&after.own, &after.their})
      if (!done->trouble.empty())
        return fail(Errc::internal, Doing::exchanging, "not a whole exchange: " + done->trouble);
    return Round{std::move(before), std::move(after), wall_s};
  }

 private:
  template <class Job>
  std::invoke_result_t<Job&> there(Job job) {
    return loopback_.run_there(std::move(job));
  }

  Reading read() ON_IO_THREAD {
    Reading reading;
    reading.cpu = loopback_.cpu_seconds();
    const auto codec_of = [this](RoundNode& node) {
      return loopback_.run_at(node.lane().get_executor(),
                              [&node] { return node.codec_cpu_seconds(); });
    };
    reading.cpu.own += codec_of(own_);
    reading.cpu.their += codec_of(their_);
    reading.their = there([this] {
      assert_io_thread();
      return their_.done();
    });
    reading.own = own_.done();
    reading.own_wire = loopback_.own().transport->totals();
    return reading;
  }

  const SteadyClock clock_;
  Loopback loopback_;
  RoundNode own_;
  RoundNode their_;
  bool begun_ = false;
};

struct RoundFigures {
  Repeats wall, own, their, own_codec, their_codec;
  Repeats sent, received, wire_sent, wire_received;  // bytes
  void add(const Round& round) {
    const auto& [before, after, wall_s] = round;
    wall.add(1e3 * wall_s);
    own.add(1e3 * (after.cpu.own - before.cpu.own));
    their.add(1e3 * (after.cpu.their - before.cpu.their));
    own_codec.add(1e3 * (after.own.codec_cpu_s - before.own.codec_cpu_s));
    their_codec.add(1e3 * (after.their.codec_cpu_s - before.their.codec_cpu_s));
    const auto bytes = [](std::uint64_t count) { return static_cast<double>(count); };
    sent.add(bytes(after.own.bytes_sent));
    received.add(bytes(after.own.bytes_received));
    wire_sent.add(bytes(after.own_wire.sent.total() - before.own_wire.sent.total()));
    wire_received.add(bytes(after.own_wire.received.total() - before.own_wire.received.total()));
  }
};

Result<Json> measure_round(const Arguments& arguments, const Terminal& /*terminal*/) {
  assert_io_thread();
  TRY(const Layout layout, layout_of(arguments));
  TRY(const Level level, level_of(arguments, Level::l2));
  // An end whose age stays 1,000 steps behind would hold its exchanges back.
  TRY(const auto repeats, count_of(arguments, {"--repeats", 15, 1, 500}));
  const auto& wanted = arguments.config.node.threads;
  const int threads =
      std::min(wanted ? static_cast<int>(*wanted) : usable_cores(), gossip::kMostCodecThreads);
  TRY(FlatVector own, FlatVector::make(layout.size()));
  TRY(FlatVector their, FlatVector::make(layout.size()));
  RoundBench bench(layout, {level, threads}, std::move(own), std::move(their));
  TRY_VOID(bench.open());

  RoundFigures figures;
  Round last;
  for (int i = -kWarmUps; i < static_cast<int>(repeats); ++i) {
    TRY(last, bench.repeat());
    if (i >= 0) figures.add(last);
  }
  return Json{{"params",
               {{"n", layout.parameters()},
                {"level", gossip::name_of(level)},
                {"isa", gossip::name_of(gossip::detected_isa())},
                {"repeats", repeats},
                {"codec_threads", threads}}},
              {"exchange_ms", figures.wall.json()},
              {"own_cpu_ms", figures.own.json()},
              {"their_cpu_ms", figures.their.json()},
              {"own_codec_cpu_ms", figures.own_codec.json()},
              {"their_codec_cpu_ms", figures.their_codec.json()},
              {"bytes_sent", figures.sent.json()},
              {"bytes_received", figures.received.json()},
              {"wire_bytes_sent", figures.wire_sent.json()},
              {"wire_bytes_received", figures.wire_received.json()},
              {"clipped", last.after.own.clipped + last.after.their.clipped}};
}

constexpr std::array<std::string_view, 3> kRoundFlags{"--n", "--level", "--repeats"};
constexpr std::array<std::string_view, 1> kRoundKeys{"node.threads"};

}  // namespace

constinit const Bench kRoundBench{"round",
                                  "One whole exchange between two nodes' gossip over 127.0.0.1.",
                                  kRoundFlags, kRoundKeys, &measure_round};

}  // namespace starling::node::bench
