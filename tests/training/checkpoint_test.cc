#include "training/checkpoint.h"

#include "tests/support/temp_folder.h"
#include "tests/training/small_model.h"
#include "training/file_io.h"
#include "training/genesis.h"

#include <doctest/doctest.h>

#include <fstream>
#include <string>

using namespace starling;
using namespace starling::training;
using testing::small_model;
namespace fs = std::filesystem;

namespace {

Checkpoint checkpoint_at(const Model& model, std::int64_t step) {
  Checkpoint checkpoint;
  checkpoint.replica = make_genesis(model, static_cast<std::uint64_t>(step)).replica;
  checkpoint.replica.batches_tracked = step;
  checkpoint.momenta = make_genesis(model, 99).replica.parameters;
  checkpoint.state.step = step;
  checkpoint.state.samples = static_cast<std::uint64_t>(step) * 64;
  checkpoint.state.cursor = {3, 17};
  checkpoint.state.progress_share = 0.25;
  checkpoint.state.progress_map = "node \"a\": 12\nnode b: 34";
  checkpoint.state.settings_fingerprint = "0123abcd";
  return checkpoint;
}

Checkpoint checkpoint_of(const Model& model, std::int64_t step, const std::string& fingerprint) {
  Checkpoint checkpoint = checkpoint_at(model, step);
  checkpoint.state.settings_fingerprint = fingerprint;
  return checkpoint;
}

void truncate_to_half(const fs::path& path) { fs::resize_file(path, fs::file_size(path) / 2); }

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const auto last = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
}

}  // namespace

