// The final consensus, merging and leaving: node/node_finish.cc in outline.
#include "node/base/check.h"
#include "tests/sim/process.h"

#include <utility>

namespace starling::sim {

using namespace std::chrono_literals;
using bootstrap::RunPhase;
using gossip::consensus::RunKind;
namespace consensus = gossip::consensus;

// Owners: this process and the jobs that are on its lane.
const std::shared_ptr<Process::ConsensusMemory>& Process::memory(RunKind kind) {
  auto& held = kind == RunKind::finish ? finish_memory_ : merge_memory_;
  if (!held) {
    held = std::make_shared<ConsensusMemory>();
    held->result = services_.problem.genesis();
    held->result_counters = {0};
    const double limit = gossip_->mixer() != nullptr ? gossip_->mixer()->largest_norm() : 0;
    for (const auto& tensor : services_.problem.layout().tensors())
      held->limits.push_back({.first = tensor.offset,
                              .values = tensor.count,
                              .largest_disagreement = static_cast<float>(limit)});
  }
  return held;
}

void Process::take_contribution(RunKind kind) {
  if (!references_) return;
  on_lane(codec_lane_, job_time(), [this, bridge = bridge_, kind, held = memory(kind)] {
    if (bridge != bridge_) return;
    held->contribution = weights_;
    held->counters = {weights_.batches};
    if (kind == RunKind::finish) services_.watch.on_contribution(*this, weights_, own_steps_);
    carry_out(gossip_->on_contribution(local(), kind));
  });
}

void Process::run_consensus_job(consensus::ConsensusJob job) {
  const RunKind kind = consensus::target_of(job).round.run.kind;
  on_lane(pool_, job_time(), [this, held = memory(kind), job = std::move(job)] {
    const consensus::ChunkPlan plan(services_.problem.facts(join_->settings().fingerprint()).shape);
    const consensus::JobMemory spans{.parameters = held->contribution.parameters,
                                     .mean = held->contribution.mean,
                                     .variance = held->contribution.variance,
                                     .counters = held->counters,
                                     .result_parameters = held->result.parameters,
                                     .result_mean = held->result.mean,
                                     .result_variance = held->result.variance,
                                     .result_counters = held->result_counters,
                                     .tensors = held->limits};
    const auto outcome = consensus::run_job(job, plan, spans);
    const auto* stored = std::get_if<consensus::StoreJob>(&job);
    if (stored != nullptr && outcome.target.round.epoch.value == 0 && outcome.result)
      services_.watch.on_chunk_fetched(*this, outcome.target.chunk, stored->hash);
    if (services_.trace.wanted() && !outcome.result)
      services_.trace.line(services_.schedule.now(), name(),
                           "consensus job failed: " + to_string(outcome.result.error()));
    carry_out(gossip_->on_consensus_done(local(), outcome));
  });
}

void Process::on_finished(const consensus::Finished& finished) {
  finished_ = finished;
  ConsensusMemory& held = *memory(RunKind::finish);
  held.result.batches = held.result_counters.front();
  services_.trace.line(services_.schedule.now(), name(),
                       "finished " + short_form(finished.certificate.hash) + " epoch " +
                           std::to_string(finished.certificate.epoch.value) + " of " +
                           std::to_string(finished.certificate.participants.size()));
  services_.watch.on_finished(*this, finished, held.result);
  on_lane(pool_, 50ms, [this] {
    const auto message = gossip_->final_consensus()->certificate_message();
    STARLING_CHECK(message.has_value());
    disk_.final = Disk::Final{*message, memory(RunKind::finish)->result};
    final_written_ = true;
    services_.watch.on_final_written(*this);
    carry_out(gossip_->on_result_stored(local()));
    set_phase(RunPhase::finished);
    end_if_finished();
  });
}

// A process that finds its final model on the disk never trains again.
void Process::serve() {
  auto effects = gossip_->serve(local(), services_.problem.facts(join_->settings().fingerprint()),
                                disk_.final->held);
  STARLING_CHECK(effects.has_value());
  ConsensusMemory& held = *memory(RunKind::finish);
  held.result = disk_.final->result;
  held.result_counters = {held.result.batches};
  finished_ = consensus::Finished{disk_.final->held.certificate, consensus::Role::participant};
  final_written_ = true;
  phase_ = RunPhase::finished;
  carry_out(std::move(*effects));
}

void Process::end_if_finished() {
  if (!final_written_ || !may_exit_ || setup_.traits.serves_for_ever) return;
  leave_finished(Exit::finished);
}

void Process::on_merged(const consensus::Merged& merged) {
  if (!references_ || !merge_memory_) return;
  on_lane(codec_lane_, job_time(),
          [this, bridge = bridge_, merged, held = std::move(merge_memory_)] {
            if (bridge != bridge_) return;
            const auto add = [](std::vector<float>& to, const std::vector<float>& result,
                                const std::vector<float>& own) {
              for (std::size_t i = 0; i < to.size(); ++i) to[i] += result[i] - own[i];
            };
            add(weights_.parameters, held->result.parameters, held->contribution.parameters);
            add(weights_.mean, held->result.mean, held->contribution.mean);
            add(weights_.variance, held->result.variance, held->contribution.variance);
            services_.watch.on_merged(*this, merged);
          });
}

void Process::on_consensus_failed(const gossip::ConsensusFailed& failed) {
  services_.trace.line(services_.schedule.now(), name(),
                       "consensus failed: " + to_string(failed.error));
  services_.watch.on_consensus_failed(*this, failed);
  if (failed.kind == RunKind::merge) {
    merge_memory_.reset();
    return;
  }
  if (phase_ == RunPhase::leaving) return;
  if (phase_ == RunPhase::finishing && !references_)
    return carry_out(join_->on_final_unavailable(local()));
  save_checkpoint([this, detail = failed.error.detail] { end(Exit::failed, detail); });
}

// ---- commands

void Process::finish() {
  if (!ending_) carry_out(gossip_->finish(local()));
}

void Process::merge() {
  if (ending_) return;
  if (auto effects = gossip_->merge(local())) carry_out(std::move(*effects));
}

void Process::leave() {
  if (ending_ || phase_ == RunPhase::leaving) return;
  if (final_written_) return leave_finished(Exit::left);
  set_phase(RunPhase::leaving);
  after(6s, [this] { end(Exit::left, "left at the deadline"); });
  leave_saved_ = !references_;
  save_checkpoint([this] {
    leave_saved_ = true;
    end_if_left();
  });
  carry_out(gossip_->begin_leave(local(), local() + 4500ms));
  end_if_left();
}

void Process::leave_finished(Exit exit) {
  leave_saved_ = true;
  leaves_as_ = exit;
  carry_out(gossip_->begin_leave(local(), local()));
}

void Process::end_if_left() {
  if (left_told_ && leave_saved_) end(leaves_as_, "left the swarm");
}

}  // namespace starling::sim
