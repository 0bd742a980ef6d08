#include "node/observe/metrics.h"

#include "node/base/check.h"
#include "node/printable.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

namespace starling::node {

namespace {

constexpr std::size_t kMaxSeries = 64;

using enum Metric;
using enum MetricType;
constexpr std::array<MetricSpec, 49> kMetrics{{
    {build_info, "starling_build_info", gauge,
     "Always 1; the labels say what this program was built from.", "version=*;libtorch=*"},
    {run_info, "starling_run_info", gauge,
     "1 for what this node runs now, by the labels; 0 for what it ran before.",
     "model=*;mode=secret,open,closed;device=*"},
    {up_seconds, "starling_uptime_seconds", gauge,
     "Time since this node began, which it does once its data are open.", ""},
    {node_phase, "starling_phase", gauge, "1 for the phase that this node is in, 0 for the others.",
     "phase=starting,joining,training,finishing,finished,leaving"},
    {node_warnings, "starling_warnings", gauge,
     "Things that are wrong now; `starling status` says which.", ""},
    {train_steps, "starling_train_steps_total", counter, "Steps that this process trained.", ""},
    {train_step, "starling_train_step", gauge,
     "Steps of this replica, also those before this process; absent before its first one.", ""},
    {train_last_step_age, "starling_last_step_age_seconds", gauge,
     "Time since the last step ended or training began, whichever was later; absent before both.",
     ""},
    {train_samples, "starling_train_samples_total", counter,
     "Images that this process trained on; `starling status` has all of this node.", ""},
    {train_step_duration, "starling_train_step_duration_seconds", histogram,
     "Where the time of a step goes: waiting for data, forward and backward, waiting for the "
     "master while a codec job runs, the optimizer pass.",
     "phase=data,compute,lease,optimizer"},
    {train_images_per_second, "starling_train_images_per_second", gauge,
     "Speed of this node over the last steps.", ""},
    {train_loss, "starling_train_loss", gauge, "Training loss, average over the last steps.", ""},
    {train_learning_rate, "starling_train_learning_rate", gauge, "Learning rate of the last step.",
     ""},
    {eval_accuracy, "starling_eval_accuracy_ratio", gauge,
     "Share of validation images whose class is among the k best guesses, by the model of the "
     "newest evaluation (eval.of).",
     "k=1,5"},
    {eval_references, "starling_eval_references", gauge,
     "References whose mean the newest evaluation was of; 0: of the replica or the final model.",
     ""},
    {swarm_samples, "starling_swarm_samples", gauge,
     "Images that the whole swarm trained on in this run, as far as this node knows.", ""},
    {swarm_budget_samples, "starling_swarm_budget_samples", gauge,
     "Images after which the run ends; 0 when it ends by time.", ""},
    {swarm_progress, "starling_swarm_progress_ratio", gauge, "Share of the budget done.", ""},
    {swarm_members, "starling_swarm_members", gauge,
     "Members in this node's view, itself included, by state.",
     "state=joining,alive,suspect,dead,left"},
    {swarm_disagreement, "starling_swarm_disagreement_ratio", gauge,
     "How far apart the two of an edge were at their last exchange, over how far this replica was "
     "from what they had in common; median of the edges. 0.6 to 1.4 is usual, from the first step "
     "to the last; it does not say whether replicas come together.",
     ""},
    {neighbours, "starling_neighbours", gauge, "Open edges.", ""},
    {gossip_bytes, "starling_gossip_bytes_total", counter,
     "Bytes of sessions to and from all peers; delta: of exchanges that were completed.",
     "direction=sent,received;kind=delta,other"},
    {gossip_queued, "starling_gossip_queued_bytes", gauge,
     "Bytes that wait to be sent, all sessions together; `starling neighbours` says to whom.", ""},
    {gossip_period, "starling_gossip_period_steps", gauge,
     "Own steps between two offers; `starling status` says why.", ""},
    {gossip_exchanges, "starling_gossip_exchanges_total", counter,
     "Exchanges completed, begun by either side.", ""},
    {gossip_wait, "starling_gossip_wait_ratio", gauge,
     "Share of the time for which training waited for a codec job.", ""},
    {gossip_errors, "starling_gossip_errors_total", counter,
     "Sessions that failed and dials that led to none, by error code.", "reason=*"},
    {handshakes, "starling_handshakes_total", counter,
     "Handshakes that led to a session, and those that this node gave up, by the reason.",
     "result=ok,wrong_swarm,bad_message,bad_signature,wrong_identity,timed_out,replayed,refused,"
     "crowded,closed"},
    {access_forged, "starling_access_forged_total", counter,
     "Lists of revocations, next secrets and holders of one that came without a valid signature.",
     ""},
    {gossip_edge_resets, "starling_gossip_edge_resets_total", counter,
     "Edges whose reference had to be set again.", ""},
    {gossip_clipped, "starling_gossip_increments_clipped_total", counter,
     "Exchanges of which less was added than the neighbour sent, because it was unusually much.",
     ""},
    {gossip_refused, "starling_gossip_payloads_refused_total", counter,
     "Deltas and snapshots of neighbours that do not decode; `starling neighbours --json` says "
     "whose and why.",
     ""},
    {gossip_dropped, "starling_gossip_neighbours_dropped_total", counter,
     "Edges closed because their neighbour sent too many payloads that do not decode.", ""},
    {peer_rtt, "starling_peer_rtt_seconds", histogram,
     "Smoothed round trip to each member with a session, looked at once a second.", ""},
    {reachable, "starling_reachable", gauge,
     "1 if a peer could dial this node back, 0 if it could not; absent before anybody tried.", ""},
    {data_wait_seconds, "starling_data_wait_seconds_total", counter,
     "Time for which training waited for data.", ""},
    {data_bad_samples, "starling_data_bad_samples_total", counter,
     "Distinct samples that could not be read and were replaced.", ""},
    {checkpoint_last_success, "starling_checkpoint_last_success_timestamp_seconds", gauge,
     "Wall clock time of the last checkpoint, also of one that this process went on from.", ""},
    {checkpoint_failures, "starling_checkpoint_failures_total", counter,
     "Checkpoints that could not be written; the log says why.", ""},
    {certificate_expiry, "starling_certificate_expiry_timestamp_seconds", gauge,
     "Wall clock time until which this node's certificate is valid; absent without one.", ""},
    {events_lost, "starling_events_lost_total", counter,
     "Events that events.jsonl had no room for.", ""},
    {process_cpu_seconds, "process_cpu_seconds_total", counter,
     "User and system time of this process.", ""},
    {process_resident_bytes, "process_resident_memory_bytes", gauge,
     "Resident memory of this process.", ""},
    {process_open_fds, "process_open_fds", gauge, "Open file descriptors of this process.", ""},
    {process_disk_bytes, "starling_process_disk_bytes_total", counter,
     "Bytes that this process moved to and from storage.", "direction=read,written"},
    {host_network_bytes, "starling_host_network_bytes_total", counter,
     "Bytes on all network interfaces but loopback.", "direction=sent,received"},
    {host_disk_bytes, "starling_host_disk_bytes_total", counter,
     "Bytes on all whole disks of the host.", "direction=read,written"},
    {host_cpu_ratio, "starling_host_cpu_busy_ratio", gauge,
     "Busy share of all cores of the host over the last second.", ""},
    {host_memory_available_bytes, "starling_host_memory_available_bytes", gauge,
     "Memory that could be taken without swapping, in a container within its limit.", ""},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kMetrics.size(); ++i)
    if (static_cast<std::size_t>(kMetrics[i].metric) != i) return false;
  return true;
}
static_assert(in_order(), "the rows are in the order of the enum");

// One label of a metric: its name and its allowed values, empty for any.
struct Label {
  std::string name;
  std::vector<std::string> values;
};

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return parts;
}

std::vector<Label> labels_of(std::string_view text) {
  std::vector<Label> labels;
  for (const auto& part : split(text, ';')) {
    const auto equals = part.find('=');
    auto values = split(std::string_view(part).substr(equals + 1), ',');
    if (values == std::vector<std::string>{"*"}) values.clear();
    labels.push_back({part.substr(0, equals), std::move(values)});
  }
  return labels;
}

// Steps of CPUs and accelerators, and round trips from a rack to the other side of the world.
prometheus::Histogram::BucketBoundaries buckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
          0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30};
}

}  // namespace

