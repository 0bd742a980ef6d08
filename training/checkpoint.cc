#include "training/checkpoint.h"

#include "node/base/fault.h"
#include "node/base/hash.h"
#include "node/base/json_depth.h"
#include "node/base/posix_file.h"
#include "training/file_io.h"
#include "training/model_file.h"
#include "training/safetensors.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <stdio.h>  // renameat2()

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

namespace starling::training {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kModelName = "model.safetensors";
constexpr std::string_view kOptimizerName = "optim.safetensors";
constexpr std::string_view kStateName = "state.json";
constexpr std::string_view kLatestName = "latest";
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporaryPrefix = "tmp-";
constexpr std::size_t kRunDigits = 16;  // of a fingerprint, in the name of what was set aside
constexpr std::size_t kStepDigits = 9;  // leading zeros sort names as numbers for a billion steps
constexpr int kSchema = 1;
// The progress map names every node of the swarm: 16,384 x 100 bytes.
constexpr std::uint64_t kMaxState = std::uint64_t{4} << 20;
constexpr int kMaxStateDepth = 4;  // it is flat today

std::unexpected<Error> corrupt_checkpoint(std::string what) {
  return fail(Errc::corrupt, Doing::loading_checkpoint, std::move(what));
}

std::unexpected<Error> saving_error(const fs::path& path, const std::error_code& code) {
  return fail(errc_of_errno(code.value()), Doing::saving_checkpoint,
              path.string() + ": " + code.message());
}

// Errors of files below us, told as what the user asked for.
Error as_saving(Error error) {
  error.doing = Doing::saving_checkpoint;
  return error;
}
// A file that is not in the folder of a checkpoint is damage to it: not_found would say that there
// is no checkpoint. Where a link leads that has nothing at its end, the file may be whole.
Error as_loading(const fs::path& file, Error error) {
  error.doing = Doing::loading_checkpoint;
  if (error.code != Errc::not_found) return error;
  std::string dead = dead_link(file);
  if (!dead.empty()) return {Errc::permission, Doing::loading_checkpoint, std::move(dead)};
  error.code = Errc::corrupt;
  return error;
}

// Why a folder of checkpoints could not be listed.
Error listing_error(const fs::path& folder, const std::error_code& code) {
  std::string dead = dead_link(folder);
  if (!dead.empty()) return {Errc::permission, Doing::loading_checkpoint, std::move(dead)};
  return {errc_of_errno(code.value()), Doing::loading_checkpoint,
          folder.string() + ": " + code.message()};
}

std::string folder_name(std::int64_t step) {
  std::string digits = std::to_string(step);
  if (digits.size() < kStepDigits) digits.insert(0, kStepDigits - digits.size(), '0');
  return std::string(kPrefix) + digits;
}

// The step in a checkpoint's name; nothing for any other name.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (problem != std::errc{} || end != digits.data() + digits.size() || step < 0) {
    return std::nullopt;
  }
  return step;
}

// All checkpoints of a folder, newest first; those that were seen where it cannot be read.
std::vector<std::pair<std::int64_t, fs::path>> list(const fs::path& folder, std::error_code& code) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const auto step = step_of(it->path().filename().string());
    if (step) found.emplace_back(*step, it->path());
  }
  std::ranges::sort(found, std::greater{});
  return found;
}

// What a crash left: folders that were never renamed.
void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> left;
  for (fs::directory_iterator it(folder, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    if (it->path().filename().string().starts_with(kTemporaryPrefix)) left.push_back(it->path());
  }
  for (const fs::path& path : left) fs::remove_all(path, ignored);
}

// All but the newest `keep` up to the one that was just written. Those beyond it are of a replica
// that this one did not come from: it begins anew. Counted among the newest they would push out
// every checkpoint of this one, and be loaded in its place.
void remove_others(const fs::path& folder, std::int64_t written, std::size_t keep) {
  std::size_t kept = 0;
  std::error_code ignored;  // what cannot be removed now is tried again after the next checkpoint
  for (const auto& [step, path] : list(folder, ignored)) {
    if (step <= written && kept < std::max<std::size_t>(keep, 1))
      ++kept;
    else
      fs::remove_all(path, ignored);
  }
}

