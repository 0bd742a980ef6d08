// World: one simulated swarm from its plan to its verdict.
//
// Two phases, as in TigerBeetle's VOPR: in the safety phase anything may happen and the invariants
// must hold; then every fault ends, and in the liveness phase the machines must come into one view
// and to one certified model within a bound.
#pragma once

#include "tests/gossip/consensus/fake_signing.h"
#include "tests/sim/checkers.h"
#include "tests/sim/plan.h"
#include "tests/sim/process.h"
#include "tests/sim/schedule.h"
#include "tests/sim/trace.h"
#include "tests/sim/wire.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace starling::sim {

struct Outcome {
  std::uint64_t seed = 0;
  std::size_t machines = 0;
  std::uint64_t events = 0;
  std::uint64_t frames = 0;
  std::uint64_t bytes = 0;
  double node_seconds = 0;  // of virtual time, summed over running processes
  double virtual_seconds = 0;
  double one_view_seconds = 0;  // from the end of the faults
  double end_seconds = 0;
  std::uint64_t trace = 0;
  Tally tally;
  std::vector<Violation> violations;
};

class World final : private Hosts, private Census {
 public:
  // `trace`: where the lines of the trace go; null: nowhere.
  World(Plan plan, std::ostream* trace);
  ~World() override;

  [[nodiscard]] Outcome run();

 private:
  enum class Life : std::uint8_t { off, running, paused };
  struct Machine {
    std::unique_ptr<gossip::consensus::testing::FakeSigner> signer;
    Disk disk;
    Burden burden;
    Life life = Life::off;
    std::unique_ptr<Process> process;
    std::vector<Action> held;      // while paused
    std::uint32_t pauses = 0;      // faults that want it paused
    bool departed = false;         // left for good, or finished and gone
    bool wanted = false;           // should run: a supervisor starts it again
    std::uint32_t darknesses = 0;  // power cuts that hold
    std::uint32_t touches = 0;     // faults that hold
    TimePoint untouched_since{};
    TimePoint running_since{};
  };
  // What ends with a fault.
  struct Active {
    Fault fault;
    bool over = false;
    std::vector<std::pair<Host, Host>> blocked;
  };

  // world.cc: machines
  void start(Host host);
  void stop(Host host);
  void pause(Host host);
  void resume(Host host);
  void reap();
  void every_second();
  void watch_traffic();
  bool run_until(Duration limit, const std::function<bool()>& done);
  [[nodiscard]] bool is_there(Host host) const;
  [[nodiscard]] std::vector<Host> islands() const;
  [[nodiscard]] bool one_island() const;
  [[nodiscard]] bool one_view();
  void order_the_end();
  void run_liveness(Outcome& outcome);
  [[nodiscard]] bool all_exchange(TimePoint since);
  [[nodiscard]] std::string unfinished() const;
  [[nodiscard]] bool all_finished();

  // world_faults.cc
  void begin_fault(std::size_t index);
  void end_fault(std::size_t index);
  void stutter(std::size_t index, Host host);
  void end_all_faults();
  void touch(Host host);
  void untouch(Host host);
  void block_between(Active& active, bool both_ways);
  void clog(const Fault& fault);
  void cut_power(Host host);
  void touch_all(const Fault& fault);

  // Hosts
  [[nodiscard]] std::optional<Host> find(const transport::Endpoint& endpoint) const override;
  [[nodiscard]] bool is_dialable(Host host) const override;
  [[nodiscard]] Sessions* process(Host host) override;
  void run(Host host, std::uint64_t process, Action action) override;
  // Census
  [[nodiscard]] std::vector<Process*> processes() const override;
  [[nodiscard]] std::optional<TimePoint> untouched_since(const NodeId& id) const override;
  [[nodiscard]] bool is_steady() const override;
  [[nodiscard]] double samples_per_second() const override;

  Plan plan_;
  Rng rng_;
  Schedule schedule_;
  Trace trace_;
  Quadratic problem_;
  gossip::consensus::testing::FakeVerifier verifier_;
  Wire wire_;
  Checkers checkers_;
  std::vector<Machine> machines_;
  std::map<NodeId, Host> hosts_;
  std::vector<Active> faults_;
  std::uint64_t processes_started_ = 0;
  double node_seconds_ = 0;
  bool liveness_ = false;
  TimePoint next_count_{};
  std::uint64_t counted_ = 0;  // events until this second
  std::string apart_;          // why one_view() or all_exchange() said no
};

}  // namespace starling::sim
