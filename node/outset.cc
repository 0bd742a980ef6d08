#include "node/outset.h"

#include "node/final_result.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace starling::node {

namespace {

namespace fs = std::filesystem;

// Checkpoints that this run does not need hold room on the disk until somebody removes them.
void tell_set_aside(const StateDir& dir, const fs::path& own, LogBackend& log) {
  const std::string prefix = dir.checkpoints().filename().string() + "-";
  std::error_code ignored;
  for (fs::directory_iterator it(dir.path(), ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    if (!it->path().filename().string().starts_with(prefix) || it->path() == own) continue;
    if (const auto run = training::run_of_checkpoints(it->path()); run && run->empty())
      continue;  // somebody else's
    log.info("checkpoint.set_aside",
             {{"folder", it->path().string()},
              {"why", "they are of another run"},
              {"remedy", "start with that run's options to go on with it, or remove the folder"}});
  }
}

std::unexpected<Error> cannot_be_read(const Error& why) {
  return fail(why.code == Errc::version_mismatch ? Errc::unsupported : why.code, why.doing,
              fmt::format("{}; nothing was changed: make it readable for this program, or move it "
                          "away to begin without it",
                          why.detail));
}

// The checkpoint of an earlier process of this very run.
//
// Errors:  permission, io_failed, version_mismatch: it is there, and a node that began anew would
//          replace it by its own.
Result<std::optional<training::Checkpoint>> own_checkpoint(const StateDir& dir,
                                                           const OwnSettings& settings,
                                                           LogBackend& log) {
  const std::string run = to_hex(settings.text.fingerprint().view());
  const auto found = training::find_checkpoints(dir.checkpoints(), run);
  tell_set_aside(dir, found.value_or(fs::path()), log);
  const auto held = training::run_of_checkpoints(dir.checkpoints());
  const auto aside =
      training::run_of_checkpoints(training::set_aside_folder(dir.checkpoints(), run));
  // Where it cannot be told whose they are, this run's own may be among them.
  if (!found && !held) return cannot_be_read(held.error());
  if (!found && !aside) return cannot_be_read(aside.error());
  const std::string other = held.value_or("");
  if (!other.empty() && other != run)
    log.warn("checkpoint.of_another_run",
             {{"folder", dir.checkpoints().string()},
              {"did", fmt::format("{}; the first save renames the folder to {}",
                                  found ? "goes on from " + found->string() : "starts without it",
                                  training::set_aside_folder(dir.checkpoints(), other).string())},
              {"remedy",
               "to go on with the other run, start with its own options again: its model "
               "and every other setting as it was"}});
  if (!found && !other.empty()) return std::nullopt;
  auto checkpoint =
      training::load_checkpoint({.folder = found.value_or(dir.checkpoints())}, settings.model, log);
  if (!checkpoint) {
    const Error& why = checkpoint.error();
    if (training::is_unread(why.code)) return cannot_be_read(why);
    if (why.code != Errc::not_found)
      log.warn("checkpoint.unusable", {{"why", to_string(why)}, {"did", "starts without it"}});
    return std::nullopt;
  }
  // What was left before the damaged ones may still be of another run.
  if (checkpoint->state.settings_fingerprint != run) {
    log.warn("checkpoint.unusable",
             {{"why", "the only whole one is of another run"}, {"did", "starts without it"}});
    return std::nullopt;
  }
  return std::optional(std::move(*checkpoint));
}

// The certified model that an extended run goes on from; nothing where there is no certificate.
// What is there and cannot be read ends the start: a node that began without it would replace it.
Result<std::optional<training::Replica>> read_base(const StateDir& dir, const OwnSettings& own) {
  const auto held = read_certificate(dir.final_dir());
  if (!held && held.error().code == Errc::not_found) return std::nullopt;
  const auto memory = held ? restore_final(dir.final_dir(), own.model, *held) : fail(held.error());
  if (memory) return std::optional((*memory)->result());
  const Error& why = memory.error();
  return fail(why.code, why.doing,
              fmt::format("run.extend = {} goes on from the model in {}; nothing was changed: {}",
                          own.training.extension, dir.final_dir().string(), why.detail));
}

}  // namespace

Result<Outset> choose_outset(const Config& config, const StateDir& dir,
                             const training::Dataset& train, LogBackend& log) {
  TRY(OwnSettings settings, choose_settings(config, train, kept_files(dir), log));
  TRY(auto checkpoint, own_checkpoint(dir, settings, log));
  if (checkpoint || settings.training.extension == 0)
    return Outset{std::move(settings), std::move(checkpoint), std::nullopt};
  TRY(auto base, read_base(dir, settings));
  if (base) return Outset{std::move(settings), std::nullopt, std::move(base)};
  if (config.forced("run.extend"))
    return fail(Errc::bad_config, Doing::starting,
                fmt::format("run.extend = {} goes on from the certified model in {}, and there is "
                            "none; a node that has none joins with --peer and without run.extend",
                            config.run.extend, dir.final_dir().string()));
  // Adopted from a swarm of which nothing has arrived yet: only that swarm has the model.
  TRY(settings, choose_settings(config, train, {}, log));
  return Outset{std::move(settings), std::nullopt, std::nullopt};
}

}  // namespace starling::node
