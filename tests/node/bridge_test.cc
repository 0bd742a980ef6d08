// The bridge between a trainer that needs no LibTorch, that of tests/net, and an io thread.
#include "node/bridge.h"

#include "tests/net/lab.h"

#include <asio/co_spawn.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>

using namespace starling;
using namespace starling::node;

namespace {

class DeafEvents final : public BridgeEvents {
 public:
  void on_codec_done(gossip::CodecOutcome) override {}
  void on_steps(const StepFigures&) override {}
  void on_training_failed(const Error& error) override { failed = error.code; }

  std::optional<Errc> failed;
};

transport::Task<> stop_bridge(Bridge* bridge) {
  auto ends = bridge->stop();
  co_await std::move(ends);
}

// A replica of this bridge's model whose parameters all have one value.
training::Replica replica_of(const Bridge& bridge, float value) {
  const gossip::Layout& layout = bridge.model().layout;
  training::Replica made;
  made.parameters.assign(layout.size(), value);
  made.bn_mean.assign(layout.bn_channels(), 0.0F);
  made.bn_variance.assign(layout.bn_channels(), 1.0F);
  return made;
}

// A bridge whose training was never started.
struct IdleBridge {
  IdleBridge() : data(training::open_data("synthetic:train=256,val=16", "", log).value()) {
    BridgeOptions options;
    options.model.name = lab::kModelName;
    options.model.classes = static_cast<std::int64_t>(data.train->classes());
    options.loader = training::loader_options_for(*data.train, training::Pass::training, 32, 3);
    options.loader.batch = lab::kBatch;
    options.loader.threads = 1;
    options.train = data.train.get();
    bridge = Bridge::create(io, std::move(options), std::nullopt, events, log).value();
  }

  template <class Condition>
  void run_until(Condition condition) {
    io.restart();
    const auto guard = asio::make_work_guard(io);
    while (!condition()) io.run_one();
  }
  void stop() {
    asio::co_spawn(io, stop_bridge(bridge.get()), [](const std::exception_ptr&) {});
    io.restart();
    io.run();
  }

  NullLog log;
  asio::io_context io;
  DeafEvents events;
  training::DataSets data;
  std::unique_ptr<Bridge> bridge;
};

struct Jobs {
  int asked = 0;
  int told = 0;
  std::optional<int> open_at_stop;
};

// Says on which thread it ended.
struct LastSeen {
  explicit LastSeen(std::thread::id& on) : ended_on(on) {}
  ~LastSeen() { ended_on = std::this_thread::get_id(); }
  LastSeen(const LastSeen&) = delete;
  LastSeen& operator=(const LastSeen&) = delete;
  std::thread::id& ended_on;
};

transport::Task<> stop_and_count(Bridge* bridge, Jobs* jobs) {
  auto ends = bridge->stop();
  co_await std::move(ends);
  jobs->open_at_stop = jobs->asked - jobs->told;
}

}  // namespace

