// `starling run`: everything that has to be known before the node begins.
#include "node/address_book_file.h"
#include "node/base/posix_file.h"
#include "node/base/start_threads.h"
#include "node/cli/exit_code.h"
#include "node/cli/verbs.h"
#include "node/kept_settings.h"
#include "node/lifecycle.h"
#include "node/node.h"
#include "node/observe/held_lines.h"
#include "node/options.h"
#include "node/outset.h"
#include "node/printable.h"
#include "node/terminal/live.h"
#include "node/wall_time.h"
#include "training/data/spec.h"
#include "transport/private_file.h"

#include <fmt/format.h>
#include <signal.h>

#include <cmath>
#include <memory>
#include <ostream>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

namespace fs = std::filesystem;

struct SwarmAccess {
  transport::SwarmKey key;
  AccessFiles files;
  transport::PeerRules rules;
  std::optional<transport::Membership> membership;
  std::optional<SecretFiles> secret_to_get;
  bool made_secret = false;
};

// A mounted secret stays what it was when the admin changed the swarm's; the next machine that is
// given it alone would be shut out.
void tell_later_secret(const Config& config, const AccessFiles& files, Log& log) {
  if (!files.secret() || config.swarm.secret_file.empty()) return;
  const auto file = files.secret()->current.string();
  if (file == config.swarm.secret_file) return;
  log.info("secret.ordered_in_force",
           {{"file", file},
            {"why", "the admin ordered it after that of " + config.swarm.secret_file},
            {"do", "let that file follow before it is given to further nodes"}});
}

// A node that names no peer and keeps the secret in its own folder is where others come in by. It
// says how at every start: the address may be another one than before.
bool shows_way_in(const Config& config, const SwarmAccess& access) {
  if (access.made_secret) return true;
  return config.swarm.mode == SwarmMode::secret && config.swarm.secret_file.empty() &&
         config.swarm.invite.empty() && config.net.peers.empty() && !access.membership;
}

// Nobody among the peers that were named can know a secret that was drawn a moment ago.
void warn_of_new_secret(const Config& config, const StateDir& dir, Log& log) {
  if (config.net.peers.empty()) return;
  log.warn(
      "swarm.new_secret",
      {{"file", dir.secret().string()},
       {"why", "--peer was given, and neither --secret-file nor --invite"},
       {"did", "begins a swarm of its own, into which those peers do not come"},
       {"remedy", "stop it, copy the secret of a node of theirs over this file, start again"}});
}

// The invite that the configuration names; nothing if it names none.
Result<std::optional<transport::Invite>> read_invite(const Config& config) {
  const std::string& given = config.swarm.invite;
  if (given.empty()) return std::nullopt;
  auto text = given;
  if (given == "-" || given.starts_with('@')) {
    TRY(text,
        read_whole(given == "-" ? "/dev/stdin" : given.substr(1), 2 * transport::kMaxInviteText));
  }
  TRY(auto invite, transport::parse_invite(text));
  return std::optional(std::move(invite));
}

// A newcomer dials with the invite until it is given the secret; after a restart it has it.
Result<void> use_invite(const transport::Invite& invite, const fs::path& secret, WallTime now) {
  const auto held = transport::SwarmSecret::load(secret);
  if (held && held->swarm() == invite.swarm) return {};
  if (held)
    return fail(
        Errc::bad_config, Doing::reading_config,
        fmt::format("the invite is for swarm {}, and {} is the secret of swarm {}: take "
                    "another --dir, or remove that file and what else is left of that "
                    "swarm (secret.next, secret.previous, secret.ordered, member.cert, revoked)",
                    short_form(invite.swarm), secret.string(), short_form(held->swarm())));
  if (held.error().code != Errc::not_found) return fail(held.error());
  // Clocks differ; the node that made it has the last word.
  const WallTime expires{std::chrono::seconds(invite.expires_s)};
  if (now > expires + std::chrono::minutes(5))
    return fail(Errc::bad_config, Doing::reading_config,
                fmt::format("the invite was good until {}; ask for another one (`starling invite`)",
                            show_seconds(expires)));
  return {};
}

AccessPaths access_paths(const Config& config, const StateDir& dir) {
  AccessPaths paths{.secret = std::nullopt,
                    .allow = dir.allow_list(),
                    .deny = dir.deny_list(),
                    .membership = {},
                    .revoked = {}};
  if (config.swarm.mode == SwarmMode::open) return paths;
  paths.membership = dir.membership();
  paths.revoked = dir.revoked();
  const bool own = config.swarm.secret_file.empty();
  paths.secret = SecretFiles::beside(own ? dir.secret() : fs::path(config.swarm.secret_file));
  if (!own) paths.ordered = SecretFiles::ordered_in(dir.path());
  return paths;
}

