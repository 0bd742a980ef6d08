// What bootstrap asks of the node: how it comes to its settings and to its first replica.
#include "node/base/fault.h"
#include "node/node.h"
#include "node/options.h"
#include "node/printable.h"
#include "node/state_transfer_bytes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ostream>
#include <utility>
#include <vector>

namespace starling::node {

namespace {

bootstrap::RunPhase run_phase(Phase phase) {
  switch (phase) {
    case Phase::starting:
    case Phase::joining:
      return bootstrap::RunPhase::starting;
    case Phase::training:
      return bootstrap::RunPhase::training;
    case Phase::finishing:
      return bootstrap::RunPhase::finishing;
    case Phase::finished:
      return bootstrap::RunPhase::finished;
    case Phase::leaving:
      return bootstrap::RunPhase::leaving;
  }
  return bootstrap::RunPhase::starting;
}

// A wrong secret, a wrong address and a peer that is not there yet all look the same from here, and
// the node trains on: whoever named the peers has to hear what came of each.
void warn_of_silence(const std::vector<bootstrap::AddressReport>& addresses, Log& log) {
  for (const auto& address : addresses) {
    std::string why = address.detail;
    if (why.empty())
      why = address.last_end ? std::string(name_of(*address.last_end)) : "no answer yet";
    log.warn("join.no_answer", {{"address", transport::to_string(address.endpoint)},
                                {"why", why},
                                {"did", "trains alone and goes on trying"}});
  }
}

}  // namespace

void Node::begin_join() {
  const TimePoint now = clock_.now();
  if (parts_.served) {
    const auto serving = begin_serving(std::move(*parts_.served));
    if (!serving) return end(exit_code_of(serving.error().code), to_string(serving.error()));
  } else {
    set_phase(Phase::joining);
  }
  auto seeded = join_.add_seeds(now, parts_.seeds);
  // More than there is room for, in several lists of which none was too long.
  if (!seeded) return end_with({Errc::bad_config, Doing::joining, seeded.error().detail});
  bootstrap_driver_.carry_out(std::move(*seeded));
  bootstrap_driver_.carry_out(join_.add_address_book(now, parts_.address_book));
  bootstrap_driver_.carry_out(join_.update(now, local_facts()));
  bootstrap_driver_.carry_out(join_.begin(now));
}

bootstrap::LocalFacts Node::local_facts() {
  const TimePoint now = clock_.now();
  bootstrap::LocalFacts facts;
  facts.phase = run_phase(figures_.phase);
  facts.age = gossip_.mixer() != nullptr ? gossip_.mixer()->age() : 0;
  facts.samples = gossip_.swarm_samples(now);
  facts.run_age = gossip_.membership().progress().run_age(now);
  facts.max_state_bytes = state_bytes(parts_.model);
  for (const auto& member : gossip_.membership().members())
    if (member.state == gossip::MemberState::alive ||
        member.state == gossip::MemberState::suspect) {
      facts.alive.push_back(member.record.id);
      for (const auto& address : member.record.addresses)
        if (const auto endpoint = transport::parse_endpoint(address))
          facts.addresses.push_back({member.record.id, *endpoint});
    }
  facts.alive_same = gossip_.membership().alive_count_with(join_.settings().fingerprint());
  facts.counters = gossip_.membership().progress().saved();
  if (finished_ && final_written_) {
    facts.certificate = finished_->certificate.hash;
    // Of an earlier process the members' own counters are not known any more.
    facts.samples = std::max(facts.samples, finished_->certificate.samples);
  }
  return facts;
}

void Node::on_effect(bootstrap::JoinEffect effect) {
  const TimePoint now = clock_.now();
  if (const auto* begin = std::get_if<bootstrap::BeginTraining>(&effect)) {
    begin_training(*begin);
  } else if (const auto* adopt = std::get_if<bootstrap::AdoptSettings>(&effect)) {
    adopt_settings(*adopt);
  } else if (const auto* install = std::get_if<bootstrap::InstallState>(&effect)) {
    install_state(*install);
  } else if (const auto* failed = std::get_if<bootstrap::TransferFailed>(&effect)) {
    log_.warn("join.transfer_failed", {{"sponsor", short_form(failed->sponsor)},
                                       {"why", failed->why},
                                       {"did", "looks for another sponsor"}});
  } else if (std::holds_alternative<bootstrap::TakeSnapshot>(effect)) {
    take_snapshot();
  } else if (const auto* fetch = std::get_if<bootstrap::FetchFinal>(&effect)) {
    fetch_final(*fetch);
  } else if (const auto* same = std::get_if<bootstrap::SameSettings>(&effect)) {
    gossip_driver_.carry_out(gossip_.on_same_settings(now, same->peer));
  } else if (const auto* refused = std::get_if<bootstrap::SettingsRefused>(&effect)) {
    log_.warn("join.other_settings", {{"peer", short_form(refused->peer)},
                                      {"why", refused->sentence},
                                      {"did", "no edge with it"}});
    parts_.events.append("settings_refused",
                         {{"peer", to_hex(refused->peer.view())}, {"why", refused->sentence}});
  } else if (const auto* give = std::get_if<bootstrap::GiveUp>(&effect)) {
    give_up(give->error);
  } else if (const auto* reach = std::get_if<bootstrap::Reachability>(&effect)) {
    note_reachable(*reach);
  } else if (const auto* joined = std::get_if<bootstrap::Joined>(&effect)) {
    note_joined(*joined);
  }
}

void Node::begin_training(const bootstrap::BeginTraining& begin) {
  log_.info("join.begin", {{"why", begin.why}});
  if (transport_.sessions().empty()) warn_of_silence(join_.addresses(), log_);
  Beginning beginning;
  beginning.settings = join_.settings().fingerprint();
  const std::string fingerprint = to_hex(join_.settings().fingerprint().view());
  if (begin.start == bootstrap::Start::checkpoint && parts_.checkpoint &&
      parts_.checkpoint->state.settings_fingerprint == fingerprint) {
    training::Checkpoint checkpoint = std::move(*parts_.checkpoint);
    parts_.checkpoint.reset();
    beginning.origin = gossip::Origin::restored;
    const SavedProgress saved = parse_progress(checkpoint.state.progress_map);
    beginning.age = saved.age > 0 ? saved.age : static_cast<double>(checkpoint.state.step);
    log_.info("checkpoint.loaded", {{"step", checkpoint.state.step},
                                    {"age_steps", beginning.age},
                                    {"did", "goes on from it"}});
    gossip_.membership().progress().merge(clock_.now(), saved.counters);
    gossip_.membership().progress().merge_age(clock_.now(), saved.run_age);
    gossip_.membership().progress().merge_of_sponsor(clock_.now(), {}, saved.sponsors_age);
    beginning.start = training::Trainer::Start{.replica = std::move(checkpoint.replica),
                                               .momenta = std::move(checkpoint.momenta),
                                               .state = std::move(checkpoint.state)};
  } else if (begin.start == bootstrap::Start::checkpoint && parts_.base) {
    beginning.origin = gossip::Origin::restored;
    // Not at genesis any more for whoever opens an edge or comes later, and the same for all.
    beginning.age = join_options(config_).genesis_age + 1;
    beginning.start =
        training::Trainer::Start{.replica = std::move(*parts_.base), .momenta = {}, .state = {}};
    parts_.base.reset();
  }
  // Owners: this handler and the task that it spawns; std::function needs a copy.
  auto shared = std::make_shared<Beginning>(std::move(beginning));
  tasks_.spawn("build", [this, shared] { return build_and_start(std::move(*shared)); });
}

void Node::adopt_settings(const bootstrap::AdoptSettings& adopt) {
  const TimePoint now = clock_.now();
  const auto unusable = [&](const Error& error) {
    assert_io_thread();
    bootstrap_driver_.carry_out(join_.on_settings_unusable(now, error));
  };
  auto settings = parse_settings(adopt.settings.values());
  if (!settings) return unusable(std::move(settings).error());
  auto model = training::make_model(settings->model);
  if (!model) return unusable(std::move(model).error());
  auto same_classes = check_classes(settings->model, *parts_.data.train, Doing::joining);
  if (!same_classes) return unusable(std::move(same_classes).error());
  // An invite brings the certificate, which may still be on its way.
  if (config_.swarm.invite.empty()) {
    auto certified =
        check_ends_by_order(*settings, parts_.membership, parts_.identity.id(), Doing::joining);
    if (!certified) return unusable(std::move(certified).error());
  }
  tasks_.spawn("adopt", [this, wanted = std::move(*settings), model = std::move(*model), adopt] {
    return rebuild_for(wanted, model, adopt);
  });
}

transport::Task<> Node::rebuild_for(TrainingSettings settings, training::Model model,
                                    bootstrap::AdoptSettings adopt) {
  assert_io_thread();
  // All that can fail comes first: settings that are of no use, or lies, stop nothing here.
  auto draw = [&model, seed = settings.seed] { return training::make_genesis(model, seed).hash; };
  Hash genesis;
  try {
    genesis = co_await transport::on_pool(pool_, std::move(draw));
  } catch (...) {
    const Error why = current_error(Doing::joining, Errc::internal);
    bootstrap_driver_.carry_out(join_.on_settings_unusable(clock_.now(), why));
    co_return;
  }
  assert_io_thread();
  if (to_text(settings, genesis) != adopt.settings.values()) {
    const Error why{Errc::settings_mismatch, Doing::joining,
                    "the swarm's genesis is not what these settings draw here: another version?"};
    bootstrap_driver_.carry_out(join_.on_settings_unusable(clock_.now(), why));
    co_return;
  }
  // A model of size takes seconds to draw: the end may have begun, and needs what is here.
  if (exit_ || figures_.phase == Phase::finishing || figures_.phase == Phase::finished ||
      figures_.phase == Phase::leaving) {
    bootstrap_driver_.carry_out(join_.on_settings_kept(clock_.now()));
    co_return;
  }
  reader_.cancel();  // a replica of the settings before
  log_.info("join.adopted", {{"from", short_form(adopt.from)}, {"difference", adopt.diff}});
  if (gossip_.mixer() != nullptr) gossip_driver_.carry_out(gossip_.end_averaging(clock_.now()));
  const Error over{Errc::cancelled, Doing::agreeing,
                   "this node has just taken other settings from the swarm: ask again"};
  for (auto* waiting : {&waiting_for_merge_, &waiting_for_finish_})
    for (auto& reply : std::exchange(*waiting, {})) reply.fail(over);
  set_phase(Phase::joining);
  auto training_ends = drop_bridge();
  co_await std::move(training_ends);
  if (settings.model != settings_.model || settings.extension == 0)
    free_on(pool_, std::exchange(parts_.base, std::nullopt));
  settings_ = settings;
  figures_.forget_run();
  images_per_second_ = gossip_wait_ = data_wait_ = std::nullopt;
  // Of another run: a model and its momenta.
  free_on(pool_, std::exchange(parts_.checkpoint, std::nullopt));
  parts_.model = std::move(model);
  consensus_memory_.reset();
  merge_memory_.reset();
  bootstrap_driver_.carry_out(join_.on_settings_adopted(clock_.now(), adopt.settings));
}

void Node::install_state(const bootstrap::InstallState& install) {
  fault::pass("transfer.before_install");
  given_snapshots_.push_back(install.snapshot);
  reader_.read(install.snapshot, parts_.model, [this, install](Result<training::Replica> replica) {
    assert_io_thread();
    use_state(install, std::move(replica));
  });
}

// While the replica was read this node may have begun to end, and its exchanges went on.
std::optional<Error> Node::no_use_for(const bootstrap::Manifest& state) {
  if (figures_.phase == Phase::finishing)
    return Error{Errc::cancelled, Doing::joining, "this node is finishing"};
  if (bridge_ && gossip_.mixer() != nullptr && state.age <= gossip_.mixer()->age())
    return Error{Errc::cancelled, Doing::joining, "the replica here has come as far by now"};
  return std::nullopt;
}

void Node::use_state(const bootstrap::InstallState& install, Result<training::Replica> replica) {
  const TimePoint now = clock_.now();
  const bootstrap::Manifest& sent = install.snapshot->manifest;
  // Then nobody asks any more what became of it.
  const bool ends = exit_ || figures_.phase == Phase::leaving || figures_.phase == Phase::finished;
  const auto why = replica ? no_use_for(sent) : std::optional(replica.error());
  if (ends || why) {
    if (replica) free_on(pool_, *std::move(replica));
    if (!ends) bootstrap_driver_.carry_out(join_.on_state_unusable(now, *why));
    return;
  }
  gossip_.membership().progress().merge_of_sponsor(now, install.counters, install.run_age);
  log_.info("join.state", {{"sponsor", short_form(install.sponsor)},
                           {"bytes", sent.total_bytes},
                           {"seconds", seconds(install.loading)},
                           {"age_steps", sent.age}});
  if (bridge_) return adopt_replica(*std::move(replica), sent.age);
  Beginning beginning;
  beginning.settings = sent.fingerprint;
  beginning.origin = gossip::Origin::transferred;
  beginning.age = sent.age;
  training::TrainingState state;
  state.steps_since_adoption = 0;
  state.samples = gossip_.membership().progress().own_samples();
  state.progress_share = gossip_.share_of(now, settings_.budget);
  beginning.start = training::Trainer::Start{
      .replica = *std::move(replica), .momenta = {}, .state = std::move(state)};
  // Owners: this handler and the task that it spawns; std::function needs a copy.
  auto shared = std::make_shared<Beginning>(std::move(beginning));
  tasks_.spawn("build", [this, shared] { return build_and_start(std::move(*shared)); });
}

void Node::take_snapshot() {
  if (!bridge_) {
    const Error why{Errc::not_found, Doing::transferring_state, "no model here"};
    return bootstrap_driver_.carry_out(join_.on_snapshot(clock_.now(), fail(why)));
  }
  bootstrap::Manifest about;
  about.fingerprint = join_.settings().fingerprint();
  about.step = static_cast<std::uint64_t>(bridge_->state().step);
  about.age = gossip_.mixer() != nullptr ? gossip_.mixer()->age() : 0;
  auto cut = [this, about] {
    const training::Replica replica = bridge_->trainer().snapshot();
    return cut_replica(replica, about);
  };
  auto done = [this](Result<bootstrap::SharedSnapshot> snapshot) {
    assert_io_thread();
    if (snapshot) given_snapshots_.push_back(*snapshot);
    bootstrap_driver_.carry_out(join_.on_snapshot(clock_.now(), std::move(snapshot)));
  };
  bridge_->run_on_lane(std::move(cut), std::move(done));
}

// Join, a state machine, just drops what it needs no more. The one who has it last is here, and
// hands it on.
void Node::free_dropped_snapshots() {
  std::erase_if(given_snapshots_, [this](bootstrap::SharedSnapshot& snapshot) {
    if (snapshot.use_count() > 1) return false;
    free_on(pool_, std::move(snapshot));
    return true;
  });
}

void Node::fetch_final(const bootstrap::FetchFinal& fetch) {
  // Whoever averages is shown the certificate by the peer's final consensus.
  if (finished_ || gossip_.mixer() != nullptr) return;
  log_.info("join.finished_swarm", {{"from", short_form(fetch.from)},
                                    {"certificate", to_hex(fetch.certificate.view())},
                                    {"did", "fetch the certified model instead of training"}});
  set_phase(Phase::finishing);
  gossip_driver_.carry_out(gossip_.begin_following(clock_.now(), model_facts()));
}

void Node::give_up(const Error& error) {
  parts_.terminal.err << "starling run: " << printable(error.detail) << '\n';
  end(exit_code_of(error.code), error.detail);
}

void Node::note_joined(const bootstrap::Joined& joined) {
  const std::string via = joined.via                      ? short_form(*joined.via)
                          : transport_.sessions().empty() ? "nobody: alone for now"
                                                          : "nobody: has a replica of its own";
  log_.info("join.joined", {{"via", via}, {"seconds", seconds(joined.took)}});
  parts_.events.append("joined", {{"via", via}, {"seconds", seconds(joined.took)}});
  if (!joined.via) return;
  // The port that others are told to dial, which a router may forward to the one that is bound
  // here.
  const auto port = advertised_.front().port;
  bootstrap_driver_.carry_out(join_.ask_dial_back(clock_.now(), *joined.via, port));
}

void Node::note_reachable(const bootstrap::Reachability& told) {
  figures_.reachable = told.reachable ? "yes" : "no";
  if (told.reachable)
    return log_.info("node.reachable", {{"address", told.address}, {"by", short_form(told.peer)}});
  const std::string& own = figures_.address;
  log_.warn("node.not_reachable",
            {{"address", told.address},
             {"by", short_form(told.peer)},
             {"why", told.detail},
             {"did", "trains through the sessions it opens"},
             {"do", fmt::format("open or forward TCP {}, or --advertise HOST:PORT",
                                own.substr(own.rfind(':') + 1))}});
}

void Node::save_address_book() {
  book_changed_ = false;
  write_later(parts_.dir.path() / "peers.json", parts_.address_book.to_text());
}

// A restart begins with the settings that are in force now.
void Node::keep_settings() { write_later(parts_.dir.settings(), join_.settings().text()); }

void Node::write_later(const std::filesystem::path& file, std::string text) {
  auto write = [this, file, text = std::move(text)] {
    fault::pass("settings.before_write");
    if (const auto written = write_whole(file, text); !written)
      log_.warn("file.not_written", {{"why", to_string(written.error())}});
  };
  asio::post(files_, std::move(write));
}

}  // namespace starling::node
