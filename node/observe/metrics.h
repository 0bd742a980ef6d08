// The metrics that Prometheus scrapes: one table with name, type and meaning of each, and the
// registry behind it.
#pragma once

#include "node/observe/host_sampler.h"
#include "node/observe/status.h"
#include "transport/figures.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace starling::node {

enum class Metric : std::uint8_t {
  build_info,
  run_info,
  up_seconds,
  node_phase,
  node_warnings,
  train_steps,
  train_step,
  train_last_step_age,
  train_samples,
  train_step_duration,
  train_images_per_second,
  train_loss,
  train_learning_rate,
  eval_accuracy,
  eval_references,
  swarm_samples,
  swarm_budget_samples,
  swarm_progress,
  swarm_members,
  swarm_disagreement,
  neighbours,
  gossip_bytes,
  gossip_queued,
  gossip_period,
  gossip_exchanges,
  gossip_wait,
  gossip_errors,
  handshakes,
  access_forged,
  gossip_edge_resets,
  gossip_clipped,
  gossip_refused,
  gossip_dropped,
  peer_rtt,
  reachable,
  data_wait_seconds,
  data_bad_samples,
  checkpoint_last_success,
  checkpoint_failures,
  certificate_expiry,
  events_lost,
  process_cpu_seconds,
  process_resident_bytes,
  process_open_fds,
  process_disk_bytes,
  host_network_bytes,
  host_disk_bytes,
  host_cpu_ratio,
  host_memory_available_bytes,
};

enum class MetricType : std::uint8_t { counter, gauge, histogram };

// One metric as /metrics and the documentation show it.
struct MetricSpec {
  Metric metric;
  std::string_view name;
  MetricType type;
  std::string_view help;
  // "direction=sent,received;kind=delta,control": labels and their allowed values; "*" allows any
  // text, and then at most 64 series exist.
  std::string_view labels;
};
[[nodiscard]] std::span<const MetricSpec> all_metrics();

// The registry.
//
// Owned by the node; outlives the HTTP server. Labels come from the table's fixed sets, never from
// a peer, so the number of series is bounded.
//
// Thread:  any. Cost: a map look-up under a lock; not for inner loops.
class Metrics {
 public:
  using Labels = std::initializer_list<std::string_view>;  // values, in the table's order

  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Counters: adds a non-negative amount, or raises the counter to a total (a lower one is
  // ignored: counters never fall).
  void add(Metric metric, double amount, Labels labels = {});
  void raise_to(Metric metric, double total, Labels labels = {});
  // Gauges.
  void set(Metric metric, double value, Labels labels = {});
  // The same; whatever other labels were told before have 0 from now on.
  void set_only(Metric metric, double value, Labels labels);
  // What is not known any more is not told: nothing removes the series.
  void set(Metric metric, std::optional<double> value, Labels labels = {});
  // Histograms: so many observations of one value, in the metric's unit.
  void observe(Metric metric, double value, Labels labels = {}, std::uint64_t times = 1);

  // Everything that a snapshot, transport's totals or a sample of the host say.
  void update(const StatusSnapshot& status);
  void update(const transport::TransportTotals& totals);
  void update(const HostSample& sample);

  // The text format 0.0.4.
  [[nodiscard]] std::string render() const;

 private:
  struct Registry;
  std::unique_ptr<Registry> registry_;
};

}  // namespace starling::node