// `error` where the system did not say whether it is there: copying it again would not help.
std::unexpected<Error> no_secret_file(const std::string& file, const std::error_code& error) {
  if (error)
    return fail(errc_of_errno(error.value()), Doing::reading_config,
                fmt::format("swarm.secret_file {} cannot be looked at: {}; did not start: let this "
                            "user read it and enter every folder above it, or mend the link",
                            file, error.message()));
  return fail(Errc::not_found, Doing::reading_config,
              fmt::format("swarm.secret_file {} is not there: copy it from a node of the swarm "
                          "(`secret` in its --dir), or leave it out to begin a swarm",
                          file));
}

// What a link leads to that is not there today is not made anew.
Result<void> check_link(const fs::path& file) {
  auto dead = dead_link(file);
  return dead.empty() ? Result<void>() : fail(Errc::permission, Doing::starting, std::move(dead));
}

// The swarm that this node belongs to, by its secret or by its name. A dry run takes a secret from
// memory where a start would make one.
Result<SwarmAccess> open_swarm(const Config& config, const StateDir& dir,
                               const std::optional<transport::Invite>& invite, const NodeId& self,
                               RunMode mode) {
  auto paths = access_paths(config, dir);
  if (paths.secret) TRY_VOID(check_link(paths.secret->current));
  std::optional<transport::SwarmSecret> made;
  std::error_code error;
  std::optional<SecretFiles> secret_to_get;
  if (!invite && !config.swarm.secret_file.empty() && !fs::exists(paths.secret->current, error))
    return no_secret_file(config.swarm.secret_file, error);
  if (invite) {
    TRY_VOID(use_invite(*invite, paths.secret->current, wall_now()));
    if (!fs::exists(paths.secret->current, error))
      secret_to_get = std::exchange(paths.secret, std::nullopt);
  } else if (paths.secret && config.swarm.secret_file.empty() &&
             !fs::exists(paths.secret->current, error)) {
    // A node without a secret begins a swarm of its own; with --peer it will be told that nobody
    // there knows it.
    made = transport::SwarmSecret::generate();
    if (mode == RunMode::dry_run)
      paths.secret.reset();
    else
      TRY_VOID(made->create(paths.secret->current));
  }
  AccessFiles files(
      paths, config.swarm.mode == SwarmMode::closed ? AllowList::required : AllowList::optional,
      config.swarm.secret_overlap, self);
  TRY(Access access, files.read(wall_now()));
  if (secret_to_get) TRY_VOID(files.check_newcomer(access, *secret_to_get, invite->swarm));
  auto key = access.secrets  ? std::move(access.secrets->key)
             : secret_to_get ? transport::SwarmKey::invited(invite->swarm, invite->key)
             : made          ? transport::SwarmKey::of(*made)
                             : transport::SwarmKey::open(config.swarm.name);
  return SwarmAccess{std::move(key),    std::move(files),         std::move(access.rules),
                     access.membership, std::move(secret_to_get), made.has_value()};
}

Result<std::vector<bootstrap::Seed>> read_seeds(const Config& config) {
  std::vector<bootstrap::Seed> seeds;
  for (const auto& text : config.net.peers) {
    TRY(const auto some, bootstrap::parse_seeds(text, [](const std::string& path) {
          return read_whole(path, bootstrap::kMaxSeedFileBytes);
        }));
    seeds.insert(seeds.end(), some.begin(), some.end());
  }
  return seeds;
}

// What DIR/final already holds of what these settings lead to (rulings 40).
//
// Errors:  corrupt and those of a file: whoever trained again would replace the certified model.
Result<std::optional<gossip::consensus::CertificateMessage>> finished_before(
    const StateDir& dir, const Hash& fingerprint) {
  auto held = read_certificate(dir.final_dir());
  if (!held && held.error().code == Errc::not_found) return std::nullopt;
  if (!held) return fail(std::move(held).error());
  if (held->certificate.fingerprint != fingerprint) return std::nullopt;
  const transport::Ed25519Verifier verifier;
  if (auto genuine = gossip::consensus::verify(*held, fingerprint, verifier); !genuine)
    return unusable_final(dir.final_dir(), {Errc::corrupt, Doing::reading_file,
                                            "certificate.json: " + genuine.error().detail});
  return std::move(*held);
}

// The same with its model: a certificate says nothing about one that is gone, or another one.
Result<std::optional<ServedModel>> served_before(const StateDir& dir, const OwnSettings& settings) {
  TRY(auto held, finished_before(dir, settings.text.fingerprint()));
  if (!held) return std::nullopt;
  TRY(auto memory, restore_final(dir.final_dir(), settings.model, *held));
  return ServedModel{std::move(*held), std::move(memory)};
}

