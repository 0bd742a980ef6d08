#include "node/kept_settings.h"

#include "node/state_dir.h"
#include "training/genesis.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace starling::node {

namespace {

Result<OwnSettings> complete(TrainingSettings settings) {
  TRY(training::Model model, training::make_model(settings.model));
  const Hash genesis = training::make_genesis(model, settings.seed).hash;
  TRY(bootstrap::Settings text, bootstrap::Settings::from(to_text(settings, genesis)));
  return OwnSettings{std::move(settings), std::move(text), std::move(model)};
}

Result<OwnSettings> read_kept(const std::filesystem::path& file, const training::Dataset& train) {
  TRY(const std::string text, read_whole(file, bootstrap::Settings::kMaxText));
  TRY(const auto kept, bootstrap::Settings::parse(text));
  TRY(TrainingSettings settings, parse_settings(kept.values()));
  TRY_VOID(check_classes(settings.model, train, Doing::starting));
  TRY(OwnSettings complete_kept, complete(std::move(settings)));
  if (complete_kept.text != kept)
    return fail(
        Errc::settings_mismatch, Doing::starting,
        "this version makes another run of them: " + bootstrap::diff(complete_kept.text, kept));
  return complete_kept;
}

// Empty for a setting that is only there where it was chosen.
std::string value_of(const bootstrap::Settings& settings, const std::string& key) {
  const auto found = settings.values().find(key);
  return found == settings.values().end() ? std::string() : found->second;
}

}  // namespace

Result<OwnSettings> choose_settings(const Config& config, const training::Dataset& train,
                                    const std::filesystem::path& file, Log& log) {
  TRY(TrainingSettings chosen, settings_of(config, train));
  TRY(OwnSettings own, complete(std::move(chosen)));
  auto kept = read_kept(file, train);
  if (!kept) {
    if (kept.error().code != Errc::not_found)
      log.warn("settings.not_kept", {{"file", file.string()},
                                     {"why", to_string(kept.error())},
                                     {"did", "begins with those of the configuration"}});
    return own;
  }
  if (kept->text == own.text) return own;
  const auto forced = forced_settings(config);
  const bool changed = std::ranges::any_of(forced, [&](const std::string& key) {
    return value_of(kept->text, key) != value_of(own.text, key);
  });
  log.info(changed ? "settings.changed" : "settings.kept",
           {{"file", file.string()},
            {"difference", bootstrap::diff(own.text, kept->text)},
            {"did", changed ? "begins another run, as set by hand" : "goes on with those kept"}});
  return changed ? std::move(own) : std::move(*kept);
}

}  // namespace starling::node