// Makes `folder` the one of this run: what another run saved there goes beside it, what this one
// had to put beside comes back. A rename replaces no folder that holds anything.
Result<void> take_folder(const fs::path& folder, const std::string& fingerprint) {
  const auto rename_folder = [](const fs::path& from, const fs::path& to) -> Result<void> {
    std::error_code code;
    fs::rename(from, to, code);
    if (!code) return flush_folder(from.parent_path());
    return fail(errc_of_errno(code.value()), Doing::saving_checkpoint,
                from.string() + " is to be renamed to " + to.string() +
                    ", because a folder holds the checkpoints of one run: " + code.message() +
                    "; move one of them away");
  };
  TRY(const std::string held, run_of_checkpoints(folder));
  if (!held.empty() && held != fingerprint)
    TRY_VOID(rename_folder(folder, set_aside_folder(folder, held)));
  const fs::path aside = set_aside_folder(folder, fingerprint);
  std::error_code ignored;
  // Whoever set ours aside died before it had one of its own: only an empty folder is removed.
  if (held.empty() && fs::exists(aside, ignored)) {
    remove_leftovers(folder);
    fs::remove(folder, ignored);
  }
  if (!fs::exists(folder, ignored) && fs::exists(aside, ignored))
    TRY_VOID(rename_folder(aside, folder));
  return {};
}

Result<void> write_files(const fs::path& folder, const Model& model, const Checkpoint& checkpoint) {
  const Metadata metadata{{"step", std::to_string(checkpoint.state.step)},
                          {"samples", std::to_string(checkpoint.state.samples)}};
  StateFile file{checkpoint.state, {}, {}};
  Hasher model_hasher;
  TRY_VOID(write_model(folder / kModelName, model, checkpoint.replica, metadata, &model_hasher));
  file.model_hash = model_hasher.finish();
  fault::pass("checkpoint.before_optimizer");
  Hasher optimizer_hasher;
  TRY_VOID(write_vector(folder / kOptimizerName, model, checkpoint.momenta, metadata,
                        &optimizer_hasher));
  file.optimizer_hash = optimizer_hasher.finish();
  fault::pass("checkpoint.before_state");
  TRY_VOID(write_whole_file(folder / kStateName, format_state(file)));
  return flush_folder(folder);
}

// Points `latest` at a name, in one step: readers see the old link or the new one.
void link_latest(const fs::path& folder, const std::string& name) {
  std::error_code ignored;  // the link is a convenience for people; loading does not read it
  const fs::path temporary = folder / (std::string(kTemporaryPrefix) + std::string(kLatestName));
  fs::remove(temporary, ignored);
  fs::create_directory_symlink(name, temporary, ignored);
  fs::rename(temporary, folder / kLatestName, ignored);
}

std::error_code rename_to(const fs::path& from, const fs::path& to, unsigned flags) {
  if (fault::maybe("checkpoint.before_rename")) return std::make_error_code(std::errc::io_error);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return {};
  return {errno, std::generic_category()};
}

// The folder that is in the way, out of it: for file systems that cannot exchange two names.
//
// Returns: where it is now. A digit more is a name of the same step, one that loading finds should
//          the process die before the rename that follows.
Result<fs::path> make_way(const fs::path& to) {
  const std::string digits = to.filename().string().substr(kPrefix.size());
  fs::path aside = to.parent_path() / (std::string(kPrefix) + "0" + digits);
  std::error_code code;
  fs::remove_all(aside, code);
  fs::rename(to, aside, code);
  if (code) return saving_error(to, code);
  return aside;
}

// Puts the finished folder in its place. A checkpoint of the same step (training was resumed and
// saved before its first step) changes places with it in one step, so that there is one under this
// name whenever the process dies.
Result<void> move_into_place(const fs::path& from, const fs::path& to) {
  std::error_code code;
  fs::path old = from;  // where the one before is when all is done
  const bool taken = fs::exists(to, code);
  if (!taken || rename_to(from, to, RENAME_EXCHANGE)) {
    if (taken) {
      TRY(old, make_way(to));
    }
    if (code = rename_to(from, to, 0); code) {
      std::error_code ignored;  // under its other name it is as good
      if (taken) fs::rename(old, to, ignored);
      return saving_error(to, code);
    }
  }
  fault::pass("checkpoint.after_rename");
  TRY_VOID(flush_folder(to.parent_path()));
  if (taken) fs::remove_all(old, code);
  return {};
}