TEST_SUITE("node/bridge") {
  TEST_CASE("stop also waits for jobs that are asked for while it ends") {
    IdleBridge idle;
    Jobs jobs;
    // Each outcome asks for the next job one turn later, as a message from a neighbour does.
    std::function<void()> ask = [&] {
      ++jobs.asked;
      const auto told = [&](int) {
        ++jobs.told;
        if (jobs.asked < 5) asio::post(idle.io, ask);
      };
      idle.bridge->run_on_lane([] { return 0; }, told);
    };
    ask();
    asio::co_spawn(idle.io, stop_and_count(idle.bridge.get(), &jobs),
                   [](const std::exception_ptr&) {});
    idle.io.run();

    CHECK(jobs.open_at_stop == 0);
    CHECK(jobs.asked == 5);
    CHECK(jobs.told == 5);
  }

  TEST_CASE("a job that finds no memory fails alone where it can say so, and training otherwise") {
    IdleBridge idle;
    const auto run_out = []() -> Result<int> { throw std::bad_alloc(); };
    const auto run_out_silently = []() -> int { throw std::bad_alloc(); };
    std::optional<Errc> outcome;
    std::optional<Errc> training;
    idle.bridge->run_on_lane(run_out, [&](const Result<int>& told) {
      if (!told) outcome = told.error().code;
      training = idle.events.failed;
    });
    bool told = false;
    idle.bridge->run_on_lane(run_out_silently, [&](int) { told = true; });
    Jobs jobs;
    asio::co_spawn(idle.io, stop_and_count(idle.bridge.get(), &jobs),
                   [](const std::exception_ptr&) {});
    idle.io.run();

    CHECK(outcome == Errc::no_memory);
    CHECK_FALSE(training);
    CHECK_FALSE(told);
    CHECK(idle.events.failed == Errc::no_memory);
  }

  TEST_CASE("what is of the model's size is freed on the pool, whoever has it last") {
    const auto here = std::this_thread::get_id();
    std::thread::id handed_over;
    std::thread::id shared;
    asio::thread_pool pool{1};
    free_on(pool, std::make_unique<LastSeen>(handed_over));
    auto first = freed_on(pool, std::make_unique<LastSeen>(shared));
    auto second = first;
    first.reset();
    second.reset();
    pool.join();
    CHECK(handed_over != std::thread::id());
    CHECK(handed_over != here);
    CHECK(shared == handed_over);
  }

  TEST_CASE("what is given to a pool that has ended is freed with it") {
    std::thread::id ended_on;
    {
      asio::thread_pool pool{1};
      pool.join();
      freed_on(pool, std::make_unique<LastSeen>(ended_on)).reset();
      CHECK(ended_on == std::thread::id());
    }
    CHECK(ended_on == std::this_thread::get_id());
  }

  TEST_CASE("a bridge that has stopped may end on another thread") {
    assert_io_thread();
    IdleBridge idle;
    REQUIRE(idle.bridge->start());
    Jobs jobs;
    asio::co_spawn(idle.io, stop_and_count(idle.bridge.get(), &jobs),
                   [](const std::exception_ptr&) {});
    idle.io.run();
    asio::thread_pool pool{1};
    free_on(pool, std::move(idle.bridge));
    pool.join();
    CHECK_FALSE(idle.bridge);
  }

  TEST_CASE("what is asked for while a replica is put in place is done with the new one") {
    assert_io_thread();
    IdleBridge idle;
    std::optional<float> before;
    std::optional<float> after;
    bool adopted = false;
    idle.bridge->snapshot([&](const training::Replica& copy) { before = copy.parameters[0]; });
    idle.bridge->adopt(replica_of(*idle.bridge, 1e6F), [&](const Result<void>& outcome) {
      adopted = outcome.has_value();
      CHECK_FALSE(after);
    });
    idle.bridge->snapshot([&](const training::Replica& copy) { after = copy.parameters[0]; });
    idle.run_until([&] { return before.has_value(); });
    CHECK(before < 1e3F);
    CHECK_FALSE(adopted);

    REQUIRE(idle.bridge->start());
    idle.run_until([&] { return after.has_value(); });

    CHECK(adopted);
    CHECK(after > 1e3F);
    idle.stop();
  }

  TEST_CASE("whoever gives a replica of another model is told, and jobs go on") {
    assert_io_thread();
    IdleBridge idle;
    REQUIRE(idle.bridge->start());
    training::Replica other = replica_of(*idle.bridge, 1);
    other.parameters.pop_back();
    std::optional<Errc> told;
    bool done = false;
    idle.bridge->adopt(std::move(other), [&](const Result<void>& outcome) {
      if (!outcome) told = outcome.error().code;
    });
    idle.bridge->run_on_lane([] { return 0; }, [&](int) { done = true; });
    idle.run_until([&] { return done; });

    CHECK(told == Errc::bad_argument);
    idle.stop();
  }

  TEST_CASE("a replica that is not in place when training ends holds up nobody") {
    assert_io_thread();
    IdleBridge idle;
    std::optional<Errc> told;
    bool done = false;
    idle.bridge->adopt(replica_of(*idle.bridge, 1), [&](const Result<void>& outcome) {
      if (!outcome) told = outcome.error().code;
    });
    idle.bridge->run_on_lane([] { return 0; }, [&](int) { done = true; });
    std::optional<Errc> saved;
    idle.bridge->save({}, [&](const Result<std::filesystem::path>& outcome) {
      if (!outcome) saved = outcome.error().code;
    });
    idle.stop();

    CHECK(told == Errc::cancelled);
    CHECK(done);
    CHECK(saved == Errc::cancelled);
  }

  TEST_CASE("whoever asks for a pause is told where training ends instead") {
    IdleBridge idle;
    std::optional<Errc> told;
    Jobs jobs;
    asio::co_spawn(idle.io, stop_and_count(idle.bridge.get(), &jobs),
                   [&](const std::exception_ptr&) {
                     assert_io_thread();
                     idle.bridge->pause([&](const Result<void>& paused) {
                       if (!paused) told = paused.error().code;
                     });
                   });
    idle.io.run();
    CHECK(told == Errc::cancelled);
  }
}
