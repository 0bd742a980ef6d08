// Node: everything that one starling process is made of, and the order in which it begins and ends.
#pragma once

#include "bootstrap/driver.h"
#include "gossip/driver.h"
#include "gossip/gossip.h"
#include "node/base/clock.h"
#include "node/base/log.h"
#include "node/bridge.h"
#include "node/cli/verbs.h"
#include "node/config/config.h"
#include "node/control/server.h"
#include "node/final_result.h"
#include "node/lifecycle.h"
#include "node/observe/events.h"
#include "node/observe/health.h"
#include "node/observe/host_sampler.h"
#include "node/observe/http.h"
#include "node/observe/metrics.h"
#include "node/observe/progress_lines.h"
#include "node/state_dir.h"
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
#include <string>
#include <vector>

namespace starling::node {

// What a node needs from its surroundings, made by run_verb() before anything runs. Outlives the node.
struct NodeParts {
  const Config& config;
  StateDir& dir;
  const transport::Identity& identity;
  transport::SwarmKey key;
  training::DataSets& data;
  LogBackend& log;
  const Terminal& terminal;
};

// One node of a swarm, from the first dial to the exit.
//
//   phase      what happens                                            ends with
//   --------   -----------------------------------------------------   ---------------------------------------
//   starting   listen, control socket, HTTP, first dials               joining
//   joining    bootstrap looks for the swarm, settings, a replica      training, or an exit code
//   training   steps, exchanges, checkpoints, evaluations              finishing, leaving
//   finishing  final consensus: freeze, reduce, certify, write files   finished, or exit 6
//   finished   lingers for others, evaluates the final model           exit 0
//   leaving    last push, checkpoint, record `left`                    exit 0
//
// Owned by run_verb(). Lives on the io thread: run() returns when the io context has drained, which is the
// proof that nothing is left. Holds no lock.
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
  transport::Task<> tick();
  void every_second() ON_IO_THREAD;
  void publish_status() ON_IO_THREAD;
  void end(ExitCode code, const std::string& why) ON_IO_THREAD;
  transport::Task<> stop_everything();
  void set_phase(Phase phase) ON_IO_THREAD;

  // node_training.cc: from settings to a trainer that runs.
  void begin_training(TrainingSettings settings,
                      std::optional<training::Trainer::Start> begin, gossip::Origin origin,
                      double age) ON_IO_THREAD;
  transport::Task<> build_bridge(TrainingSettings settings,
                                 std::optional<training::Trainer::Start> begin,
                                 gossip::Origin origin, double age);
  [[nodiscard]] BridgeOptions bridge_options(const TrainingSettings& settings) const;
  [[nodiscard]] gossip::ModelFacts model_facts(const TrainingSettings& settings) const;
  void save_checkpoint(std::function<void()> done) ON_IO_THREAD;
  void evaluate_now() ON_IO_THREAD;
  void note_evaluation(const Result<training::EvaluationReport>& report) ON_IO_THREAD;
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
  void on_effect(gossip::GossipEffect effect) override ON_IO_THREAD;
  void note(const gossip::MemberChange& change) ON_IO_THREAD;
  void note(const gossip::ExchangeEvent& event) ON_IO_THREAD;
  void note(gossip::Notice notice) ON_IO_THREAD;

  // node_finish.cc: the final consensus, merging and leaving.
  void take_contribution(gossip::consensus::RunKind kind) ON_IO_THREAD;
  void run_consensus_job(gossip::consensus::ConsensusJob job) ON_IO_THREAD;
  void on_finished(const gossip::consensus::Finished& finished) ON_IO_THREAD;
  void on_final_written(const gossip::consensus::Finished& finished,
                        const Result<void>& written) ON_IO_THREAD;
  void on_consensus_failed(const Error& error) ON_IO_THREAD;
  void end_if_finished() ON_IO_THREAD;
  void begin_leave(Duration timeout) ON_IO_THREAD;
  void end_if_left() ON_IO_THREAD;
  // DIR/final of an earlier run holds a certificate for these settings: nothing to train.
  [[nodiscard]] bool finished_before(const Hash& fingerprint) ON_IO_THREAD;

  // node_control.cc: what the verbs ask.
  void on_request(const ControlRequest& request, ControlReply reply) override ON_IO_THREAD;
  void answer(const JoinRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const LeaveRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const FinishRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const MergeRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const EvalRequest& request, ControlReply reply) ON_IO_THREAD;
  void answer(const LogLevelRequest& request, ControlReply reply) ON_IO_THREAD;
};

}  // namespace starling::node
