// What is left of checkpoints when writing one fails, when the process dies in the middle, and when
// somebody damaged the files.
#include "node/base/fault.h"
#include "node/base/random.h"
#include "tests/support/temp_folder.h"
#include "tests/training/small_model.h"
#include "training/checkpoint.h"
#include "training/file_io.h"
#include "training/genesis.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;
using testing::small_model;
namespace fs = std::filesystem;

namespace {

Checkpoint seeded_checkpoint(const Model& model, std::int64_t step, std::uint64_t seed) {
  Checkpoint checkpoint;
  checkpoint.replica = make_genesis(model, seed).replica;
  checkpoint.momenta = make_genesis(model, 99).replica.parameters;
  checkpoint.state.step = step;
  checkpoint.state.samples = seed;
  return checkpoint;
}

bool same(const Checkpoint& a, const Checkpoint& b) {
  return a.state == b.state && a.replica == b.replica && a.momenta == b.momenta;
}

// A checkpoint that is written, and another one of the same step, for which there is no other room.
struct SameStepTwice {
  Model model = small_model();
  TempFolder folder;
  CheckpointOptions options{folder.path() / "checkpoints", 1};
  Checkpoint before = seeded_checkpoint(model, 1, 11);
  Checkpoint after = seeded_checkpoint(model, 1, 22);
  fs::path saved = save_checkpoint(options, model, before).value();
};

// STARLING_FAULTS is what the library was built with, too.
#ifdef STARLING_FAULTS

bool is_of_checkpoints(std::string_view name) {
  return name.starts_with("file.") || name.starts_with("folder.") ||
         name.starts_with("checkpoint.");
}

// Saves in a process of its own that dies at a passing of a point; false if it came to the end.
bool dies_saving(const CheckpointOptions& options, const Model& model, const Checkpoint& checkpoint,
                 const fault::PointSpec& point, std::uint64_t after) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const fault::Armed armed(point, {.after = after, .effect = fault::Effect::kill});
    const bool saved = save_checkpoint(options, model, checkpoint).has_value();
    ::_exit(saved ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) {
    CHECK(WTERMSIG(status) == SIGKILL);
    return true;
  }
  CHECK(WEXITSTATUS(status) == 0);
  return false;
}

#endif