std::span<const MetricSpec> all_metrics() { return kMetrics; }

struct Metrics::Registry {
  struct Entry {
    std::vector<Label> labels;
    prometheus::Family<prometheus::Counter>* counters = nullptr;
    prometheus::Family<prometheus::Gauge>* gauges = nullptr;
    prometheus::Family<prometheus::Histogram>* histograms = nullptr;
    std::map<prometheus::Labels, prometheus::Counter*> counter_of;
    std::map<prometheus::Labels, prometheus::Gauge*> gauge_of;
    std::map<prometheus::Labels, prometheus::Histogram*> histogram_of;
  };

  prometheus::Registry prometheus;
  mutable Mutex mutex;
  std::array<Entry, kMetrics.size()> entries STARLING_GUARDED_BY(mutex);

  Registry() {
    const MutexLock lock(mutex);
    for (std::size_t i = 0; i < kMetrics.size(); ++i) {
      const auto& spec = kMetrics[i];
      auto& entry = entries[i];
      entry.labels = labels_of(spec.labels);
      const std::string name(spec.name);
      const std::string help(spec.help);
      if (spec.type == counter)
        entry.counters = &prometheus::BuildCounter().Name(name).Help(help).Register(prometheus);
      if (spec.type == gauge)
        entry.gauges = &prometheus::BuildGauge().Name(name).Help(help).Register(prometheus);
      if (spec.type == histogram)
        entry.histograms = &prometheus::BuildHistogram().Name(name).Help(help).Register(prometheus);
    }
  }

