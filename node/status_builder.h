// Puts together the StatusSnapshot from what each part of the node knows.
#pragma once

#include "bootstrap/join.h"
#include "gossip/gossip.h"
#include "node/bridge.h"
#include "node/observe/host_sampler.h"
#include "node/observe/status.h"
#include "transport/transport.h"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace starling::node {

// What the node itself keeps for its status; io thread.
struct NodeFigures {
  std::string name;
  std::string address;
  std::string http;
  std::string mode;
  SwarmId swarm;
  TimePoint started{};
  Phase phase = Phase::starting;
  std::optional<StepFigures> last_steps;
  TimePoint last_step_ended{};
  TimePoint training_began{};    // the last time: a node that joins again begins anew
  std::optional<double> loss;    // moving average
  double images_per_second = 0;  // moving average
  double gossip_wait_ratio = 0;
  double data_wait_ratio = 0;
  std::uint64_t exchanges = 0;
  std::uint64_t delta_bytes_sent = 0;
  std::uint64_t delta_bytes_received = 0;
  std::optional<StatusSnapshot::Eval> eval;
  std::string checkpoint;
  std::string reachable = "unknown";
  std::uint32_t batch = 0;
  std::uint64_t images_per_epoch = 0;
  std::optional<HostSample> host;
  Troubles troubles;  // what is wrong now: troubles_at()
  std::optional<TimePoint> clone_seen;
  std::optional<TimePoint> events_lost_at;  // the last time
  // The end, once it is there.
  std::string final_hash;
  std::uint64_t final_samples = 0;
  std::vector<std::string> final_participants;
  // Why a member is suspect or dead, by id.
  std::map<NodeId, std::string> member_reasons;
  StatusSnapshot::Access access;

  // Other settings are adopted: what is of one run and its model is not known of the next.
  void forget_run();
};

// Since the last step ended or training began; none before it began. Goes on while nothing trains:
// /livez and the warning ask Health, which rests then.
[[nodiscard]] std::optional<double> since_step_s(TimePoint now, const NodeFigures& figures);

// How long what happened once is wrong: a clone is seen again within a minute.
inline constexpr Duration kTroubleLasts = std::chrono::minutes(10);
// What is wrong now. Pure.
[[nodiscard]] Troubles troubles_at(TimePoint now, const NodeFigures& figures);

// What this process did since the report before: counters begin at nothing in each process, where
// the figures go on from a checkpoint or another's replica.
struct Trained {
  std::uint64_t steps = 0;
  std::uint64_t samples = 0;
  std::uint64_t bad_samples = 0;
};
// Pure. `before`: nothing at the first report of a run.
[[nodiscard]] Trained trained_in(const StepFigures& report,
                                 const std::optional<StepFigures>& before);

// Of the edges that there are: who was dropped, or is no neighbour any more, keeps its last figure.
[[nodiscard]] std::optional<double> median_disagreement(
    std::span<const gossip::NeighbourView> views);

// Before the end: afterwards nothing is left to wait for, whatever the budget said.
[[nodiscard]] bool still_trains(Phase phase);
// Of a run: samples of all, samples per second, and how long it has lasted.
struct RunSoFar {
  std::uint64_t samples = 0;
  double rate = 0;
  Duration age{};
};
// Until the budget is used up; nothing where that cannot be said.
[[nodiscard]] std::optional<double> left_s(const gossip::Budget& budget, const RunSoFar& run);

[[nodiscard]] CertificateStatus certificate_status(const transport::CertificateChain& chain);

// The parts that are asked; null where there is none (yet).
struct StatusSources {
  const NodeFigures& figures;
  gossip::Gossip& gossip;
  const transport::Transport& transport;
  const training::Model& model;
  const Bridge* bridge;
  const bootstrap::Join& join;
};

// Cost: O(members). Thread: io.
[[nodiscard]] StatusSnapshot build_status(TimePoint now, const StatusSources& sources) ON_IO_THREAD;

}  // namespace starling::node