// One change to a file, of the kinds that disks and hands make.
void mutate(const fs::path& newest, const fs::path& older, Rng& rng) {
  const char* kNames[] = {"model.safetensors", "optim.safetensors", "state.json"};
  const std::string name = kNames[rng.below(3)];
  Bytes bytes = *read_whole_file(newest / name, 1U << 26);
  switch (rng.below(6)) {
    case 0:  // a few bits
      for (std::uint64_t flips = 1 + rng.below(4); flips > 0; --flips)
        bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1U << rng.below(8));
      break;
    case 1:
      bytes.resize(rng.below(bytes.size()));
      break;
    case 2: {  // two stretches change places
      const std::size_t size = 1 + rng.below(std::min<std::size_t>(4'096, bytes.size() / 3));
      const std::size_t first = rng.below(bytes.size() - 2 * size);
      const std::size_t second = first + size + rng.below(bytes.size() - first - 2 * size + 1);
      std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(first),
                       bytes.begin() + static_cast<std::ptrdiff_t>(first + size),
                       bytes.begin() + static_cast<std::ptrdiff_t>(second));
      break;
    }
    case 3: {  // the header of the generation before and the body of this one
      const Bytes old = *read_whole_file(older / name, 1U << 26);
      const std::size_t head =
          std::min({old.size(), bytes.size(), std::size_t{1} + rng.below(2'000)});
      std::copy_n(old.begin(), head, bytes.begin());
      break;
    }
    case 4:  // a whole file of the generation before
      bytes = *read_whole_file(older / name, 1U << 26);
      break;
    default:  // a stretch of zeros, as an unwritten page is
      for (std::size_t at = rng.below(bytes.size()), n = 0; at < bytes.size() && n < 4'096;
           ++at, ++n)
        bytes[at] = std::byte{0};
  }
  fs::remove(newest / name);
  auto file = OutputFile::create(newest / name);
  REQUIRE(file.has_value());
  REQUIRE(file->write(bytes).has_value());
}

// How many damaged checkpoints: STARLING_MUTATIONS, or a thousand.
std::uint64_t mutations() {
  const char* text = std::getenv("STARLING_MUTATIONS");
  return text == nullptr ? 1'000 : std::strtoull(text, nullptr, 10);
}

}  // namespace

TEST_SUITE("training/checkpoint_faults") {
#ifdef STARLING_FAULTS
  TEST_CASE("whenever a process dies saving, the newest checkpoint or the one before loads") {
    const Model model = small_model();
    NullLog log;
    std::size_t deaths = 0;
    for (const auto& point : fault::kPoints) {
      if (!is_of_checkpoints(point.name)) continue;
      CAPTURE(point.name);
      // Another step, and the same one again (resumed and saved before its first step).
      for (const std::int64_t step : {2, 1}) {
        CAPTURE(step);
        bool died = true;
        std::uint64_t passing = 0;
        for (; died; ++passing) {
          CAPTURE(passing);
          const TempFolder folder;
          const CheckpointOptions options{folder.path() / "checkpoints", 1};
          const Checkpoint before = seeded_checkpoint(model, 1, 11);
          const Checkpoint after = seeded_checkpoint(model, step, 22);
          REQUIRE(save_checkpoint(options, model, before).has_value());

          died = dies_saving(options, model, after, point, passing);

          const auto loaded = load_checkpoint(options, model, log);
          REQUIRE(loaded.has_value());
          CHECK((same(*loaded, after) || (died && same(*loaded, before))));
          REQUIRE(save_checkpoint(options, model, after).has_value());
          CHECK(same(*load_checkpoint(options, model, log), after));
          // A large file is written in many pieces that are alike.
          if (passing > 12 && point.name == "file.write") passing += 10;
        }
        deaths += passing - 1;
      }
    }
    MESSAGE(deaths, " deaths");
    CHECK(deaths > 30);
  }

  TEST_CASE("a checkpoint that fails anywhere is not counted as written and the one before stays") {
    const Model model = small_model();
    NullLog log;
    for (const auto& point : fault::kPoints) {
      if (!is_of_checkpoints(point.name) || point.kind == fault::Kind::dies) continue;
      for (const std::int64_t step : {2, 1}) {
        CAPTURE(point.name);
        CAPTURE(step);
        const TempFolder folder;
        const CheckpointOptions options{folder.path() / "checkpoints", 2};
        const Checkpoint before = seeded_checkpoint(model, 1, 11);
        const Checkpoint after = seeded_checkpoint(model, step, 22);
        REQUIRE(save_checkpoint(options, model, before).has_value());
        bool failed = true;
        for (std::uint64_t passing = 0; failed && passing < 8; ++passing) {
          CAPTURE(passing);
          {
            const fault::Armed armed(point, {.after = passing, .times = 1});
            const auto saved = save_checkpoint(options, model, after);
            failed = !saved;
            if (!saved) CHECK(saved.error().doing == Doing::saving_checkpoint);
          }
          const auto loaded = load_checkpoint(options, model, log);
          REQUIRE(loaded.has_value());
          CHECK((same(*loaded, before) || same(*loaded, after)));
          CHECK((failed || same(*loaded, after)));
        }
        REQUIRE(save_checkpoint(options, model, after).has_value());
        CHECK(same(*load_checkpoint(options, model, log), after));
      }
    }
  }

  TEST_CASE("where names cannot be exchanged, a rename that fails costs no checkpoint") {
    const SameStepTwice twice;
    const auto& [model, folder, options, before, after, saved] = twice;
    NullLog log;
    const auto& rename = *fault::find_point("checkpoint.before_rename");
    {
      const fault::Armed armed(rename, {.times = 2});
      CHECK_FALSE(save_checkpoint(options, model, after).has_value());
      CHECK(armed.reached() == 2);
    }
    CHECK(same(*load_checkpoint_folder(saved, model), before));

    const fault::Armed armed(rename, {.times = 1});
    REQUIRE(save_checkpoint(options, model, after).has_value());
    CHECK(same(*load_checkpoint_folder(saved, model), after));
    CHECK(std::distance(fs::directory_iterator(options.folder), {}) == 2);  // and `latest`
  }
#endif

  TEST_CASE("a checkpoint that was moved out of the way loads, unless the new one is in place") {
    const SameStepTwice twice;
    const auto& [model, folder, options, before, after, saved] = twice;
    NullLog log;
    fs::rename(saved, options.folder / "step-0000000001");
    CHECK(same(*load_checkpoint(options, model, log), before));

    REQUIRE(save_checkpoint(options, model, after).has_value());
    CHECK(same(*load_checkpoint(options, model, log), after));
  }

  TEST_CASE("a damaged checkpoint is refused or equal in content, and the one before loads") {
    const Model model = small_model();
    const TempFolder folder;
    const CheckpointOptions options{folder.path() / "checkpoints", 2};
    const Checkpoint first = seeded_checkpoint(model, 1, 11);
    const Checkpoint second = seeded_checkpoint(model, 2, 22);
    REQUIRE(save_checkpoint(options, model, first).has_value());
    const auto newest = save_checkpoint(options, model, second);
    REQUIRE(newest.has_value());
    const fs::path older = newest->parent_path() / "step-000000001";
    const fs::path kept = folder.path() / "kept";
    fs::copy(*newest, kept);
    Rng rng(606);
    NullLog log;
    std::uint64_t refused = 0;

    const std::uint64_t count = mutations();
    for (std::uint64_t i = 0; i < count; ++i) {
      CAPTURE(i);
      mutate(*newest, older, rng);
      const auto loaded = load_checkpoint_folder(*newest, model);
      if (loaded) {
        REQUIRE(same(*loaded, second));
      } else {
        ++refused;
        if (i % 64 == 0) REQUIRE(same(*load_checkpoint(options, model, log), first));
      }
      for (const char* name : {"model.safetensors", "optim.safetensors", "state.json"})
        fs::copy_file(kept / name, *newest / name, fs::copy_options::overwrite_existing);
    }

    MESSAGE(refused, " of ", count, " refused, the others equal");
    CHECK(refused > count / 2);
    CHECK(same(*load_checkpoint(options, model, log), second));
  }
}