  static prometheus::Labels labels(const Entry& entry, Metrics::Labels values) {
    STARLING_CHECK(values.size() == entry.labels.size());
    prometheus::Labels labels;
    auto value = values.begin();
    for (const auto& label : entry.labels) {
      STARLING_CHECK(label.values.empty() ||
                     std::ranges::find(label.values, *value) != label.values.end());
      labels[label.name] = valid_utf8(*value++);
    }
    return labels;
  }

  // The series with these labels; null for one too many of an open set.
  template <class Found, class Add>
  auto* find(Entry& entry, Found& found, Metrics::Labels values, Add add) {
    const auto wanted = labels(entry, values);
    using Series = typename Found::mapped_type;
    const auto known = found.find(wanted);
    if (known != found.end()) return known->second;
    const bool open =
        std::ranges::any_of(entry.labels, [](const Label& label) { return label.values.empty(); });
    if (open && found.size() >= kMaxSeries) return Series{nullptr};
    return found.emplace(wanted, add(wanted)).first->second;
  }
};

Metrics::Metrics() : registry_(std::make_unique<Registry>()) {
  // Counters without labels start at zero, so that rates work from the first scrape on.
  for (const auto& spec : kMetrics)
    if (spec.type == counter && spec.labels.empty()) add(spec.metric, 0);
}
Metrics::~Metrics() = default;

void Metrics::add(Metric metric, double amount, Labels labels) {
  const MutexLock lock(registry_->mutex);
  auto& entry = registry_->entries.at(static_cast<std::size_t>(metric));
  STARLING_CHECK(entry.counters != nullptr);
  auto* series = registry_->find(entry, entry.counter_of, labels,
                                 [&](const auto& wanted) { return &entry.counters->Add(wanted); });
  if (series != nullptr && amount > 0) series->Increment(amount);
}