// A large set on slow storage takes minutes before there is a node that could be asked.
Result<training::DataSets> open_data(const DataConfig& data, const Clock& clock, Log& log) {
  log.info("data.opening",
           {{"train", data.train}, {"val", data.val.empty() ? "its own" : data.val}});
  const TimePoint begun = clock.now();
  TRY(auto sets, training::open_data(data.train, data.val, log));
  log.info("data.opened", {{"images", sets.train->size()},
                           {"val_images", sets.val ? sets.val->size() : 0},
                           {"classes", sets.train->classes()},
                           {"seconds", std::round(10 * seconds(clock.now() - begun)) / 10}});
  return sets;
}

// The key of this node. A dry run takes one from memory where a start would make one.
Result<transport::Identity> identity_of(const StateDir& dir, RunMode mode) {
  if (mode != RunMode::dry_run) return transport::Identity::load_or_create(dir.identity_key());
  auto identity = transport::Identity::load(dir.identity_key());
  if (!identity && identity.error().code == Errc::not_found) return transport::Identity::generate();
  return identity;
}

// What a start would train, and what it would make first.
void print_plan(const Config& config, const StateDir& dir, const OwnSettings& settings,
                const training::Dataset& train, std::ostream& out) {
  out << fmt::format("would train {} ({} parameters) on {}\n", settings.training.model.name,
                     settings.model.layout.parameters(), printable(train.name()));
  for (const auto& [key, value] : settings.text.values())
    out << fmt::format("  {:<16} {}\n", key, printable(value));
  const auto would_make = [&](const fs::path& file, std::string_view what) {
    std::error_code error;
    if (!fs::exists(file, error))
      out << fmt::format("would make {}: {}\n", printable(file.string()), what);
  };
  would_make(dir.path(), "the folder of this node");
  would_make(dir.identity_key(), "the key of a new node");
  if (config.swarm.mode == SwarmMode::open || !config.swarm.secret_file.empty()) return;
  would_make(dir.secret(), config.swarm.invite.empty()
                               ? "the secret of a new swarm"
                               : "the secret of the swarm, once the invite let this node in");
}

// Whom to dial: the peers that were named, and whoever issued the invite.
Result<std::vector<bootstrap::Seed>> seeds_of(const Config& config,
                                              const std::optional<transport::Invite>& invite) {
  TRY(auto seeds, read_seeds(config));
  if (!invite) return seeds;
  for (const auto& endpoint : invite->issuer)
    seeds.push_back({.kind = bootstrap::SeedKind::address,
                     .endpoint = endpoint,
                     .pin = std::nullopt,
                     .origin = "the invite"});
  return seeds;
}

// Nothing where the configuration names no file. Whoever reads it sees the page of this node, so it
// is as private as the swarm's secret.
Result<std::string> read_http_token(const Config& config) {
  if (config.http.token_file.empty()) return std::string();
  TRY(std::string token,
      transport::read_private_file(config.http.token_file, 4096, transport::Ownership::mounted));
  while (token.ends_with('\n') || token.ends_with('\r')) token.pop_back();
  if (token.empty())
    return fail(Errc::bad_config, Doing::serving_http,
                fmt::format("http.token_file {} is empty: no token would mean no guard; write one "
                            "into it, or drop the key",
                            config.http.token_file));
  return token;
}

