#include "node/kept_settings.h"

#include "node/config/values.h"
#include "node/final_result.h"
#include "node/set_aside.h"
#include "training/checkpoint.h"
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

// In DIR/settings.chosen beside the keys of the settings: the text that the budget came from.
constexpr const char* kUntil = "until";

// Empty where there is none: every start before this version left none.
Result<SettingsText> read_chosen(const std::filesystem::path& file) {
  const auto text = read_whole(file, bootstrap::Settings::kMaxText);
  if (!text && text.error().code == Errc::not_found) return SettingsText{};
  TRY(const auto chosen, text ? bootstrap::Settings::parse(*text) : fail(text.error()));
  return chosen.values();
}

// How settings that are there and cannot be used are called once others are kept.
constexpr const char* kAside = "unusable";

void tell_unusable(const std::filesystem::path& file, const Error& why, Log& log) {
  log.warn("settings.not_kept",
           {{"file", file.string()},
            {"why", to_string(why)},
            {"did", fmt::format("begins with those of the configuration, and renames the file to "
                                "{} before anything is written in its place",
                                name_aside(file, kAside).string())},
            {"remedy",
             "none where the configuration says what you want to train; else stop this node, and "
             "put the file back as this version can use it, or start the version that wrote it"}});
}

void tell_unusable_choice(const std::filesystem::path& file, const Error& why, Log& log) {
  log.warn("settings.not_kept",
           {{"file", file.string()},
            {"why", to_string(why)},
            {"did", fmt::format("takes no key for one that was set by hand before, and renames the "
                                "file to {} before it is written again",
                                name_aside(file, kAside).string())},
            {"remedy",
             "none where you set by hand what you set at the last start; else stop this node, and "
             "put the file back as this version can use it"}});
}

// Before anything is written in their place.
void set_unusable_aside(const std::filesystem::path& file, Log& log) {
  if (const auto aside = set_aside(file, kAside); !aside)
    log.warn("settings.not_kept",
             {{"file", file.string()},
              {"why", to_string(aside.error())},
              {"did", "goes on; the settings that are kept next are written over it"},
              {"remedy", fmt::format("if you need it, stop this node, copy it elsewhere, and move "
                                     "away what is called {}",
                                     name_aside(file, kAside).string())}});
}

// Keys that a person set, with what they came to.
SettingsText by_hand(const Config& config, const bootstrap::Settings& own) {
  SettingsText values;
  for (const auto& key : settings_by_hand(config)) values.emplace(key, value_of(own, key));
  return values;
}

// Whether the budget that is kept came from this very text, and would come out otherwise today.
bool is_resolved(const Until& until, const SettingsText& last) {
  const auto found = last.find(kUntil);
  return is_local(until) && found != last.end() && found->second == show_until(until);
}

// Whether a person went back to the run of the configuration (choose_settings()).
bool took_back(const SettingsText& last, const SettingsText& now, const OwnSettings& own,
               const OwnSettings& kept, const KeptFiles& files) {
  const bool fewer = std::ranges::any_of(last, [&](const auto& set) {
    const auto& [key, value] = set;
    return key != kUntil && !now.contains(key) && value == value_of(kept.text, key) &&
           value != value_of(own.text, key);
  });
  const Hash fingerprint = own.text.fingerprint();
  if (!fewer || !training::find_checkpoints(files.checkpoints, to_hex(fingerprint.view())))
    return false;
  const auto finished = read_certificate(files.final_dir);
  return !finished || (finished->certificate.fingerprint != fingerprint &&
                       finished->certificate.fingerprint != kept.text.fingerprint());
}

}  // namespace

KeptFiles kept_files(const StateDir& dir) {
  return {.settings = dir.settings(),
          .chosen = dir.path() / "settings.chosen",
          .checkpoints = dir.checkpoints(),
          .final_dir = dir.final_dir()};
}

Result<OwnSettings> choose_settings(const Config& config, const training::Dataset& train,
                                    const KeptFiles& files, Log& log) {
  TRY(TrainingSettings chosen, settings_of(config, train));
  auto kept = read_kept(files.settings, train);
  const auto read = read_chosen(files.chosen);
  if (!read) tell_unusable_choice(files.chosen, read.error(), log);
  const SettingsText last = read.value_or(SettingsText{});
  const bool resolved = kept && is_resolved(config.train.until, last);
  const gossip::Budget fresh =
      std::exchange(chosen.budget, resolved ? kept->training.budget : chosen.budget);
  TRY(OwnSettings own, complete(std::move(chosen)));
  if (!kept) {
    own.kept_unusable = !is_absent(files.settings, kept.error());
    if (own.kept_unusable) tell_unusable(files.settings, kept.error(), log);
    return own;
  }
  if (kept->text == own.text) return own;
  const SettingsText now = by_hand(config, own.text);
  const bool changed = std::ranges::any_of(
      now, [&](const auto& set) { return value_of(kept->text, set.first) != set.second; });
  const bool back = !changed && took_back(last, now, own, *kept, files);
  const std::string run = to_hex(own.text.fingerprint().view());
  if (changed && resolved && !training::find_checkpoints(files.checkpoints, run)) {
    own.training.budget = fresh;  // of a run that begins here and now
    TRY(own, complete(std::move(own.training)));
  }
  log.info(
      changed || back ? "settings.changed" : "settings.kept",
      {{"file", files.settings.string()},
       {"difference", bootstrap::diff(own.text, kept->text)},
       {"did",
        changed ? "begins another run, as set by hand"
        : back ? "goes back to the run that has checkpoints here: what was set by hand no longer is"
               : "goes on with those kept"}});
  return changed || back ? std::move(own) : std::move(*kept);
}

Result<void> keep_choice(const Config& config, const OwnSettings& own, const KeptFiles& files,
                         Log& log) {
  if (own.kept_unusable) set_unusable_aside(files.settings, log);
  const auto bring = [](const std::filesystem::path& file, const std::string& text) {
    const auto before = read_whole(file, bootstrap::Settings::kMaxText);
    return before && *before == text ? Result<void>() : write_whole(file, text);
  };
  const auto kept = read_whole(files.settings, bootstrap::Settings::kMaxText);
  const auto before = kept ? bootstrap::Settings::parse(*kept) : fail(kept.error());
  if (kept) TRY_VOID(bring(files.settings, own.text.text()));
  const auto is_kept = [&](const std::string& key) {
    return before && value_of(*before, key) == value_of(own.text, key);
  };
  const auto chosen = read_chosen(files.chosen);
  if (!chosen) set_unusable_aside(files.chosen, log);  // told by choose_settings()
  const SettingsText last = chosen.value_or(SettingsText{});
  SettingsText now = by_hand(config, own.text);
  if (now.contains("budget_samples"))
    now.emplace(kUntil, show_until(config.train.until));
  else if (const auto found = last.find(kUntil);
           found != last.end() && is_kept("budget_samples") && is_kept("budget_seconds"))
    now.insert(*found);  // where the budget that is kept came from
  TRY(const bootstrap::Settings text, bootstrap::Settings::from(std::move(now)));
  return bring(files.chosen, text.text());
}

}  // namespace starling::node
