#include "node/node.h"

#include "node/options.h"
#include "node/printable.h"
#include "training/device.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <ostream>
#include <random>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

// An orderly stop takes a step of training, the goodbyes and a flush; after this something hangs.
constexpr Duration kStopLimit = std::chrono::seconds(60);

std::uint64_t system_random() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

gossip::SelfDescription describe(const NodeParts& parts, const std::string& name,
                                 Instance instance) {
  gossip::SelfDescription self;
  self.name = name;
  self.instance = instance;
  self.capabilities = 0;  // dialable once there is an address
  self.data_set = parts.data.train->id();
  self.first = parts.first_incarnation;
  self.ceiling = Incarnation{parts.first_incarnation.value + kIncarnationStride};
  return self;
}

std::string_view name_of(SwarmMode mode) {
  switch (mode) {
    case SwarmMode::secret:
      return "secret";
    case SwarmMode::open:
      return "open";
    case SwarmMode::closed:
      return "closed";
  }
  return "?";
}

std::string name_for(const NodeParts& parts) {
  return parts.config.node.name.empty() ? default_name(parts.identity.id())
                                        : parts.config.node.name;
}

// When the checkpoint that this process goes on from was written: seconds since 1970.
std::optional<double> written_at(const StateDir& dir, const training::Checkpoint& checkpoint) {
  const auto found =
      training::find_checkpoints(dir.checkpoints(), checkpoint.state.settings_fingerprint);
  if (!found) return std::nullopt;
  std::error_code unknown;
  const auto written = std::filesystem::last_write_time(*found / "latest" / "state.json", unknown);
  if (unknown) return std::nullopt;
  const auto since_1970 = std::chrono::file_clock::to_sys(written).time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

ProgressForm progress_form(const Config& config) {
  switch (config.node.ui) {
    case Ui::none:
      return ProgressForm::none;
    case Ui::json:
      return ProgressForm::json;
    default:
      return ProgressForm::plain;
  }
}

}  // namespace

Node::Node(NodeParts parts)
    : parts_(std::move(parts)),
      config_(parts_.config),
      log_(parts_.log),
      rng_(config_.debug.seed.value_or(system_random())),
      instance_{system_random()},  // of this process, whatever repeats
      tasks_(io_.get_executor(), log_,
             [this](const Error& thrown) {
               assert_io_thread();
               on_task_threw(thrown);
             }),
      invites_(parts_.dir.invites(), files_, log_),
      transport_({.io = io_,
                  .events = *this,
                  .log = log_,
                  .invites = &invites_,
                  .calendar = [] { return seconds_of(wall_now()); }},
                 parts_.identity, std::move(parts_.key),
                 transport_options(config_, name_for(parts_), instance_)),
      gossip_(clock_.now(),
              {.swarm = parts_.swarm,
               .self = describe(parts_, name_for(parts_), instance_),
               .options = gossip_options(config_),
               .signer = parts_.identity,
               .verifier = verifier_},
              Rng(rng_())),
      gossip_driver_(io_, clock_, transport_, gossip_, *this),
      join_(clock_.now(),
            {.own = parts_.settings,
             .forced = forced_settings(config_),
             .start = parts_.checkpoint || parts_.base ? bootstrap::Start::checkpoint
                                                       : bootstrap::Start::genesis,
             .options = join_options(config_)},
            Rng(rng_())),
      bootstrap_driver_(io_, clock_, transport_, join_, *this, log_),
      signals_(io_, log_,
               {.leave =
                    [this] {
                      assert_io_thread();
                      begin_leave(config_.leave.timeout);
                    },
                .reload =
                    [this] {
                      assert_io_thread();
                      reload_access(Read::always);
                    },
                .checkpoint =
                    [this] {
                      assert_io_thread();
                      save_at_signal();
                    },
                .tell_state =
                    [this] {
                      assert_io_thread();
                      tell_state();
                    }}),
      watchdog_(log_),
      progress_lines_(progress_form(config_)),
      control_(io_, snapshots_, *this, log_),
      second_(io_),
      leave_limit_(io_),
      build_over_(io_, asio::steady_timer::time_point::max()),
      settings_(parts_.training) {
  figures_.name = name_for(parts_);
  figures_.mode = name_of(config_.swarm.mode);
  figures_.swarm = parts_.swarm;
  figures_.started = clock_.now();
  figures_.images_per_epoch = parts_.data.train->size();
  metrics_.set(Metric::build_info, 1, {STARLING_VERSION, training::libtorch_version()});
  if (parts_.checkpoint)
    if (const auto written = written_at(parts_.dir, *parts_.checkpoint))
      metrics_.set(Metric::checkpoint_last_success, *written);
}

Node::~Node() = default;

ExitCode Node::run() {
  name_this_thread("io");
  assert_io_thread();
  if (auto opened = open_doors(); !opened) {
    parts_.terminal.err << "starling run: " << printable(to_string(opened.error())) << '\n';
    exit_ = exit_code_of(opened.error().code);
    tasks_.spawn("stop", [this] { return close_doors(); });
    io_.run();
    pool_.join();
    files_.join();
    return *exit_;
  }
  print_banner();
  signals_.start();
  gossip_driver_.start();
  bootstrap_driver_.start();
  tasks_.spawn("tick", [this] { return tick(); });
  begin_join();
  reload_access(Read::always);  // from now on with sessions
  io_.run();                    // returns by itself: the proof that nothing is left
  pool_.join();
  files_.join();
  if (bug_) return ExitCode::internal;
  return exit_.value_or(ExitCode::internal);
}