void Metrics::raise_to(Metric metric, double total, Labels labels) {
  const MutexLock lock(registry_->mutex);
  auto& entry = registry_->entries.at(static_cast<std::size_t>(metric));
  STARLING_CHECK(entry.counters != nullptr);
  auto* series = registry_->find(entry, entry.counter_of, labels,
                                 [&](const auto& wanted) { return &entry.counters->Add(wanted); });
  if (series != nullptr && total > series->Value()) series->Increment(total - series->Value());
}

void Metrics::set(Metric metric, double value, Labels labels) {
  const MutexLock lock(registry_->mutex);
  auto& entry = registry_->entries.at(static_cast<std::size_t>(metric));
  STARLING_CHECK(entry.gauges != nullptr);
  auto* series = registry_->find(entry, entry.gauge_of, labels,
                                 [&](const auto& wanted) { return &entry.gauges->Add(wanted); });
  if (series != nullptr) series->Set(value);
}

void Metrics::set_only(Metric metric, double value, Labels labels) {
  {
    const MutexLock lock(registry_->mutex);
    for (const auto& [told, series] :
         registry_->entries.at(static_cast<std::size_t>(metric)).gauge_of)
      series->Set(0);
  }
  set(metric, value, labels);
}

void Metrics::set(Metric metric, std::optional<double> value, Labels labels) {
  if (value) return set(metric, *value, labels);
  const MutexLock lock(registry_->mutex);
  auto& entry = registry_->entries.at(static_cast<std::size_t>(metric));
  STARLING_CHECK(entry.gauges != nullptr);
  const auto found = entry.gauge_of.find(Registry::labels(entry, labels));
  if (found == entry.gauge_of.end()) return;
  entry.gauges->Remove(found->second);
  entry.gauge_of.erase(found);
}

void Metrics::observe(Metric metric, double value, Labels labels, std::uint64_t times) {
  const MutexLock lock(registry_->mutex);
  auto& entry = registry_->entries.at(static_cast<std::size_t>(metric));
  STARLING_CHECK(entry.histograms != nullptr);
  auto* series = registry_->find(entry, entry.histogram_of, labels, [&](const auto& wanted) {
    return &entry.histograms->Add(wanted, buckets());
  });
  if (series == nullptr) return;
  for (std::uint64_t i = 0; i < times; ++i) series->Observe(value);
}

