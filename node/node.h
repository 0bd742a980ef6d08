// Node: everything that one starling process is made of, and the order in which it begins and ends.
#pragma once

#include "bootstrap/driver.h"
#include "gossip/driver.h"
#include "gossip/gossip.h"
#include "node/access/spread.h"
#include "node/access_files.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/bridge.h"
#include "node/cli/exit_code.h"
#include "node/cli/verbs.h"
#include "node/config/config.h"
#include "node/control/server.h"
#include "node/final_result.h"
#include "node/invites.h"
#include "node/lifecycle.h"
#include "node/log_backend.h"
#include "node/observe/events.h"
#include "node/observe/health.h"
#include "node/observe/host_sampler.h"
#include "node/observe/http.h"
#include "node/observe/metrics.h"
#include "node/observe/progress_lines.h"
#include "node/state_dir.h"
#include "node/state_transfer_bytes.h"
#include "node/status_builder.h"
#include "node/training_settings.h"
#include "training/data/dataset.h"
#include "transport/task_group.h"
#include "transport/transport.h"

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/thread_pool.hpp>

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

// The end that an earlier process came to, to be served to those who come later (rulings 40).
struct ServedModel {
  gossip::consensus::CertificateMessage held;
  std::unique_ptr<ConsensusMemory> memory;
};

// What a node needs from its surroundings, made by run_verb() before anything runs. Outlives the
// node.
struct NodeParts {
  const Config& config;
  const Terminal& terminal;
  LogBackend& log;
  StateDir& dir;
  EventLog& events;
  const transport::Identity& identity;
  transport::SwarmKey key;
  SwarmId swarm;
  AccessFiles access_files;
  transport::PeerRules peer_rules;                  // what those files said at the start
  std::optional<transport::Membership> membership;  // this too; then as the files say
  std::optional<SecretFiles> secret_to_get;         // where a newcomer's secret will be
  Incarnation first_incarnation;
  training::DataSets& data;
  // What this node would train on its own, as values, as text, and the model that they name.
  TrainingSettings training;
  bootstrap::Settings settings;
  training::Model model;
  std::optional<training::Checkpoint> checkpoint;  // of an earlier process
  std::optional<training::Replica> base;           // certified: the run goes on from it
  std::optional<ServedModel> served;               // of an earlier process that finished
  std::vector<bootstrap::Seed> seeds;
  bootstrap::AddressBook address_book;
  std::string http_token;
  // Whether the start tells how the next machine comes in: this node's folder has the secret.
  bool shows_way_in = false;
};