Result<void> Node::open_doors() {
  if (parts_.membership) transport_.set_certificate(parts_.membership->chain);
  use_rules(std::move(parts_.peer_rules));
  invites_.load(wall_now());
  TRY(const transport::Endpoint wanted,
      transport::parse_endpoint(config_.net.listen, bootstrap::kDefaultPort));
  auto bound = transport_.listen(wanted);
  if (!bound && !config_.forced("net.listen")) {
    log_.warn("net.default_port_taken",
              {{"address", config_.net.listen}, {"did", "let the system choose another"}});
    bound = transport_.listen({wanted.host, 0});
  }
  if (!bound)
    return fail(bound.error().code, Doing::listening,
                bound.error().detail + "; choose another with --listen (port 0: any free one)");
  figures_.address = dialable_address(*bound);
  TRY(auto advertised, advertised_addresses(config_, *bound));
  std::vector<std::string> texts;
  for (const auto& endpoint : advertised) texts.push_back(transport::to_string(endpoint));
  transport_.set_advertised(advertised);
  advertised_ = std::move(advertised);
  TRY(auto effects, gossip_.set_addresses(clock_.now(), std::move(texts)));
  gossip_driver_.carry_out(std::move(effects));
  TRY_VOID(parts_.dir.write_address(figures_.address));
  TRY_VOID(control_.listen(parts_.dir.path()));
  if (config_.http.listen == "off") return {};
  HttpOptions http;
  http.listen = config_.http.listen;
  http.policy = config_.forced("http.listen") ? PortPolicy::exactly : PortPolicy::or_another;
  http.token = parts_.http_token;
  TRY(http_,
      HttpServer::start(std::move(http),
                        {snapshots_, metrics_, health_, clock_, &log_.recent(), &config_}, log_));
  figures_.http = http_->address();
  return {};
}

// For a program that reads the log: one line like all others instead of the banner.
void Node::log_banner() {
  log_.info("node.started", {{"version", STARLING_VERSION},
                             {"name", figures_.name},
                             {"id", to_hex(parts_.identity.id().view())},
                             {"data", parts_.data.train->name()},
                             {"images", parts_.data.train->size()},
                             {"classes", parts_.data.train->classes()},
                             {"address", figures_.address},
                             {"folder", parts_.dir.path().string()},
                             {"swarm", to_hex(figures_.swarm.view().first(8))},
                             {"mode", figures_.mode}});
}

void Node::print_banner() {
  if (config_.log.format == LogFormat::json) return log_banner();
  std::ostream& out = parts_.terminal.err;
  const auto line = [&out](std::string_view key, const std::string& text) {
    out << fmt::format("  {:<10} {}\n", key, printable(text));
  };
  out << fmt::format("starling {}  {}  {}\n", STARLING_VERSION, printable(figures_.name),
                     to_hex(parts_.identity.id().view()));
  line("data", fmt::format("{}: {} images, {} classes", parts_.data.train->name(),
                           parts_.data.train->size(), parts_.data.train->classes()));
  line("listen", figures_.address);
  if (http_) line("http", http_->shown());
  line("folder", parts_.dir.path().string());
  std::string who;
  if (config_.swarm.mode == SwarmMode::open) who = "  open: anyone may join";
  if (const auto& allowed = rules_.allowed)
    who = fmt::format("  {}: {} nodes are allowed by {}", figures_.mode, allowed->size(),
                      parts_.dir.allow_list().string());
  if (parts_.membership)
    who = fmt::format("  closed: who has a certificate of the admin {} may join",
                      short_form(parts_.membership->admin));
  line("swarm", to_hex(figures_.swarm.view().first(8)) + who);
  if (parts_.shows_way_in) show_way_in();
  out << std::flush;
}

// Not the address that was bound where others see another one.
void Node::show_way_in() {
  const transport::Endpoint& dialled = advertised_.front();
  const bool told = !config_.net.advertise.empty();
  const std::string peer = printable(told ? transport::to_string(dialled) : figures_.address);
  const std::string secret = printable(parts_.dir.secret().string());
  const bool only_here =
      figures_.address.starts_with("127.") || figures_.address.starts_with("[::1]");
  if (only_here && !told)
    parts_.terminal.err << fmt::format(
        "To add a node on this machine (no other reaches {}; --listen [::]:{} lets them), run:\n"
        "    starling run --dir OTHER --data DATA --peer {} --secret-file {}\n",
        peer, dialled.port, peer, secret);
  else
    parts_.terminal.err << fmt::format(
        "To add a machine, copy the secret file there (mode 0600) and run:\n"
        "    starling run --data DATA --peer {} --secret-file secret   (the file is {})\n",
        peer, secret);
}