template <class T>
Result<T> field(const Json& json, const char* key) {
  const auto found = json.find(key);
  const bool right = [&] {
    if (found == json.end()) return false;
    if constexpr (std::is_same_v<T, std::string>) return found->is_string();
    if constexpr (std::is_floating_point_v<T>) return found->is_number();
    if constexpr (std::is_unsigned_v<T>) return found->is_number_unsigned();
    return found->is_number_integer();
  }();
  if (!right)
    return corrupt_checkpoint(std::string("state.json: ") + key + " is missing or of another type");
  return found->template get<T>();
}

Result<Hash> hash_field(const Json& json, const char* key) {
  TRY(const std::string text, field<std::string>(json, key));
  const auto hash = Hash::from_hex(text);
  if (!hash) return corrupt_checkpoint(std::string("state.json: ") + key + " is no hash");
  return *hash;
}

// A progress map that is not UTF-8 must not cost the checkpoint: its bad bytes are replaced.
std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Over everything but itself: nlohmann sorts keys, so the text is the same whoever writes it.
std::string check_of(const Json& without_check) {
  return to_hex(hash_of(as_bytes(dump(without_check, -1))).view());
}

Result<StateFile> read_state(const fs::path& folder) {
  auto text = read_whole_file(folder / kStateName, kMaxState);
  if (!text) return fail(as_loading(folder / kStateName, std::move(text).error()));
  auto file = parse_state(as_text(*text));
  if (file) return file;
  Error why = std::move(file).error();
  why.detail.insert(0, folder.string() + "/");  // it begins with the file's name
  return fail(std::move(why));
}

Result<SafetensorsFile> read_hashed(const fs::path& path, const Model& model,
                                    const Hash& expected) {
  const std::uint64_t most = kMaxSafetensorsHeader + 8 * model.layout.size();
  TRY(SafetensorsFile file, SafetensorsFile::read(path, most));
  if (file.hash() != expected)
    return corrupt_checkpoint(path.string() + ": its hash is another than written");
  return file;
}

}  // namespace

bool is_unread(Errc code) {
  return code == Errc::permission || code == Errc::io_failed || code == Errc::version_mismatch;
}

std::string format_state(const StateFile& file) {
  const TrainingState& state = file.state;
  Json json{
      {"schema", kSchema},
      {"step", state.step},
      {"samples", state.samples},
      {"steps_since_adoption", state.steps_since_adoption},
      {"epoch", state.cursor.epoch},
      {"position", state.cursor.position},
      {"progress_share", state.progress_share},
      {"progress_map", state.progress_map},
      {"settings_fingerprint", state.settings_fingerprint},
      {"model_hash", to_hex(file.model_hash.view())},
      {"optimizer_hash", to_hex(file.optimizer_hash.view())},
  };
  json["check"] = check_of(json);
  return dump(json, 2) + "\n";
}

Result<StateFile> parse_state(std::string_view text) {
  if (text.size() > kMaxState) return corrupt_checkpoint("state.json: too long");
  if (!nests_at_most(text, kMaxStateDepth))
    return corrupt_checkpoint("state.json: nested too deep");
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return corrupt_checkpoint("state.json: not a JSON object");
  TRY(const auto schema, field<std::int64_t>(json, "schema"));
  if (schema != kSchema) {
    return fail(Errc::version_mismatch, Doing::loading_checkpoint,
                "state.json has schema " + std::to_string(schema) + ", this build reads " +
                    std::to_string(kSchema));
  }
  TRY(const auto check, field<std::string>(json, "check"));
  json.erase("check");
  if (check != check_of(json))
    return corrupt_checkpoint("state.json: its check is another than written");

  StateFile file;
  TRY(file.state.step, field<std::int64_t>(json, "step"));
  TRY(file.state.samples, field<std::uint64_t>(json, "samples"));
  TRY(file.state.steps_since_adoption, field<std::int64_t>(json, "steps_since_adoption"));
  TRY(file.state.cursor.epoch, field<std::uint64_t>(json, "epoch"));
  TRY(file.state.cursor.position, field<std::uint64_t>(json, "position"));
  TRY(file.state.progress_share, field<double>(json, "progress_share"));
  TRY(file.state.progress_map, field<std::string>(json, "progress_map"));
  TRY(file.state.settings_fingerprint, field<std::string>(json, "settings_fingerprint"));
  TRY(file.model_hash, hash_field(json, "model_hash"));
  TRY(file.optimizer_hash, hash_field(json, "optimizer_hash"));
  if (file.state.step < 0 || file.state.steps_since_adoption < 0) {
    return corrupt_checkpoint("state.json: a count of steps below zero");
  }
  return file;
}

