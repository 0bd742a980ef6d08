// One simulated node process: the real Gossip and Join with their replica and sessions, and a shell
// around them that does what node/node*.cc does.
#pragma once

#include "bootstrap/join.h"
#include "gossip/consensus/contribution.h"
#include "gossip/delta/replica.h"
#include "gossip/gossip.h"
#include "node/base/random.h"
#include "tests/sim/quadratic.h"
#include "tests/sim/schedule.h"
#include "tests/sim/sessions.h"
#include "tests/sim/trace.h"
#include "tests/sim/wire.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace starling::sim {

class Process;

// What stays when no process runs.
struct Disk {
  struct Checkpoint {
    Weights weights;
    std::uint64_t steps = 0;
    std::uint64_t samples = 0;
    std::vector<gossip::SavedCounter> counters;
  };
  struct Final {
    gossip::consensus::CertificateMessage held;
    Weights result;
  };
  Incarnation ceiling;  // no incarnation from here on was used
  std::optional<Checkpoint> checkpoint;
  std::optional<Final> final;
  bootstrap::AddressBook book;
  bool full = false;  // nothing can be written
};

// How a machine is, drawn once from the seed.
struct MachineTraits {
  bool dialable = true;
  bool serves_for_ever = false;  // finish.then = serve
  std::vector<Host> seeds;
  Duration step_time = std::chrono::milliseconds(200);
  std::uint64_t batch = 8;
  std::int64_t clock_ppm = 0;  // how much faster its clock runs
  Duration clock_offset{0};
  Duration checkpoint_every = std::chrono::seconds(10);
};

// What slows a machine down for a while.
struct Burden {
  std::int64_t slowness = 1;      // of steps, jobs and files
  double refuse_attachments = 0;  // share for which there is no memory
  Duration clock_ahead{0};        // its clock jumped forward by so much in all
};

enum class Exit : std::uint8_t { finished, left, failed, gave_up };

// A codec job that has just run: what it worked on before, and what came of it.
struct CodecRun {
  const gossip::CodecJob& job;
  const Weights& weights_before;
  std::span<const float> reference_before;  // of the job's edge, empty if there was none
  const gossip::CodecOutcome& outcome;
};

// Everything that happens in a process and that somebody may want to check.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual void on_codec_run(const Process& who, const CodecRun& run) = 0;
  virtual void on_exchange_event(const Process& who, const gossip::ExchangeEvent& event) = 0;
  virtual void on_member_change(const Process& who, const gossip::MemberChange& change) = 0;
  virtual void on_close(const Process& who, const NodeId& peer, const Error& why) = 0;
  // `steps`: that this process has taken itself.
  virtual void on_contribution(const Process& who, const Weights& weights, std::uint64_t steps) = 0;
  virtual void on_finished(const Process& who, const gossip::consensus::Finished& finished,
                           const Weights& result) = 0;
  // Certificate and model are on the disk: from now on there is this end.
  virtual void on_final_written(const Process& who) = 0;
  // A chunk of the certified model came from another machine.
  virtual void on_chunk_fetched(const Process& who, std::uint32_t chunk, const Hash& hash) = 0;
  virtual void on_merged(const Process& who, const gossip::consensus::Merged& merged) = 0;
  virtual void on_consensus_failed(const Process& who, const gossip::ConsensusFailed& failed) = 0;
  virtual void on_exit(const Process& who, Exit how, const std::string& why) = 0;
};

// What all processes of a world share. Everything outlives them.
struct Services {
  Schedule& schedule;
  Wire& wire;
  Hosts& hosts;
  Trace& trace;
  Watch& watch;
  const Quadratic& problem;
  const Verifier& verifier;
};

struct ProcessSetup {
  Host host = 0;
  std::uint64_t number = 0;
  const Signer* signer = nullptr;
  transport::Endpoint endpoint;
  std::vector<transport::Endpoint> seeds;
  MachineTraits traits;
  gossip::GossipOptions gossip;
  bootstrap::JoinOptions join;
};

class Process final : private SessionShell, private gossip::MasterPort {
 public:
  Process(const Services& services, ProcessSetup setup, Disk& disk, const Burden& burden, Rng rng);
  ~Process() override;

  void begin();
  // Commands of a person.
  void finish();
  void merge();
  void leave();
  // Timers are looked at again: after a pause.
  void wake();

  [[nodiscard]] const ProcessSetup& setup() const { return setup_; }
  [[nodiscard]] const NodeId& id() const { return self_; }
  [[nodiscard]] std::string name() const;
  [[nodiscard]] Sessions& sessions() { return sessions_; }
  [[nodiscard]] const Sessions& sessions() const { return sessions_; }
  [[nodiscard]] const gossip::Gossip& gossip() const { return *gossip_; }
  [[nodiscard]] gossip::Gossip& gossip() { return *gossip_; }
  [[nodiscard]] const bootstrap::Join& join() const { return *join_; }
  [[nodiscard]] const Weights& weights() const { return weights_; }
  [[nodiscard]] const gossip::Replica* references() const { return references_.get(); }
  [[nodiscard]] bootstrap::RunPhase phase() const { return phase_; }
  [[nodiscard]] bool training() const { return training_ == Training::running; }
  [[nodiscard]] const std::optional<gossip::consensus::Finished>& finished() const {
    return finished_;
  }
  [[nodiscard]] bool ending() const { return ending_.has_value(); }
  [[nodiscard]] Exit how_it_ended() const { return *ending_; }
  // Deadlines of sessions, for a process that is ending.
  void sessions_tick() { sessions_.tick(); }
  [[nodiscard]] std::uint64_t samples() const { return samples_; }
  [[nodiscard]] std::uint64_t own_steps() const { return own_steps_; }
  [[nodiscard]] std::uint64_t ticks() const { return ticks_; }
  // Whether a message of this peer was handled so short a time ago.
  [[nodiscard]] bool heard_within(const NodeId& peer, Duration time) const {
    const auto at = heard_.find(peer);
    return at != heard_.end() && services_.schedule.now() - at->second <= time;
  }
  // This machine's clock.
  [[nodiscard]] TimePoint local() const;