TEST_SUITE("training/checkpoint") {
  TEST_CASE("a checkpoint comes back bit for bit") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path() / "checkpoints", 3};
    const Checkpoint checkpoint = checkpoint_at(model, 8'412);
    NullLog log;

    const auto saved = save_checkpoint(options, model, checkpoint);
    REQUIRE(saved.has_value());
    const auto loaded = load_checkpoint(options, model, log);

    REQUIRE(loaded.has_value());
    CHECK(loaded->state == checkpoint.state);
    CHECK(loaded->replica == checkpoint.replica);
    CHECK(loaded->momenta == checkpoint.momenta);
    CHECK(saved->filename() == "step-000008412");
    CHECK(fs::read_symlink(options.folder / "latest") == "step-000008412");
  }

  TEST_CASE("the newest is loaded, and only as many are kept as asked") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path(), 2};
    NullLog log;

    for (const std::int64_t step : {9, 10, 100, 1'000'000'000}) {
      REQUIRE(save_checkpoint(options, model, checkpoint_at(model, step)).has_value());
    }

    CHECK(load_checkpoint(options, model, log)->state.step == 1'000'000'000);
    CHECK(fs::exists(folder.path() / "step-000000100"));
    CHECK_FALSE(fs::exists(folder.path() / "step-000000010"));
    CHECK_FALSE(fs::exists(folder.path() / "step-000000009"));
  }

  TEST_CASE("a run that begins anew in the folder of a longer one keeps its own checkpoints") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path(), 2};
    NullLog log;
    for (const std::int64_t step : {100, 1'400, 1'600})
      REQUIRE(save_checkpoint(options, model, checkpoint_at(model, step)).has_value());

    for (const std::int64_t step : {300, 600}) {
      CAPTURE(step);
      const auto saved = save_checkpoint(options, model, checkpoint_at(model, step));
      REQUIRE(saved.has_value());
      CHECK(fs::exists(*saved));
      CHECK(load_checkpoint(options, model, log)->state.step == step);
    }
    CHECK(fs::exists(folder.path() / "step-000000300"));
    CHECK_FALSE(fs::exists(folder.path() / "step-000001600"));
  }

  TEST_CASE("the first save of another run sets the checkpoints of the one before aside") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path() / "checkpoints", 3};
    const std::string first(64, 'a');
    const std::string second(64, 'b');
    const fs::path aside = folder.path() / "checkpoints-aaaaaaaaaaaaaaaa";
    const fs::path other = folder.path() / "checkpoints-bbbbbbbbbbbbbbbb";
    NullLog log;
    const auto save = [&](std::int64_t step, const std::string& run) {
      const auto saved = save_checkpoint(options, model, checkpoint_of(model, step, run));
      REQUIRE(saved.has_value());
      CHECK(*saved == options.folder / ("step-00000000" + std::to_string(step)));
    };
    const auto newest = [&](const std::string& run) {
      const auto found = find_checkpoints(options.folder, run);
      REQUIRE(found.has_value());
      const auto loaded = load_checkpoint({*found, 3}, model, log);
      REQUIRE(loaded.has_value());
      CHECK(loaded->state.settings_fingerprint == run);
      return loaded->state.step;
    };
    for (const std::int64_t step : {5, 6, 7}) save(step, first);
    CHECK_FALSE(find_checkpoints(options.folder, second).has_value());

    // A step of the same name, too.
    for (const std::int64_t step : {2, 5}) save(step, second);

    CHECK(newest(second) == 5);
    CHECK(newest(first) == 7);
    CHECK(fs::exists(aside / "step-000000005"));
    CHECK(fs::read_symlink(aside / "latest") == "step-000000007");
    CHECK(fs::read_symlink(options.folder / "latest") == "step-000000005");

    SUBCASE("whoever saves next has the name, and nobody loses anything") {
      for (int slips = 0; slips < 2; ++slips) {
        save(8, first);
        CHECK_FALSE(fs::exists(aside));
        CHECK(newest(second) == 5);
        save(5, second);
        CHECK_FALSE(fs::exists(other));
        CHECK(newest(first) == 8);
      }
      CHECK(fs::exists(aside / "step-000000006"));
    }
    SUBCASE("a process that dies between the two names leaves both") {
      fs::rename(options.folder, other);
      CHECK(newest(first) == 7);
      CHECK(newest(second) == 5);
      save(8, first);
      CHECK(fs::exists(options.folder / "step-000000007"));
    }
    SUBCASE("a process that dies before its first checkpoint is whole leaves the name free") {
      fs::remove_all(options.folder);
      fs::create_directories(options.folder / "tmp-step-000000006");
      save(8, first);
      CHECK(newest(first) == 8);
      CHECK(find_checkpoints(options.folder, first) == options.folder);
      CHECK(fs::exists(options.folder / "step-000000007"));
    }
    SUBCASE("what lies where they would be set aside is not overwritten") {
      fs::create_directories(other / "step-000000001");
      const auto saved = save_checkpoint(options, model, checkpoint_of(model, 8, first));
      REQUIRE_FALSE(saved.has_value());
      CHECK(saved.error().detail.find(other.string()) != std::string::npos);
      CHECK(newest(second) == 5);
      CHECK(newest(first) == 7);
    }
  }

  TEST_CASE("a fingerprint that is none names no other folder than one beside") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path() / "checkpoints", 3};
    REQUIRE(save_checkpoint(options, model, checkpoint_of(model, 1, "../../a")).has_value());

    REQUIRE(save_checkpoint(options, model, checkpoint_of(model, 1, "b")).has_value());

    CHECK(fs::exists(folder.path() / "checkpoints-a" / "step-000000001"));
  }

  TEST_CASE("any damaged file makes loading fall back to the checkpoint before") {
    const Model model = small_model();
    NullLog log;
    for (const char* name : {"model.safetensors", "optim.safetensors", "state.json"}) {
      for (int damage = 0; damage < 3; ++damage) {
        CAPTURE(name);
        CAPTURE(damage);
        const TempFolder folder;
        const CheckpointOptions options{folder.path(), 3};
        REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 1)).has_value());
        REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 2)).has_value());
        const fs::path victim = folder.path() / "step-000000002" / name;

        if (damage == 0) truncate_to_half(victim);
        if (damage == 1) fs::remove(victim);
        if (damage == 2 && std::string(name) != "state.json") flip_last_byte(victim);
        if (damage == 2 && std::string(name) == "state.json") {
          auto text = read_whole_file(victim, 1 << 20);
          REQUIRE(text.has_value());
          std::string changed(as_text(*text));
          changed.replace(changed.find("128"), 3, "129");  // the samples
          std::ofstream(victim) << changed;
        }

        const auto loaded = load_checkpoint(options, model, log);
        REQUIRE(loaded.has_value());
        CHECK(loaded->state.step == 1);
      }
    }
  }

  TEST_CASE("a checkpoint that cannot be read, or is a newer program's, is no damaged one") {
    const Model model = small_model();
    NullLog log;
    for (const Errc why : {Errc::permission, Errc::version_mismatch}) {
      const TempFolder folder;
      const CheckpointOptions options{folder.path(), 3};
      REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 1)).has_value());
      REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 2)).has_value());
      const fs::path state = folder.path() / "step-000000002" / "state.json";
      if (why == Errc::permission) {
        fs::remove(state);
        fs::create_directory(state);
      } else {
        std::ofstream(state) << R"({"schema": 2})";
      }

      const auto loaded = load_checkpoint(options, model, log);

      REQUIRE_FALSE(loaded.has_value());
      CHECK(loaded.error().code == why);
      CHECK(loaded.error().detail.find(state.string()) != std::string::npos);
    }
  }

  TEST_CASE("where nobody can tell whose checkpoints there are, no save removes them") {
    const Model model = small_model();
    const TempFolder folder;
    const CheckpointOptions options{folder.path() / "checkpoints", 3};
    const auto hide = [&](const fs::path& where) {
      for (const auto& one : fs::directory_iterator(where)) {
        const fs::path state = one.path() / "state.json";
        if (one.is_symlink()) continue;
        fs::rename(state, one.path() / "hidden");
        fs::create_directory(state);
      }
    };
    for (const std::int64_t step : {5, 6, 7})
      REQUIRE(save_checkpoint(options, model, checkpoint_of(model, step, "aa")).has_value());
    hide(options.folder);
    CHECK(run_of_checkpoints(options.folder).error().code == Errc::permission);

    const auto saved = save_checkpoint(options, model, checkpoint_of(model, 2, "bb"));

    REQUIRE_FALSE(saved.has_value());
    CHECK(saved.error().code == Errc::permission);
    CHECK(saved.error().detail.find("state.json") != std::string::npos);
    for (const char* name : {"step-000000005", "step-000000006", "step-000000007"})
      CHECK(fs::exists(options.folder / name / "hidden"));
    CHECK(run_of_checkpoints(folder.path() / "none") == "");
  }

  TEST_CASE("a state that nests without end is refused, at a start and at a save") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path(), 3};
    NullLog log;
    REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 1)).has_value());
    REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 2)).has_value());
    const std::string nested = std::string(100'000, '[') + std::string(100'000, ']');
    std::ofstream(folder.path() / "step-000000002" / "state.json")
        << R"({"schema":1,"check":"","progress_map":)" << nested << '}';

    const auto loaded = load_checkpoint(options, model, log);

    REQUIRE(loaded.has_value());
    CHECK(loaded->state.step == 1);
    CHECK(save_checkpoint(options, model, checkpoint_at(model, 3)).has_value());
  }

  TEST_CASE("when all are damaged the newest one's reason is told, and none is not_found") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path(), 3};
    NullLog log;

    CHECK(load_checkpoint(options, model, log).error().code == Errc::not_found);
    REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 1)).has_value());
    const fs::path checkpoint = folder.path() / "step-000000001";
    truncate_to_half(checkpoint / "model.safetensors");

    CHECK(load_checkpoint(options, model, log).error().code == Errc::corrupt);
    // A checkpoint without one of its files is there all the same: whoever goes on without it says
    // so.
    fs::remove(checkpoint / "model.safetensors");
    CHECK(load_checkpoint(options, model, log).error().code == Errc::corrupt);
    fs::remove(checkpoint / "state.json");
    const auto loaded = load_checkpoint(options, model, log);
    CHECK(loaded.error().code == Errc::corrupt);
    CHECK(loaded.error().detail.find("state.json") != std::string::npos);
  }

  TEST_CASE("a folder that cannot be read is not one without checkpoints") {
    const TempFolder folder;
    const fs::path loop = folder.path() / "checkpoints";
    fs::create_symlink(loop, loop);
    NullLog log;

    const auto loaded = load_checkpoint({loop, 3}, small_model(), log);

    REQUIRE_FALSE(loaded.has_value());
    CHECK(loaded.error().code == Errc::permission);
    CHECK(loaded.error().detail.find(loop.string()) != std::string::npos);
  }

  TEST_CASE("a folder or a file that is a link to nothing is not gone: its disk is not there") {
    const Model model = small_model();
    const TempFolder folder;
    const CheckpointOptions options{folder.path() / "checkpoints", 3};
    NullLog log;
    const auto check = [&](const fs::path& link, const auto& outcome) {
      REQUIRE_FALSE(outcome.has_value());
      CAPTURE(outcome.error().detail);
      CHECK(outcome.error().code == Errc::permission);
      CHECK(outcome.error().detail.find(link.string() + ": a symbolic link to unmounted") !=
            std::string::npos);
    };
    fs::create_symlink("unmounted", options.folder);
    check(options.folder, load_checkpoint(options, model, log));
    check(options.folder, run_of_checkpoints(options.folder));
    check(options.folder, save_checkpoint(options, model, checkpoint_at(model, 1)));
    fs::remove(options.folder);

    for (const std::int64_t step : {1, 2})
      REQUIRE(save_checkpoint(options, model, checkpoint_at(model, step)).has_value());
    for (const char* name : {"state.json", "model.safetensors", "optim.safetensors"}) {
      const fs::path file = options.folder / "step-000000002" / name;
      fs::rename(file, folder.path() / "moved");
      fs::create_symlink("unmounted", file);
      check(file, load_checkpoint(options, model, log));
      fs::remove(file);
      fs::rename(folder.path() / "moved", file);
    }
    CHECK(load_checkpoint(options, model, log)->state.step == 2);
  }

  TEST_CASE("what a crash left is removed by the next checkpoint and never loaded") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path(), 3};
    NullLog log;
    fs::create_directory(folder.path() / "tmp-step-000000009");
    std::ofstream(folder.path() / "tmp-step-000000009" / "model.safetensors") << "half";

    CHECK_FALSE(load_checkpoint(options, model, log).has_value());
    REQUIRE(save_checkpoint(options, model, checkpoint_at(model, 1)).has_value());

    CHECK_FALSE(fs::exists(folder.path() / "tmp-step-000000009"));
    CHECK(load_checkpoint(options, model, log)->state.step == 1);
  }

  TEST_CASE("saving the same step again replaces it") {
    const TempFolder folder;
    const Model model = small_model();
    const CheckpointOptions options{folder.path(), 3};
    NullLog log;
    Checkpoint checkpoint = checkpoint_at(model, 4);
    REQUIRE(save_checkpoint(options, model, checkpoint).has_value());
    checkpoint.state.samples = 5;

    REQUIRE(save_checkpoint(options, model, checkpoint).has_value());

    CHECK(load_checkpoint(options, model, log)->state.samples == 5);
  }

  TEST_CASE("a full disk is reported as such") {
    if (!fs::exists("/dev/full")) return;

    // /dev/full says ENOSPC to every write, as a full disk does.
    const auto written = write_whole_file("/dev/full", "x");

    REQUIRE_FALSE(written.has_value());
    CHECK(written.error().code == Errc::disk_full);
  }

  TEST_CASE("a folder that cannot be made is an error, not a crash") {
    const TempFolder folder;
    const Model model = small_model();
    std::ofstream(folder.path() / "file") << "x";

    const auto saved = save_checkpoint({folder.path() / "file" / "checkpoints", 3}, model,
                                       checkpoint_at(model, 1));

    REQUIRE_FALSE(saved.has_value());
    CHECK(saved.error().doing == Doing::saving_checkpoint);
    CHECK(saved.error().code == Errc::not_found);  // ENOTDIR
  }

  TEST_CASE("a progress map that is not text does not cost the checkpoint") {
    StateFile file;
    file.state.progress_map = "ok \xff\xfe broken";

    const auto parsed = parse_state(format_state(file));

    REQUIRE(parsed.has_value());
    CHECK(parsed->state.progress_map.starts_with("ok "));
  }
}
