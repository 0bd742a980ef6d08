// The final consensus, and leaving.
#include "node/base/fault.h"
#include "node/node.h"
#include "node/printable.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <new>
#include <ostream>
#include <utility>

namespace starling::node {

namespace consensus = gossip::consensus;

namespace {

constexpr const char* kLeftAfterEnd = "left after the final consensus";
// What a leave keeps of its time, which is a promise to schedulers: for a step of training that
// has to end, and a second of goodbyes.
constexpr Duration kEndTime = std::chrono::seconds(2);

}  // namespace

void Node::pause_training() {
  set_phase(Phase::finishing);
  if (!bridge_) return;
  bridge_->pause([this](const Result<void>& paused) {
    assert_io_thread();
    if (!paused) return;  // the node ends
    health_.rest_train();
    gossip_driver_.carry_out(gossip_.on_training_paused(clock_.now()));
  });
}

const SharedConsensusMemory& Node::consensus_memory(consensus::RunKind kind) {
  auto& memory = kind == consensus::RunKind::finish ? consensus_memory_ : merge_memory_;
  if (!memory) {
    const double limit = gossip_.mixer() != nullptr ? gossip_.mixer()->largest_norm() : 0;
    memory = freed_on(pool_, std::make_unique<ConsensusMemory>(parts_.model, limit));
  }
  return memory;
}

void Node::take_contribution(consensus::RunKind kind) {
  if (!bridge_) return;
  bridge_->snapshot([this, kind, memory = consensus_memory(kind)](training::Replica replica) {
    assert_io_thread();
    // The run may have failed meanwhile, and another begun that asked for a contribution itself.
    if (memory != consensus_memory(kind)) return free_on(pool_, std::move(replica));
    memory->contribute(std::move(replica));
    gossip_driver_.carry_out(gossip_.on_contribution(clock_.now(), kind));
  });
}

void Node::run_consensus_job(consensus::ConsensusJob job) {
  auto memory = consensus_memory(consensus::target_of(job).round.run.kind);
  tasks_.spawn("consensus",
               [this, memory, job = std::move(job)] { return run_consensus(memory, job); });
}

transport::Task<> Node::run_consensus(SharedConsensusMemory memory, consensus::ConsensusJob job) {
  // The pool has one thread and takes jobs in the order of the calls, as the room demands. A merge
  // may fail, and the node drop its memory, while a job of it is on the pool.
  auto work = [memory = std::move(memory), job = std::move(job)] {
    if (fault::maybe("consensus.no_memory")) throw std::bad_alloc();
    return memory->run(job);
  };
  const consensus::JobOutcome outcome = co_await transport::on_pool(pool_, std::move(work));
  assert_io_thread();
  gossip_driver_.carry_out(gossip_.on_consensus_done(clock_.now(), outcome));
}

void Node::on_merged(const consensus::Merged& merged) {
  if (!bridge_ || !merge_memory_) return;
  const SharedConsensusMemory memory = std::exchange(merge_memory_, nullptr);
  auto apply = [this, memory] {
    add_difference(bridge_->trainer(), memory->result(), memory->contribution());
    return SharedConsensusMemory(memory);
  };
  auto done = [this, merged](const SharedConsensusMemory& memory_of_merge) {
    assert_io_thread();
    log_.info("merge.applied",
              {{"participants", merged.participants.size()}, {"samples", merged.samples}});
    tell_merged(merged, memory_of_merge);
  };
  bridge_->run_on_lane(std::move(apply), std::move(done));
}

void Node::tell_merged(const consensus::Merged& merged, const SharedConsensusMemory& memory) {
  nlohmann::json body{
      {"merged", true}, {"participants", merged.participants.size()}, {"samples", merged.samples}};
  if (figures_.eval)
    body[std::string(name_of(figures_.eval->of)) + "_accuracy_ratio"] =
        figures_.eval->accuracy_ratio;
  parts_.events.append("merge", body);
  if (waiting_for_merge_.empty() || !parts_.data.val) return reply_merged(body);
  // Whoever asked is told how much better the mean is than what this node gave to it.
  bridge_->evaluate_replica(
      contribution_of(memory),
      [this, body, memory](const Result<training::EvaluationReport>& own) mutable {
        assert_io_thread();
        if (own) body["replica_accuracy_ratio"] = own->top1;
        bridge_->evaluate_replica(
            result_of(memory),
            [this, body](const Result<training::EvaluationReport>& mean) mutable {
              assert_io_thread();
              if (mean) body["merged_accuracy_ratio"] = mean->top1;
              reply_merged(body);
            });
      });
}

void Node::reply_merged(const nlohmann::json& body) {
  for (auto& reply : std::exchange(waiting_for_merge_, {})) reply.done(body);
}

void Node::on_merge_failed(const Error& error) {
  merge_memory_.reset();
  log_.warn("merge.failed", {{"why", error.detail}, {"did", "nothing was changed"}});
  for (auto& reply : std::exchange(waiting_for_merge_, {})) reply.fail(error);
}

void Node::on_finished(const consensus::Finished& finished) {
  note_end(finished);
  tasks_.spawn("final", [this] { return write_final_files(); });
}

void Node::note_end(const consensus::Finished& finished) {
  finished_ = finished;
  figures_.troubles.isolated = false;  // it looks for nobody any more
  figures_.final_hash = to_hex(finished.certificate.hash.view());
  figures_.final_samples = finished.certificate.samples;
  figures_.final_participants.clear();
  for (const auto& id : finished.certificate.participants)
    figures_.final_participants.push_back(to_hex(id.view()));
}

// After a restart: nothing is trained, evaluated or written any more, and only a person ends it.
Result<void> Node::begin_serving(ServedModel served) {
  TRY(auto effects, gossip_.serve(clock_.now(), model_facts(), served.held));
  consensus_memory_ = freed_on(pool_, std::move(served.memory));
  const consensus::Certificate& certificate = served.held.certificate;
  const bool own = std::ranges::binary_search(certificate.participants, parts_.identity.id());
  note_end({certificate, own ? consensus::Role::participant : consensus::Role::follower});
  final_written_ = final_evaluated_ = final_said_ = may_exit_ = true;
  set_phase(Phase::finished);
  gossip_driver_.carry_out(std::move(effects));
  parts_.terminal.out << final_line(certificate) << "  (finished before; serves the model)\n"
                      << std::flush;
  return {};
}

transport::Task<> Node::write_final_files() {
  assert_io_thread();
  const auto held = gossip_.final_consensus()->certificate_message();
  if (!held) co_return;
  // Not a copy: to make one takes as long as a step, and this thread has none to spare.
  training::SharedReplica result = result_of(consensus_memory(consensus::RunKind::finish));
  auto write = [this, result, held = *held] {
    return write_final(parts_.dir.final_dir(), parts_.model, *result, held);
  };
  const Result<void> written = co_await transport::on_pool(files_, std::move(write));
  assert_io_thread();
  if (!written) co_return on_final_not_written(written.error());
  final_written_ = true;
  const bool leaves = figures_.phase == Phase::leaving;
  if (leaves) {  // nothing that it trained is lost any more
    leave_saved_ = true;
    not_saved_.reset();
    how_it_leaves_ = kLeftAfterEnd;
  }
  gossip_driver_.carry_out(gossip_.on_result_stored(clock_.now()));
  const consensus::Certificate& certificate = finished_->certificate;
  parts_.events.append("final", {{"hash", figures_.final_hash},
                                 {"epoch", certificate.epoch.value},
                                 {"participants", figures_.final_participants},
                                 {"samples", certificate.samples}});
  if (!leaves) set_phase(Phase::finished);
  keep_settings();
  for (auto& reply : std::exchange(waiting_for_finish_, {}))
    reply.done({{"hash", figures_.final_hash},
                {"epoch", certificate.epoch.value},
                {"participants", figures_.final_participants}});
  if (leaves) {  // its time is short
    say_final();
    end_if_left();
    co_return;
  }
  evaluate_final(std::move(result));
}

void Node::on_final_not_written(const Error& error) {
  log_.error("final.not_written", {{"why", to_string(error)}});
  for (auto& reply : std::exchange(waiting_for_finish_, {})) reply.fail(error);
  if (figures_.phase == Phase::leaving) return;  // at the deadline, with its checkpoint
  parts_.terminal.err << "starling run: the certified model is lost here: "
                      << printable(to_string(error)) << '\n';
  end_with_checkpoint(exit_code_of(error.code), to_string(error));
}

// A node that starts again need not train what it has trained.
void Node::end_with_checkpoint(ExitCode code, std::string why) {
  if (saving_) {  // one that has not the last steps
    after_save_ = [this, code, why = std::move(why)] {
      assert_io_thread();
      end_with_checkpoint(code, why);
    };
    return;
  }
  save_checkpoint([this, code, why = std::move(why)](const Result<void>&) {
    assert_io_thread();
    end(code, why);
  });
}

void Node::say_final() {
  if (std::exchange(final_said_, true)) return;
  if (!final_evaluated_) figures_.eval.reset();  // an earlier one is of another model
  const bool adopted = finished_->role == consensus::Role::follower;
  parts_.terminal.out << final_line(finished_->certificate) << (adopted ? "  (adopted)" : "");
  if (figures_.eval)
    parts_.terminal.out << "  top-1 " << 100 * figures_.eval->accuracy_ratio << " %";
  parts_.terminal.out << '\n' << std::flush;
}

void Node::evaluate_final(training::SharedReplica result) {
  const auto done = [this](const Result<training::EvaluationReport>& report) {
    assert_io_thread();
    if (!report) figures_.eval.reset();  // an earlier one is of another model
    if (report || report.error().code != Errc::not_found)
      note_evaluation(report, {.of = Evaluated::consensus});
    final_evaluated_ = true;
    say_final();
    publish_status();
    end_if_finished();
  };
  if (!bridge_) {
    figures_.eval.reset();
    return done(fail(Errc::not_found, Doing::evaluating, "no trainer"));
  }
  bridge_->evaluate_replica(std::move(result), done);
}

void Node::on_consensus_failed(const Error& error) {
  for (auto& reply : std::exchange(waiting_for_finish_, {})) reply.fail(error);
  if (figures_.phase == Phase::leaving) return;
  if (figures_.phase == Phase::finishing && !bridge_) {
    // A newcomer to a finished swarm that could not fetch its model looks for another holder.
    set_phase(Phase::joining);
    return bootstrap_driver_.carry_out(join_.on_final_unavailable(clock_.now()));
  }
  parts_.terminal.err << "starling run: the final consensus failed: " << error.detail << '\n';
  end_with_checkpoint(ExitCode::replicas_differ, error.detail);
}

void Node::end_if_finished() {
  if (!final_written_ || !final_evaluated_ || !may_exit_) return;
  if (config_.finish.then == AfterFinish::serve) return;
  leave_finished("final consensus reached and certified");
}

// The others are told, lest they take it for a death.
void Node::leave_finished(std::string how) {
  leave_saved_ = true;
  how_it_leaves_ = std::move(how);
  gossip_driver_.carry_out(gossip_.begin_leave(clock_.now(), clock_.now()));
}

void Node::begin_leave(Duration timeout) {
  if (exit_ || figures_.phase == Phase::leaving) return;
  leave_by_ = clock_.now() + timeout;
  if (final_written_) {
    if (finished_) say_final();
    return leave_finished(kLeftAfterEnd);
  }
  set_phase(Phase::leaving);
  const TimePoint now = clock_.now();
  const Duration work = std::max(timeout - kEndTime, timeout / 2);
  tasks_.spawn("leave limit", [this, work] { return limit_leave(work); });
  leave_saved_ = !bridge_;
  if (bridge_) {
    // Steps since the last checkpoint would be lost.
    bridge_->pause([this](const Result<void>& paused) {
      assert_io_thread();
      if (paused) return save_last_checkpoint();
      leave_saved_ = true;  // it is about to train something else
      end_if_left();
    });
  }
  gossip_driver_.carry_out(gossip_.begin_leave(now, now + work * 3 / 4));
  end_if_left();
}

// Not the one that may be on its way to the disk already: that has not the last steps.
void Node::save_last_checkpoint() {
  if (saving_) {
    const auto again = [this] {
      assert_io_thread();
      save_last_checkpoint();
    };
    if (!after_save_) after_save_ = again;
    return;
  }
  save_checkpoint([this](const Result<void>& saved) {
    assert_io_thread();
    leave_saved_ = true;
    const bool dropped = !saved && saved.error().code == Errc::cancelled;
    if (!saved && !dropped && !final_written_) not_saved_ = saved.error();
    end_if_left();
  });
}

transport::Task<> Node::limit_leave(Duration limit) {
  leave_limit_.expires_after(limit);
  const auto [error] = co_await leave_limit_.async_wait(transport::as_result);
  assert_io_thread();
  if (error || exit_) co_return;
  if (!leave_saved_)
    not_saved_ = {Errc::timed_out, Doing::saving_checkpoint, "not done before the deadline"};
  finish_leave("left at the deadline");
}

// Decision 0073.
Duration Node::patience() const {
  const Duration most = transport::limits::kLastAttachments;
  if (!leave_by_) return most;
  return std::clamp(*leave_by_ - kEndTime - clock_.now(), Duration::zero(), most);
}

void Node::end_if_left() {
  if (left_told_ && leave_saved_) finish_leave(how_it_leaves_);
}

void Node::finish_leave(const std::string& how) {
  if (exit_) return;  // at the deadline; a checkpoint that ends after it changes nothing any more
  if (not_saved_) {
    const Error lost{
        not_saved_->code, not_saved_->doing,
        "left, but what it trained since the checkpoint before is lost: " + not_saved_->detail};
    parts_.terminal.err << "starling run: " << printable(to_string(lost)) << '\n';
    for (auto& reply : std::exchange(waiting_for_leave_, {})) reply.fail(lost);
    const Error& why = why_it_leaves_ ? *why_it_leaves_ : lost;
    return end(exit_code_of(why.code), to_string(why));
  }
  for (auto& reply : std::exchange(waiting_for_leave_, {}))
    reply.done({{"left", true}, {"samples", gossip_.membership().progress().own_samples()}});
  if (why_it_leaves_) return end(exit_code_of(why_it_leaves_->code), to_string(*why_it_leaves_));
  end(ExitCode::good, how);
}

}  // namespace starling::node