// One node of a swarm, from the first dial to the exit.
//
//   phase      what happens                                       ends with
//   starting   listen, control socket, HTTP, first dials          joining
//   joining    bootstrap looks for swarm, settings, a replica     training, or an exit code
//   training   steps, exchanges, checkpoints, evaluations         finishing, leaving
//   finishing  freeze, reduce, certify, write files               finished, or exit 6
//   finished   lingers for others, evaluates the final model      exit 0
//   leaving    last push, checkpoint, record `left`               exit 0
//
// Owned by run_verb(). Lives on the io thread: run() returns when the io context has drained, which
// is the proof that nothing is left. Holds no lock.
class Node final : private transport::SessionEvents,
                   private gossip::GossipHost,
                   private bootstrap::BootstrapHost,
                   private BridgeEvents,
                   private ControlHandler {
 public:
  explicit Node(NodeParts parts);
  ~Node() override;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Runs to the end; the exit code.
  [[nodiscard]] ExitCode run();

 private:
  // node.cc: beginning and end.
  Result<void> open_doors() ON_IO_THREAD;
  void print_banner() ON_IO_THREAD;
  void log_banner() ON_IO_THREAD;
  void show_way_in() ON_IO_THREAD;
  transport::Task<> tick();
  void every_second() ON_IO_THREAD;
  void publish_status() ON_IO_THREAD;
  void note_end_phase(const StatusSnapshot::Consensus& end) ON_IO_THREAD;
  void on_task_threw(const Error& thrown) ON_IO_THREAD;
  // Says why, then leaves: saved, handed over, and with a deadline.
  void leave_with(const Error& error) ON_IO_THREAD;
  // Says why, then ends at once: there is nothing to save or to hand over.
  void end_with(const Error& error) ON_IO_THREAD;
  void end(ExitCode code, const std::string& why) ON_IO_THREAD;
  transport::Task<> stop_everything();
  transport::Task<> close_doors();
  void set_phase(Phase phase) ON_IO_THREAD;

  // node_joining.cc: what bootstrap asks for.
  void begin_join() ON_IO_THREAD;
  [[nodiscard]] bootstrap::LocalFacts local_facts() ON_IO_THREAD;
  void begin_training(const bootstrap::BeginTraining& begin) ON_IO_THREAD;
  void adopt_settings(const bootstrap::AdoptSettings& adopt) ON_IO_THREAD;
  transport::Task<> rebuild_for(TrainingSettings settings, training::Model model,
                                bootstrap::AdoptSettings adopt);
  void install_state(const bootstrap::InstallState& install) ON_IO_THREAD;
  void use_state(const bootstrap::InstallState& install,
                 Result<training::Replica> replica) ON_IO_THREAD;
  // Why a replica that was read is not put in the place of the one here, if it is not.
  [[nodiscard]] std::optional<Error> no_use_for(const bootstrap::Manifest& state) ON_IO_THREAD;
  void take_snapshot() ON_IO_THREAD;
  void free_dropped_snapshots() ON_IO_THREAD;
  void fetch_final(const bootstrap::FetchFinal& fetch) ON_IO_THREAD;
  void give_up(const Error& error) ON_IO_THREAD;
  void note_joined(const bootstrap::Joined& joined) ON_IO_THREAD;
  void note_reachable(const bootstrap::Reachability& told) ON_IO_THREAD;
  void save_address_book() ON_IO_THREAD;
  void keep_settings() ON_IO_THREAD;
  void write_later(const std::filesystem::path& file, std::string text) ON_IO_THREAD;

  // node_training.cc: from settings to a trainer that runs.
  // How training begins: at genesis, from a checkpoint, or with a sponsor's replica.
  struct Beginning {
    Hash settings;  // fingerprint of those that it is of
    std::optional<training::Trainer::Start> start;
    gossip::Origin origin = gossip::Origin::genesis;
    double age = 0;
  };
  // Builds the trainer off the io thread, then starts it and averaging. The rest of the node goes
  // on meanwhile.
  transport::Task<> build_and_start(Beginning beginning);
  transport::Task<> wait_for_build();
  [[nodiscard]] std::optional<Error> why_too_late(TimePoint now,
                                                  gossip::Origin origin) ON_IO_THREAD;
  void log_device(std::string_view why) ON_IO_THREAD;
  // Puts a state that arrived in the place of the replica that trains.
  void adopt_replica(training::Replica replica, double age) ON_IO_THREAD;
  void tell_replica(gossip::Origin origin, double age);
  transport::Task<> drop_bridge();
  [[nodiscard]] BridgeOptions bridge_options() const ON_IO_THREAD;
  [[nodiscard]] std::vector<NodeId> data_members() const ON_IO_THREAD;
  [[nodiscard]] gossip::ModelFacts model_facts() const;
  void tell_run(double value) ON_IO_THREAD;
  void save_checkpoint(std::function<void(const Result<void>&)> done) ON_IO_THREAD;
  void evaluate_now() ON_IO_THREAD;
  // What an evaluation was of; `references` that a neighbourhood mean was made of.
  struct Subject {
    Evaluated of = Evaluated::replica;
    std::size_t references = 0;
  };
  void note_evaluation(const Result<training::EvaluationReport>& report,
                       Subject subject) ON_IO_THREAD;
  void on_codec_done(gossip::CodecOutcome outcome) override ON_IO_THREAD;
  void on_steps(const StepFigures& figures) override ON_IO_THREAD;
  void on_training_failed(const Error& error) override ON_IO_THREAD;

  // node_sessions.cc: transport to gossip and bootstrap, effects of both.
  void on_session_up(const transport::SessionInfo& info) override ON_IO_THREAD;
  void on_session_down(const NodeId& peer, const Error& why) override ON_IO_THREAD;
  void on_message(const NodeId& peer, transport::Message message) override ON_IO_THREAD;
  bool admit(const NodeId& peer, std::uint16_t type, ByteView body,
             std::size_t attachment_bytes) override ON_IO_THREAD;
  void on_refused(const NodeId& peer, std::uint16_t type, ByteView body) override ON_IO_THREAD;
  void on_dial_failed(const transport::Endpoint& target, const Error& why) override ON_IO_THREAD;
  void count_failure(const Error& why) ON_IO_THREAD;
  void on_effect(gossip::GossipEffect effect) override ON_IO_THREAD;
  void on_effect(bootstrap::JoinEffect effect) override ON_IO_THREAD;
  void persist_incarnation(Incarnation ceiling) ON_IO_THREAD;
  transport::Task<> write_incarnation(Incarnation ceiling);
  void note(const gossip::MemberChange& change) ON_IO_THREAD;
  void note(const gossip::ExchangeEvent& event) ON_IO_THREAD;
  void note_dropped(const gossip::EdgeWasClosed& closed) ON_IO_THREAD;
  void note(const gossip::NotTaken& shown) ON_IO_THREAD;
  void note(gossip::Notice notice) ON_IO_THREAD;

  // node_access.cc: who may have a session, while files change.
  enum class Read : std::uint8_t { if_changed, always };
  void reload_access(Read when) ON_IO_THREAD;
  transport::Task<> read_access(Read when);
  void apply_access(Access access) ON_IO_THREAD;
  void use_rules(transport::PeerRules rules) ON_IO_THREAD;
  void check_own_certificate() ON_IO_THREAD;
  // The issuer's side of an invite: a certificate where the swarm has an admin, and the secret, as
  // the first messages of the newcomer's session.
  transport::Task<> give_secret(NodeId newcomer);
  // The newcomer's: onto the disk, then into use.
  void take_membership(const NodeId& from, const transport::Message& message) ON_IO_THREAD;
  void take_secret(const NodeId& from, transport::Message message) ON_IO_THREAD;
  transport::Task<> keep_secret(transport::SwarmSecret secret);
  transport::Task<> issue_invite(Duration ttl, ControlReply reply);

  // node_spread.cc: the admin's word and the next secret, from member to member.
  void feed_spread(Access& access) ON_IO_THREAD;
  void hear_access(const NodeId& peer, const transport::Message& message) ON_IO_THREAD;
  void tick_spread(TimePoint now) ON_IO_THREAD;
  void carry_out(SpreadEffects effects) ON_IO_THREAD;
  void use_revocations(transport::Revocations list) ON_IO_THREAD;
  transport::Task<> keep_revocations(transport::Revocations list);
  transport::Task<> keep_next_secret(Bytes text);
  transport::Task<> promote_secret();
  transport::Task<> drop_previous_secret();
  void after_secret(const Result<void>& changed, std::string_view what) ON_IO_THREAD;
  void fill_access_status() ON_IO_THREAD;

  // node_finish.cc: the final consensus, merging, serving and leaving.
  void pause_training() ON_IO_THREAD;
  void take_contribution(gossip::consensus::RunKind kind) ON_IO_THREAD;
  void run_consensus_job(gossip::consensus::ConsensusJob job) ON_IO_THREAD;
  transport::Task<> run_consensus(SharedConsensusMemory memory,
                                  gossip::consensus::ConsensusJob job);
  [[nodiscard]] const SharedConsensusMemory& consensus_memory(gossip::consensus::RunKind kind)
      ON_IO_THREAD;
  void on_merged(const gossip::consensus::Merged& merged) ON_IO_THREAD;
  void tell_merged(const gossip::consensus::Merged& merged,
                   const SharedConsensusMemory& memory) ON_IO_THREAD;
  void reply_merged(const nlohmann::json& body) ON_IO_THREAD;
  void on_merge_failed(const Error& error) ON_IO_THREAD;
  void on_finished(const gossip::consensus::Finished& finished) ON_IO_THREAD;
  void note_end(const gossip::consensus::Finished& finished) ON_IO_THREAD;
  [[nodiscard]] Result<void> begin_serving(ServedModel served) ON_IO_THREAD;
  transport::Task<> write_final_files();
  void say_final() ON_IO_THREAD;
  void evaluate_final(training::SharedReplica result) ON_IO_THREAD;
  void on_final_not_written(const Error& error) ON_IO_THREAD;
  void end_with_checkpoint(ExitCode code, std::string why) ON_IO_THREAD;
  void on_consensus_failed(const Error& error) ON_IO_THREAD;
  void end_if_finished() ON_IO_THREAD;
  void leave_finished(std::string how) ON_IO_THREAD;
  void begin_leave(Duration timeout) ON_IO_THREAD;
  void save_last_checkpoint() ON_IO_THREAD;
  transport::Task<> limit_leave(Duration limit);
  // How long the end may wait for attachments that are under way.
  [[nodiscard]] Duration patience() const;
  void end_if_left() ON_IO_THREAD;
  void finish_leave(const std::string& how) ON_IO_THREAD;

  // node_control.cc: what verbs and signals ask.
  void on_request(const ControlRequest& request, ControlReply reply) override ON_IO_THREAD;
  void answer(const JoinRequest& request, ControlReply reply) ON_IO_THREAD;
  // Answers whoever waits for a session with this peer; tells those who waited too long.
  // Whom `join` waited for is met, or is given up.
  void answer_joins(TimePoint now) ON_IO_THREAD;
  void answer(const LeaveRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const FinishRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const MergeRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const EvalRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const LogLevelRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const InviteRequest& request, ControlReply reply) ON_IO_THREAD;
  // SIGUSR1 and SIGQUIT.
  void save_at_signal() ON_IO_THREAD;
  void tell_state() ON_IO_THREAD;

  NodeParts parts_;
  const Config& config_;
  LogBackend& log_;
  SteadyClock clock_;
  Rng rng_;
  Instance instance_;

  asio::io_context io_{1};
  asio::thread_pool pool_{1};   // hashes, consensus, and whatever computes long at the start
  asio::thread_pool files_{1};  // what waits for a disk: a consensus must not wait behind it
  transport::TaskGroup tasks_;
  transport::Ed25519Verifier verifier_;
  Invites invites_;
  transport::Transport transport_;
  gossip::Gossip gossip_;
  gossip::Driver gossip_driver_;
  bootstrap::Join join_;
  bootstrap::Driver bootstrap_driver_;
  std::unique_ptr<Bridge> bridge_;
  ReplicaReader reader_{pool_, tasks_};
  // Those that Join was given to install or to serve: each is freed once nobody else holds it.
  std::vector<bootstrap::SharedSnapshot> given_snapshots_;

  Signals signals_;
  Watchdog watchdog_;
  SnapshotBox snapshots_;
  Metrics metrics_;
  Health health_{config_.http.train_limit};
  HostSampler host_sampler_;
  ProgressLines progress_lines_;
  ControlServer control_;
  std::unique_ptr<HttpServer> http_;
  asio::steady_timer second_;
  asio::steady_timer leave_limit_;
  std::optional<TimePoint> leave_by_;  // what a leave promises
  asio::steady_timer build_over_;  // never expires; cancelled when a build, or a drop, has ended

  NodeFigures figures_;
  std::vector<transport::Endpoint> advertised_;
  TrainingSettings settings_;  // of the swarm, once they are adopted
  std::optional<double> images_per_second_;
  std::optional<double> gossip_wait_;
  std::optional<double> data_wait_;
  bool book_changed_ = false;
  bool bug_ = false;
  bool building_ = false;   // or dropping: one at a time
  std::stop_source build_;  // of the build under way: asked to end early
  bool reading_access_ = false;
  bool restricted_ = false;  // by a list of allowed nodes, without an admin
  transport::PeerRules rules_;
  std::optional<Spread> spread_;    // where the swarm has an admin
  std::size_t lists_to_keep_ = 0;   // on their way to the disk
  std::string membership_to_keep_;  // a newcomer's, until the secret comes
  bool saving_ = false;
  std::function<void()> after_save_;  // once the checkpoint that is being written is done
  bool evaluating_ = false;
  TimePoint next_certificate_check_{};
  TimePoint next_checkpoint_ = kNever;
  TimePoint next_evaluation_ = kNever;

  SharedConsensusMemory consensus_memory_;
  SharedConsensusMemory merge_memory_;
  std::optional<gossip::consensus::Finished> finished_;
  bool final_written_ = false;
  bool final_evaluated_ = false;
  bool final_said_ = false;
  bool may_exit_ = false;
  bool left_told_ = false;
  std::string how_it_leaves_ = "left the swarm";
  std::optional<Error> why_it_leaves_;  // training failed
  bool leave_saved_ = false;
  std::string end_phase_;           // of the final consensus, as it was told last
  std::optional<Error> not_saved_;  // why the steps since the last checkpoint are lost
  std::vector<ControlReply> waiting_for_finish_;
  std::vector<ControlReply> waiting_for_merge_;
  std::vector<ControlReply> waiting_for_leave_;
  struct WaitingJoin {
    std::vector<bootstrap::Seed> seeds;
    TimePoint until;
    ControlReply reply;
  };
  std::vector<WaitingJoin> waiting_for_join_;
  std::vector<ControlReply> waiting_for_eval_;
  std::optional<ExitCode> exit_;
};

}  // namespace starling::node