Result<ExitCode> prepare_and_run(const Config& config, RunMode mode, const Terminal& terminal,
                                 LogBackend& log, StartSignals& signals) {
  TRY_VOID(check_supported(config));
  const bool dry = mode == RunMode::dry_run;
  TRY(StateDir dir, dry ? StateDir::look(config.node.dir) : StateDir::open(config.node.dir));
  TRY(training::DataSets data, open_data(config.data, SteadyClock(), log));
  TRY(Outset outset, choose_outset(config, dir, *data.train, log));
  OwnSettings& settings = outset.settings;
  TRY([[maybe_unused]] const auto device, training::resolve_device(device_options(config)));
  TRY(const auto invite, read_invite(config));
  TRY(auto seeds, seeds_of(config, invite));
  TRY(const transport::Identity identity, identity_of(dir, mode));
  TRY(SwarmAccess access, open_swarm(config, dir, invite, identity.id(), mode));
  const SwarmId swarm = access.key.swarm();
  // An invite brings the certificate with the secret.
  if (!access.secret_to_get)
    TRY_VOID(
        check_ends_by_order(settings.training, access.membership, identity.id(), Doing::starting));
  if (access.made_secret && !dry) warn_of_new_secret(config, dir, log);
  tell_later_secret(config, access.files, log);
  TRY(auto served, served_before(dir, settings));
  if (served && config.finish.then == AfterFinish::exit) {
    terminal.out << final_line(served->held.certificate) << "  (finished before)\n";
    return ExitCode::good;
  }
  TRY(const Incarnation first, dir.read_incarnation());
  TRY(auto token, read_http_token(config));
  if (dry) {
    print_plan(config, dir, settings, *data.train, terminal.out);
    return ExitCode::good;
  }
  TRY_VOID(keep_choice(config, settings, kept_files(dir), log));
  const Incarnation begin{std::max<std::uint64_t>(first.value, 1)};
  TRY_VOID(dir.write_incarnation_ceiling({begin.value + kIncarnationStride}));
  TRY(EventLog events, EventLog::open(dir.events(), log));
  auto book = read_address_book(dir.path() / "peers.json", log);
  const bool way_in = shows_way_in(config, access);  // before its parts are handed on
  NodeParts parts{.config = config,
                  .terminal = terminal,
                  .log = log,
                  .dir = dir,
                  .events = events,
                  .identity = identity,
                  .key = std::move(access.key),
                  .swarm = swarm,
                  .access_files = std::move(access.files),
                  .peer_rules = std::move(access.rules),
                  .membership = access.membership,
                  .secret_to_get = std::move(access.secret_to_get),
                  .first_incarnation = begin,
                  .data = data,
                  .training = std::move(settings.training),
                  .settings = std::move(settings.text),
                  .model = std::move(settings.model),
                  .checkpoint = std::move(outset.checkpoint),
                  .base = std::move(outset.base),
                  .served = std::move(served),
                  .seeds = std::move(seeds),
                  .address_book = std::move(book),
                  .http_token = std::move(token),
                  .shows_way_in = way_in};
  TRY(const auto node,
      start_threads(Doing::starting, [&] { return std::make_unique<Node>(std::move(parts)); }));
  signals.end();  // the node has handlers of its own
  return node->run();
}

// The live screen of this process, where it is asked for and there is a terminal. What would go to
// that terminal is held until the screen is closed.
std::unique_ptr<terminal::OwnScreen> open_screen(const Config& config, const Terminal& terminal,
                                                 HeldLines& out, HeldLines& err, Log& log) {
  if (config.node.ui != Ui::tui) return nullptr;
  auto screen = terminal::Curses::open(terminal::Interrupt::is_ours);
  if (!screen) {
    log.warn("ui.no_screen", {{"why", to_string(screen.error())}, {"did", "shows plain lines"}});
    return nullptr;
  }
  out.hold();
  if (terminal.err_is_tty) err.hold();
  return std::make_unique<terminal::OwnScreen>(std::move(*screen), config.node.dir, [&out, &err] {
    out.release();
    err.release();
  });
}

}  // namespace

int run_verb(const Config& config, RunMode mode, const Terminal& terminal) {
  StartSignals signals;
  // Whoever only wants to know whether a start would succeed learns from its status that it was
  // interrupted.
  if (mode == RunMode::dry_run) signals.end();
  const SteadyClock clock;
  const LogBackendOptions options = log_options(config, terminal);
  const auto notice = [&](std::uint64_t lines) { return dropped_line(options, lines); };
  // Neither the io thread nor the trainer waits for whoever reads.
  terminal.out.flush();
  terminal.err.flush();
  HeldLines out_lines(terminal.out_descriptor, notice);
  HeldLines err_lines(terminal.err_descriptor, notice);
  LineStream out(out_lines);
  LineStream err(err_lines);
  LineStream log_lines(err_lines);
  Terminal held{terminal.out_descriptor < 0 ? terminal.out : out,
                terminal.err_descriptor < 0 ? terminal.err : err, terminal.out_is_tty,
                terminal.err_is_tty};
  LogBackend log(options, clock, terminal.err_descriptor < 0 ? terminal.err : log_lines);
  for (const auto& text : config.notices) log.warn("config.notice", {{"what", text}});
  auto screen =
      mode == RunMode::train ? open_screen(config, terminal, out_lines, err_lines, log) : nullptr;
  if (mode == RunMode::train)
    signals.watch([&screen, &log](int number) {
      screen.reset();  // whoever else does that waits for the end of this
      log.info("node.ending", {{"signal", number == SIGINT ? "SIGINT" : "SIGTERM"},
                               {"exit", number_of(ExitCode::good)},
                               {"why", "asked to stop before it was up; it has trained nothing"}});
    });
  const auto code = prepare_and_run(config, mode, held, log, signals);
  signals.end();
  screen.reset();
  if (code) return number_of(*code);
  held.err << "starling run: " << printable(to_string(code.error())) << '\n';
  return number_of(exit_code_of(code.error()));
}

}  // namespace starling::node