fs::path set_aside_folder(const fs::path& folder, std::string_view fingerprint) {
  std::string digits(fingerprint);
  // It comes from a file: no name of another place.
  std::erase_if(digits, [](char c) { return !((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')); });
  fs::path aside = folder;
  return aside += "-" + digits.substr(0, kRunDigits);
}

Result<std::string> run_of_checkpoints(const fs::path& folder) {
  std::error_code code;
  const auto all = list(folder, code);
  std::optional<Error> unread;
  if (code) unread = listing_error(folder, code);
  if (unread && unread->code == Errc::not_found) unread.reset();
  for (const auto& [step, path] : all) {
    auto state = read_state(path);
    if (state) return std::move(state->state.settings_fingerprint);
    if (!unread && is_unread(state.error().code)) unread = std::move(state).error();
  }
  if (unread) return fail(*std::move(unread));
  return std::string();
}

std::optional<fs::path> find_checkpoints(const fs::path& folder, std::string_view fingerprint) {
  for (const fs::path& one : {folder, set_aside_folder(folder, fingerprint)})
    if (const auto run = run_of_checkpoints(one); run && *run == fingerprint) return one;
  return std::nullopt;
}

Result<fs::path> save_checkpoint(const CheckpointOptions& options, const Model& model,
                                 const Checkpoint& checkpoint) {
  std::error_code code;
  if (fault::maybe("checkpoint.before_folder"))
    return saving_error(options.folder, std::make_error_code(std::errc::read_only_file_system));
  if (auto ours = take_folder(options.folder, checkpoint.state.settings_fingerprint); !ours)
    return fail(as_saving(std::move(ours).error()));
  fs::create_directories(options.folder, code);
  if (code) return saving_error(options.folder, code);
  remove_leftovers(options.folder);

  const std::string name = folder_name(checkpoint.state.step);
  const fs::path temporary = options.folder / (std::string(kTemporaryPrefix) + name);
  fs::create_directory(temporary, code);
  if (code) return saving_error(temporary, code);
  if (auto written = write_files(temporary, model, checkpoint); !written) {
    fs::remove_all(temporary, code);  // gives a full disk its space back
    return fail(as_saving(std::move(written).error()));
  }
  fs::path final_path = options.folder / name;
  if (auto moved = move_into_place(temporary, final_path); !moved) {
    return fail(as_saving(std::move(moved).error()));
  }
  fault::pass("checkpoint.before_latest");
  link_latest(options.folder, name);
  fault::pass("checkpoint.before_remove");
  remove_others(options.folder, checkpoint.state.step, options.keep);
  return final_path;
}

Result<Checkpoint> load_checkpoint_folder(const fs::path& folder, const Model& model) {
  TRY(StateFile file, read_state(folder));

  Checkpoint checkpoint;
  checkpoint.state = std::move(file.state);
  {
    auto model_file = read_hashed(folder / kModelName, model, file.model_hash);
    if (!model_file) return fail(as_loading(folder / kModelName, std::move(model_file).error()));
    TRY(checkpoint.replica, parse_model(*model_file, model));
  }
  auto optimizer_file = read_hashed(folder / kOptimizerName, model, file.optimizer_hash);
  if (!optimizer_file)
    return fail(as_loading(folder / kOptimizerName, std::move(optimizer_file).error()));
  TRY(checkpoint.momenta, parse_vector(*optimizer_file, model));
  return checkpoint;
}

Result<Checkpoint> load_checkpoint(const CheckpointOptions& options, const Model& model, Log& log) {
  std::error_code code;
  const auto all = list(options.folder, code);
  if (code) return fail(listing_error(options.folder, code));
  if (all.empty()) {
    return fail(Errc::not_found, Doing::loading_checkpoint,
                options.folder.string() + ": no checkpoint");
  }
  std::optional<Error> newest_problem;
  for (const auto& [step, path] : all) {
    auto checkpoint = load_checkpoint_folder(path, model);
    // Whoever went on from the one before would remove it with its next saves.
    if (checkpoint || is_unread(checkpoint.error().code)) return checkpoint;
    log.warn("checkpoint.damaged", {{"path", path.string()},
                                    {"reason", checkpoint.error().detail},
                                    {"action", "trying the one before"}});
    if (!newest_problem) newest_problem = std::move(checkpoint).error();
  }
  return fail(*std::move(newest_problem));
}

}  // namespace starling::training