transport::Task<> Node::tick() {
  while (!exit_) {
    assert_io_thread();
    every_second();
    second_.expires_after(std::chrono::seconds(1));
    const auto [error] = co_await second_.async_wait(transport::as_result);
    if (error) co_return;
  }
}

void Node::every_second() {
  const TimePoint now = clock_.now();
  health_.beat_io(now);
  figures_.host = host_sampler_.sample(now);
  metrics_.update(*figures_.host);
  metrics_.raise_to(Metric::events_lost, static_cast<double>(parts_.events.lost()));
  metrics_.update(transport_.totals());
  answer_joins(now);
  for (const auto& member : gossip_.membership().members())
    if (member.round_trip) metrics_.observe(Metric::peer_rtt, seconds(*member.round_trip));
  for (const auto& session : transport_.figures())
    if (session.goodput > 0) gossip_.on_goodput(session.peer, session.goodput);
  if (bridge_ && figures_.phase == Phase::training) {
    bridge_->set_progress(gossip_.progress_share(now));
    bridge_->set_data_members(data_members());
    if (now >= next_checkpoint_) save_checkpoint([](const Result<void>&) {});
    if (now >= next_evaluation_) evaluate_now();
  }
  bootstrap_driver_.carry_out(join_.update(now, local_facts()));
  free_dropped_snapshots();
  if (book_changed_) save_address_book();
  reload_access(Read::if_changed);
  tick_spread(now);
  if (spread_)
    metrics_.raise_to(Metric::access_forged, static_cast<double>(spread_->figures().forged));
  publish_status();
}

void Node::publish_status() {
  const TimePoint now = clock_.now();
  if (const auto lost = parts_.events.lost(); lost > figures_.troubles.events_lost) {
    figures_.troubles.events_lost = lost;
    figures_.events_lost_at = now;
  }
  const auto stands = health_.train_stands(now);
  figures_.troubles.no_step_s = stands ? std::optional(seconds(*stands)) : std::nullopt;
  fill_access_status();
  StatusSnapshot status =
      build_status(now, {figures_, gossip_, transport_, parts_.model, bridge_.get(), join_});
  metrics_.update(status);
  note_end_phase(status.consensus);
  if (const auto line = progress_lines_.on_tick(now, status, wall_now()))
    parts_.terminal.err << *line << '\n' << std::flush;
  snapshots_.put(std::move(status));
}

void Node::note_end_phase(const StatusSnapshot::Consensus& end) {
  if (end.state == "none" || end.phase == end_phase_) return;
  end_phase_ = end.phase;
  log_.info("final.phase",
            {{"phase", end.phase}, {"epoch", end.epoch}, {"last_given_up", end.reason}});
}

void Node::set_phase(Phase phase) {
  if (figures_.phase == phase) return;
  figures_.phase = phase;
  log_.info("node.phase", {{"phase", name_of(phase)}});
  parts_.events.append("phase", {{"phase", std::string(name_of(phase))}});
  publish_status();
  bootstrap_driver_.carry_out(join_.update(clock_.now(), local_facts()));
}

// Leaves, because what the task was to do will not happen, and somebody may wait for it.
void Node::on_task_threw(const Error& thrown) {
  if (thrown.code == Errc::internal) bug_ = true;
  if (!exit_) leave_with(thrown);
}

void Node::leave_with(const Error& error) {
  parts_.terminal.err << "starling run: " << printable(to_string(error)) << '\n';
  if (!why_it_leaves_) why_it_leaves_ = error;
  begin_leave(config_.leave.timeout);
}

void Node::end_with(const Error& error) {
  parts_.terminal.err << "starling run: " << printable(to_string(error)) << '\n';
  end(exit_code_of(error.code), to_string(error));
}

void Node::end(ExitCode code, const std::string& why) {
  if (exit_) return;
  exit_ = code;
  log_.info("node.ending", {{"exit", number_of(code)}, {"why", why}});
  parts_.events.append("end", {{"exit", number_of(code)}, {"why", why}});
  watchdog_.arm(kStopLimit, [this] { return "tasks: " + std::to_string(tasks_.running()); });
  tasks_.spawn("stop", [this] { return stop_everything(); });
}

// Leave is not stop: by now everybody who should know was told.
transport::Task<> Node::stop_everything() {
  assert_io_thread();
  publish_status();
  if (const auto text = json_text(to_json(*snapshots_.get()));
      !write_whole(parts_.dir.last_status(), text + "\n"))
    log_.warn("status.not_written", {{"file", parts_.dir.last_status().string()}});
  second_.cancel();
  leave_limit_.cancel();  // a node that has left waits for nothing
  auto training_ends = drop_bridge();
  co_await std::move(training_ends);
  auto doors_close = close_doors();
  co_await std::move(doors_close);
}

transport::Task<> Node::close_doors() {
  assert_io_thread();
  signals_.stop();
  control_.stop();
  http_.reset();
  gossip_driver_.stop();
  auto bootstrap_ends = bootstrap_driver_.stop();
  co_await std::move(bootstrap_ends);
  auto transport_ends = transport_.stop(patience());
  co_await std::move(transport_ends);
}

}  // namespace starling::node
