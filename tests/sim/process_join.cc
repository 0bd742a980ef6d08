// What Join asks of a node: node/node_joining.cc and node/node_training.cc in outline.
#include "bootstrap/message_codec.h"
#include "node/base/check.h"
#include "tests/sim/process.h"

#include <algorithm>
#include <utility>

namespace starling::sim {

using namespace std::chrono_literals;
using bootstrap::RunPhase;

void Process::carry_out(const bootstrap::JoinEffects& effects) {
  for (const auto& effect : effects) {
    if (ending_) return;
    do_effect(effect);
  }
  arm();
}

void Process::do_effect(const bootstrap::JoinEffect& effect) {
  if (const auto* outgoing = std::get_if<bootstrap::BootstrapOutgoing>(&effect)) {
    send(outgoing->to, bootstrap::encode(outgoing->message));
  } else if (const auto* offence = std::get_if<bootstrap::BootstrapOffence>(&effect)) {
    services_.watch.on_close(*this, offence->peer, offence->error);
    sessions_.close(offence->peer, offence->error);
  } else if (const auto* dial = std::get_if<bootstrap::Dial>(&effect)) {
    sessions_.dial(dial->target);
  } else if (const auto* begin = std::get_if<bootstrap::BeginTraining>(&effect)) {
    begin_training(begin->start == bootstrap::Start::checkpoint);
  } else if (const auto* other = std::get_if<bootstrap::AdoptSettings>(&effect)) {
    adopt(*other);
  } else if (const auto* state = std::get_if<bootstrap::InstallState>(&effect)) {
    install(*state);
  } else if (std::holds_alternative<bootstrap::TakeSnapshot>(effect)) {
    take_snapshot();
  } else if (std::holds_alternative<bootstrap::FetchFinal>(effect)) {
    fetch_final();
  } else if (const auto* same = std::get_if<bootstrap::SameSettings>(&effect)) {
    carry_out(gossip_->on_same_settings(local(), same->peer));
  } else if (const auto* wanted = std::get_if<bootstrap::ProbePort>(&effect)) {
    probe_port(*wanted);
  } else if (const auto* give_up = std::get_if<bootstrap::GiveUp>(&effect)) {
    end(Exit::gave_up, give_up->error.detail);
  } else if (const auto* joined = std::get_if<bootstrap::Joined>(&effect)) {
    joined_ = true;
    if (joined->via) carry_out(join_->ask_dial_back(local(), *joined->via, setup_.endpoint.port));
  }
}

void Process::set_phase(RunPhase phase) {
  if (phase_ == phase) return;
  phase_ = phase;
  if (services_.trace.wanted())
    services_.trace.line(services_.schedule.now(), name(),
                         "phase " + std::to_string(static_cast<int>(phase)));
  carry_out(join_->update(local(), local_facts()));
}

bootstrap::LocalFacts Process::local_facts() {
  bootstrap::LocalFacts facts;
  facts.phase = phase_;
  facts.age = gossip_->mixer() != nullptr ? gossip_->mixer()->age() : 0;
  facts.samples = gossip_->swarm_samples(local());
  facts.run_age = gossip_->membership().progress().run_age(local());
  facts.max_state_bytes = to_bytes(services_.problem.genesis()).size();
  for (const auto& member : gossip_->membership().members()) {
    if (member.state != gossip::MemberState::alive && member.state != gossip::MemberState::suspect)
      continue;
    facts.alive.push_back(member.record.id);
    for (const auto& address : member.record.addresses)
      if (const auto endpoint = transport::parse_endpoint(address))
        facts.addresses.push_back({member.record.id, *endpoint});
  }
  facts.alive_same = gossip_->membership().alive_count_with(join_->settings().fingerprint());
  facts.counters = gossip_->membership().progress().saved();
  if (finished_ && final_written_) facts.certificate = finished_->certificate.hash;
  return facts;
}

// ---- the first replica

void Process::begin_training(bool from_checkpoint) {
  gossip::Beginning beginning;
  Weights weights = services_.problem.genesis();
  if (from_checkpoint && disk_.checkpoint) {
    weights = disk_.checkpoint->weights;
    beginning.origin = gossip::Origin::restored;
    beginning.age = static_cast<double>(disk_.checkpoint->steps);
    beginning.steps = disk_.checkpoint->steps;
    beginning.samples = disk_.checkpoint->samples;
    gossip_->membership().progress().merge(local(), disk_.checkpoint->counters);
  }
  build_and_start(beginning, std::move(weights));
}

void Process::build_and_start(gossip::Beginning beginning, Weights weights) {
  if (references_ || building_) return;
  building_ = true;
  on_lane(pool_, 50ms, [this, beginning, weights = std::move(weights)]() mutable {
    building_ = false;
    weights_ = std::move(weights);
    gossip::MasterPort& master = *this;
    references_ = std::make_unique<gossip::Replica>(
        services_.problem.layout(), master,
        [this](std::span<float> out) { services_.problem.draw_genesis(out); });
    ++bridge_;
    if (phase_ == RunPhase::leaving) return;
    steps_ = beginning.steps;
    samples_ = beginning.samples;
    training_ = Training::running;
    schedule_step();
    next_checkpoint_ = services_.schedule.now() + setup_.traits.checkpoint_every;
    set_phase(RunPhase::training);
    carry_out(gossip_->begin_averaging(
        local(), services_.problem.facts(join_->settings().fingerprint()), beginning));
    if (beginning.origin == gossip::Origin::transferred)
      carry_out(join_->on_state_installed(local()));
    carry_out(join_->update(local(), local_facts()));
  });
}

void Process::adopt(const bootstrap::AdoptSettings& adopted) {
  if (gossip_->mixer() != nullptr) carry_out(gossip_->end_averaging(local()));
  training_ = Training::stopped;
  references_.reset();
  ++bridge_;
  phase_ = RunPhase::starting;
  on_lane(pool_, 50ms, [this, settings = adopted.settings] {
    carry_out(join_->on_settings_adopted(local(), settings));
  });
}

void Process::install(const bootstrap::InstallState& state) {
  Bytes bytes;
  for (const auto& chunk : state.snapshot->chunks)
    bytes.insert(bytes.end(), chunk->begin(), chunk->end());
  auto weights = parse_weights(bytes, services_.problem.layout());
  if (!weights) return carry_out(join_->on_state_unusable(local(), weights.error()));
  gossip_->membership().progress().merge_of_sponsor(local(), state.counters, state.run_age);
  const double age = state.snapshot->manifest.age;
  if (references_) {
    on_lane(codec_lane_, job_time(),
            [this, bridge = bridge_, replica = std::move(*weights)]() mutable {
              if (bridge != bridge_) return;
              weights_ = std::move(replica);
              carry_out(join_->on_state_installed(local()));
            });
    return carry_out(gossip_->on_adopted(local(), age));
  }
  const gossip::Beginning beginning{.origin = gossip::Origin::transferred,
                                    .age = age,
                                    .steps = 0,
                                    .samples = gossip_->membership().progress().own_samples()};
  build_and_start(beginning, std::move(*weights));
}

void Process::take_snapshot() {
  if (!references_)
    return carry_out(join_->on_snapshot(
        local(), fail(Errc::not_found, Doing::transferring_state, "no model here")));
  bootstrap::Manifest about;
  about.fingerprint = join_->settings().fingerprint();
  about.step = steps_;
  about.age = gossip_->mixer() != nullptr ? gossip_->mixer()->age() : 0;
  on_lane(codec_lane_, job_time(), [this, bridge = bridge_, about] {
    if (bridge != bridge_) return;
    const Bytes bytes = to_bytes(weights_);
    auto cut = bootstrap::cut_snapshot({bytes}, about);
    STARLING_CHECK(cut.has_value());
    // Owners: see SharedSnapshot.
    auto snapshot = std::make_shared<const bootstrap::Snapshot>(std::move(*cut));
    carry_out(join_->on_snapshot(local(), bootstrap::SharedSnapshot(std::move(snapshot))));
  });
}

// ---- later

void Process::probe_port(const bootstrap::ProbePort& wanted) {
  after(30ms, [this, wanted] {
    // Nobody in the simulated swarm has a firewall that opens by itself.
    carry_out(
        join_->on_probed(local(), wanted.peer,
                         {.port = wanted.port, .reachable = true, .address = "", .detail = ""}));
  });
}

void Process::fetch_final() {
  if (finished_ || gossip_->final_consensus() != nullptr) return;
  set_phase(RunPhase::finishing);
  carry_out(
      gossip_->begin_following(local(), services_.problem.facts(join_->settings().fingerprint())));
}

void Process::save_checkpoint(Action done) {
  next_checkpoint_ = services_.schedule.now() + setup_.traits.checkpoint_every;
  if (!references_ || saving_) return done();
  saving_ = true;
  on_lane(codec_lane_, job_time(), [this, done = std::move(done)]() mutable {
    Disk::Checkpoint checkpoint{weights_, steps_, samples_,
                                gossip_->membership().progress().saved()};
    on_lane(pool_, 100ms,
            [this, checkpoint = std::move(checkpoint), done = std::move(done)]() mutable {
              saving_ = false;
              if (!disk_.full) disk_.checkpoint = std::move(checkpoint);
              done();
            });
  });
}

}  // namespace starling::sim