void Metrics::update(const StatusSnapshot& status) {
  const auto real = [](std::uint64_t value) { return static_cast<double>(value); };
  set(Metric::up_seconds, status.node.uptime_s);
  for (std::size_t i = 0; i < kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    set(Metric::node_phase, phase == status.phase ? 1 : 0, {name_of(phase)});
  }
  set(Metric::node_warnings, real(status.warnings.size()));
  set(Metric::train_last_step_age, status.progress.since_step_s);
  const bool has_trained = status.progress.last_step_s.has_value();
  set(Metric::train_step, has_trained ? std::optional(real(status.progress.step)) : std::nullopt);
  set(Metric::swarm_samples, real(status.progress.swarm_samples));
  set(Metric::swarm_budget_samples, real(status.progress.budget_samples));
  set(Metric::swarm_progress, status.progress.share);
  set(Metric::train_loss, status.train.loss);
  set(Metric::train_images_per_second, status.train.images_per_second);
  set(Metric::train_learning_rate, status.train.learning_rate);
  set(Metric::gossip_wait, status.train.gossip_wait_ratio);
  const auto of_eval = [&](auto figure) {
    return status.eval ? std::optional(figure(*status.eval)) : std::nullopt;
  };
  using Eval = StatusSnapshot::Eval;
  set(Metric::eval_accuracy, of_eval([](const Eval& eval) { return eval.accuracy_ratio; }), {"1"});
  set(Metric::eval_accuracy, of_eval([](const Eval& eval) { return eval.accuracy_top5_ratio; }),
      {"5"});
  set(Metric::eval_references, of_eval([&](const Eval& eval) { return real(eval.references); }));
  for (std::size_t i = 0; i < kMemberStates; ++i) {
    const auto state = static_cast<MemberState>(i);
    set(Metric::swarm_members, real(status.members_in(state)), {name_of(state)});
  }
  set(Metric::neighbours, real(status.open_edges()));
  set(Metric::swarm_disagreement, status.disagreement_ratio);
  const auto& traffic = status.traffic;
  const auto other = [](std::uint64_t all, std::uint64_t delta) {
    return static_cast<double>(all > delta ? all - delta : 0);
  };
  raise_to(Metric::gossip_bytes, real(traffic.delta_bytes_sent), {"sent", "delta"});
  raise_to(Metric::gossip_bytes, real(traffic.delta_bytes_received), {"received", "delta"});
  raise_to(Metric::gossip_bytes, other(traffic.bytes_sent, traffic.delta_bytes_sent),
           {"sent", "other"});
  raise_to(Metric::gossip_bytes, other(traffic.bytes_received, traffic.delta_bytes_received),
           {"received", "other"});
  set(Metric::gossip_queued, real(traffic.queued_bytes));
  set(Metric::gossip_period, real(status.period.steps));
  raise_to(Metric::gossip_exchanges, real(traffic.exchanges));
  if (status.reachable == "yes") set(Metric::reachable, 1);
  if (status.reachable == "no") set(Metric::reachable, 0);
}

void Metrics::update(const transport::TransportTotals& totals) {
  const auto raise = [&](std::string_view result, std::uint64_t count) {
    raise_to(Metric::handshakes, static_cast<double>(count), {result});
  };
  const auto& failed = totals.handshakes_failed;
  raise("ok", totals.handshakes_ok);
  raise("wrong_swarm", failed.wrong_swarm);
  raise("bad_message", failed.bad_message);
  raise("bad_signature", failed.bad_signature);
  raise("wrong_identity", failed.wrong_identity);
  raise("timed_out", failed.timed_out);
  raise("replayed", failed.replayed);
  raise("refused", failed.refused);
  raise("crowded", failed.crowded);
  raise("closed", failed.closed);
}

void Metrics::update(const HostSample& sample) {
  const auto real = [](std::uint64_t value) { return static_cast<double>(value); };
  raise_to(Metric::process_cpu_seconds, sample.cpu_seconds);
  set(Metric::process_resident_bytes, real(sample.resident_bytes));
  set(Metric::process_open_fds, real(sample.open_fds));
  if (sample.io) {
    raise_to(Metric::process_disk_bytes, real(sample.io->read_bytes), {"read"});
    raise_to(Metric::process_disk_bytes, real(sample.io->written_bytes), {"written"});
  }
  if (sample.network) {
    raise_to(Metric::host_network_bytes, real(sample.network->sent_bytes), {"sent"});
    raise_to(Metric::host_network_bytes, real(sample.network->received_bytes), {"received"});
  }
  if (sample.disks) {
    raise_to(Metric::host_disk_bytes, real(sample.disks->read_bytes), {"read"});
    raise_to(Metric::host_disk_bytes, real(sample.disks->written_bytes), {"written"});
  }
  if (sample.host_cpu_ratio) set(Metric::host_cpu_ratio, *sample.host_cpu_ratio);
  if (sample.available_memory_bytes)
    set(Metric::host_memory_available_bytes, real(*sample.available_memory_bytes));
}

std::string Metrics::render() const {
  const prometheus::TextSerializer serializer;
  auto families = registry_->prometheus.Collect();
  // A family that has no series yet would be a heading without a line.
  std::erase_if(families, [](const auto& family) { return family.metric.empty(); });
  return serializer.Serialize(families);
}

}  // namespace starling::node