 private:
  enum class Training : std::uint8_t { stopped, running, pausing };
  // Jobs one after the other, each some time after it was asked for.
  struct Lane {
    std::deque<std::pair<Duration, Action>> waiting;
    bool busy = false;
  };
  struct ConsensusMemory {
    Weights contribution;
    std::vector<std::int64_t> counters;
    Weights result;
    std::vector<std::int64_t> result_counters;
    std::vector<gossip::consensus::TensorLimit> limits;
  };
  struct Dialling {
    NodeId id;
    std::vector<std::string> left;
    bool all_refused = true;
  };

  // process.cc: time, lanes, training
  void after(Duration delay, Action action);
  void on_lane(Lane& lane, Duration takes, Action action);
  void next_of(Lane& lane);
  [[nodiscard]] Duration job_time();
  [[nodiscard]] TimePoint global(TimePoint local) const;
  void arm();
  void tick(TimePoint armed);
  void every_second();
  void step();
  void schedule_step();
  void with_master(const std::function<void(gossip::MasterView)>& job) override;
  void end(Exit how, const std::string& why);

  // process_shell.cc: sessions and the effects of Gossip
  void carry_out(gossip::GossipEffects effects);
  void carry_out_one(gossip::GossipEffect effect);
  void do_effect(gossip::GossipEffect& effect);
  void send(const NodeId& to, transport::Message message);
  void dial_next(Dialling dialling);
  void run_codec(gossip::CodecJob job);
  void persist(Incarnation ceiling);
  void note(gossip::Notice notice);
  void on_session_up(const transport::SessionInfo& info) override;
  void on_session_down(const NodeId& peer, const Error& why) override;
  void on_message(const NodeId& peer, transport::Message message) override;
  bool admit(const NodeId& peer, std::uint16_t type, std::size_t bytes) override;
  void on_refused(const NodeId& peer, std::uint16_t type, ByteView body) override;
  void on_dial_met(const transport::Endpoint& target, const NodeId& peer) override;
  void on_dial_failed(const transport::Endpoint& target, const Error& why) override;

  // process_join.cc: the effects of Join
  void carry_out(const bootstrap::JoinEffects& effects);
  void do_effect(const bootstrap::JoinEffect& effect);
  [[nodiscard]] bootstrap::LocalFacts local_facts();
  void begin_training(bool from_checkpoint);
  void build_and_start(gossip::Beginning beginning, Weights weights);
  void adopt(const bootstrap::AdoptSettings& adopt);
  void install(const bootstrap::InstallState& install);
  void take_snapshot();
  void probe_port(const bootstrap::ProbePort& wanted);
  void fetch_final();
  void save_checkpoint(Action done);
  void set_phase(bootstrap::RunPhase phase);

  // process_finish.cc: consensus, merging, leaving
  [[nodiscard]] const std::shared_ptr<ConsensusMemory>& memory(gossip::consensus::RunKind kind);
  void take_contribution(gossip::consensus::RunKind kind);
  void run_consensus_job(gossip::consensus::ConsensusJob job);
  void on_finished(const gossip::consensus::Finished& finished);
  void on_merged(const gossip::consensus::Merged& merged);
  void on_consensus_failed(const gossip::ConsensusFailed& failed);
  void serve();
  void end_if_finished();
  void leave_finished(Exit exit);
  void end_if_left();

  Services services_;
  ProcessSetup setup_;
  Disk& disk_;
  const Burden& burden_;
  Rng rng_;
  NodeId self_;
  Instance instance_;
  TimePoint started_;
  Sessions sessions_;
  std::unique_ptr<gossip::Gossip> gossip_;
  std::unique_ptr<bootstrap::Join> join_;
  std::unique_ptr<gossip::Replica> references_;
  std::uint64_t bridge_ = 0;  // number of the trainer; a new one has nothing of the old one's jobs
  bool building_ = false;

  Weights weights_;
  Training training_ = Training::stopped;
  std::uint64_t steps_ = 0;
  std::uint64_t own_steps_ = 0;  // of this process
  std::uint64_t samples_ = 0;
  Lane codec_lane_;
  Lane pool_;
  std::multimap<std::string, Dialling> dialling_;
  std::map<NodeId, TimePoint> heard_;
  bootstrap::RunPhase phase_ = bootstrap::RunPhase::starting;
  bool joined_ = false;

  TimePoint armed_ = kNever;
  std::uint64_t ticks_ = 0;
  TimePoint next_checkpoint_ = kNever;
  bool saving_ = false;

  // Owners: this process and the jobs that work on it, which an aborted merge leaves behind.
  std::shared_ptr<ConsensusMemory> finish_memory_;
  std::shared_ptr<ConsensusMemory> merge_memory_;
  std::optional<gossip::consensus::Finished> finished_;
  bool final_written_ = false;
  bool may_exit_ = false;
  bool left_told_ = false;
  Exit leaves_as_ = Exit::left;
  bool leave_saved_ = false;
  std::optional<Exit> ending_;
};

}  // namespace starling::sim
