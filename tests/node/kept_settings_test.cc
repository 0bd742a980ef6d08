#include "node/kept_settings.h"

#include "node/config/values.h"
#include "node/final_result.h"
#include "node/log_backend.h"
#include "node/state_dir.h"
#include "tests/support/temp_folder.h"
#include "training/checkpoint.h"
#include "training/data/spec.h"
#include "training/genesis.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>

using namespace starling;
using namespace starling::node;

namespace {

struct Fixture {
  SteadyClock clock;
  std::ostringstream lines;
  LogBackend log{{}, clock, lines};
  TempFolder dir;
  KeptFiles files{.settings = dir.path() / "settings",
                  .chosen = dir.path() / "settings.chosen",
                  .checkpoints = dir.path() / "checkpoints",
                  .final_dir = dir.path() / "final"};
  std::filesystem::path file = files.settings;
  training::DataSets data = images(64);
  Config config;

  Fixture() {
    config.train.model = "small";
    config.train.until = {.kind = Until::Kind::samples, .amount = 1'000, .time = {}};
  }
  void force(const std::string& key) { config.origins[key] = {}; }
  training::DataSets images(int count) {
    return *training::open_data(*training::parse_data_spec("synthetic:size=16,channels=1,train=" +
                                                           std::to_string(count) + ",val=16"),
                                nullptr, log);
  }
  void until(const std::string& text) {
    config.train.until = *parse_until(text);
    force("train.until");
  }
  Result<OwnSettings> choose() { return choose_settings(config, *data.train, files, log); }
  // A start that comes to train, and writes its settings.
  OwnSettings start() {
    auto own = choose();
    REQUIRE(own.has_value());
    REQUIRE(keep_choice(config, *own, files, log));
    REQUIRE(write_whole(files.settings, own->text.text()));
    return *std::move(own);
  }
  void save(const OwnSettings& own, std::int64_t step) {
    training::Checkpoint checkpoint;
    checkpoint.replica = training::make_genesis(own.model, 1).replica;
    checkpoint.momenta = checkpoint.replica.parameters;
    checkpoint.state.step = step;
    checkpoint.state.settings_fingerprint = to_hex(own.text.fingerprint().view());
    REQUIRE(training::save_checkpoint({files.checkpoints, 3}, own.model, checkpoint));
  }
  std::filesystem::path aside() const { return dir.path() / "settings.unusable"; }
  bool logged(std::string_view part) const { return lines.str().find(part) != std::string::npos; }
};

std::string text_kept(const std::filesystem::path& file) {
  return read_whole(file, bootstrap::Settings::kMaxText).value_or("unreadable");
}

}  // namespace

TEST_SUITE("node/kept_settings") {
  TEST_CASE("without kept settings those of the configuration count") {
    Fixture node;
    const auto own = node.choose();
    REQUIRE(own.has_value());
    CHECK(own->text.values().at("budget_samples") == "1000");
    CHECK(own->model.plan.spec.name == "small");
    CHECK(node.lines.str().empty());
  }

  TEST_CASE("a restart goes on with the settings that the node had adopted") {
    Fixture node;
    node.config.train.lr = 0.5;
    const auto adopted = node.choose();
    REQUIRE(write_whole(node.file, adopted->text.text()));

    node.config.train.lr = 0.25;  // a default: nobody chose it
    const auto own = node.choose();

    REQUIRE(own.has_value());
    CHECK(own->text == adopted->text);
    CHECK(own->training.schedule.peak == 0.5);
    CHECK(node.logged("settings.kept"));
  }

  TEST_CASE("a key that was set by hand and says otherwise begins another run") {
    Fixture node;
    const auto before = node.choose();
    REQUIRE(write_whole(node.file, before->text.text()));

    node.config.train.until.amount = 2'000;
    node.force("train.until");
    const auto own = node.choose();

    REQUIRE(own.has_value());
    CHECK(own->text.values().at("budget_samples") == "2000");
    CHECK(node.logged("budget_samples 2000 here, 1000 there"));
  }

  TEST_CASE("a key that was set by hand and says the same keeps the rest") {
    Fixture node;
    node.config.train.lr = 0.5;
    const auto before = node.choose();
    REQUIRE(write_whole(node.file, before->text.text()));

    node.config.train.lr.reset();
    node.force("train.until");
    const auto own = node.choose();

    REQUIRE(own.has_value());
    CHECK(own->training.schedule.peak == 0.5);
  }

  TEST_CASE("a budget is resolved once, whatever batch and data a restart has") {
    for (const std::string text : {"steps=100", "epochs=3"}) {
      CAPTURE(text);
      Fixture node;
      node.until(text);
      node.config.train.batch = 16;
      const OwnSettings before = node.start();

      node.config.train.batch = 8;
      node.data = node.images(65);
      for (int starts = 0; starts < 2; ++starts) CHECK(node.start().text == before.text);
      CHECK_FALSE(node.logged("settings.changed"));

      node.until("epochs=5");
      CHECK(node.start().text.values().at("budget_samples") == "325");
      CHECK(node.logged("settings.changed"));
    }
  }

  TEST_CASE("another run has a budget of its own, though the text is the same") {
    Fixture node;
    node.until("steps=100");
    node.config.train.batch = 16;
    CHECK(node.start().text.values().at("budget_samples") == "1600");

    node.config.train.lr = 0.2;
    node.force("train.lr");
    node.config.train.batch = 64;
    CHECK(node.start().text.values().at("budget_samples") == "6400");
    node.config.train.batch = 8;
    CHECK(node.start().text.values().at("budget_samples") == "6400");
  }

  TEST_CASE("a text that did not lead to the budget that is kept is resolved again") {
    Fixture node;
    node.until("epochs=3");
    CHECK(node.start().text.values().at("budget_samples") == "192");
    node.config.train.until = {.kind = Until::Kind::samples, .amount = 1'000, .time = {}};
    node.config.origins.erase("train.until");
    node.config.train.lr = 0.2;
    node.force("train.lr");
    CHECK(node.start().text.values().at("budget_samples") == "1000");

    node.until("epochs=3");
    CHECK(node.start().text.values().at("budget_samples") == "192");
  }

  TEST_CASE("a budget that was adopted stays where the node's own text is the same") {
    Fixture node;
    node.until("epochs=3");
    auto values = node.start().text.values();
    values["budget_samples"] = "150";
    const auto adopted = bootstrap::Settings::from(values);
    REQUIRE(write_whole(node.file, adopted->text()));

    for (int starts = 0; starts < 2; ++starts) CHECK(node.choose()->text == *adopted);
    // Samples are the same wherever they are counted: they are what was asked for.
    node.until("samples=1000");
    node.start();
    REQUIRE(write_whole(node.file, adopted->text()));
    CHECK(node.choose()->text.values().at("budget_samples") == "1000");
  }

  TEST_CASE("a crash between a new budget and its first save does not bring the old one back") {
    Fixture node;
    node.until("epochs=3");
    node.start();
    node.until("epochs=5");

    const auto own = node.choose();
    REQUIRE(own.has_value());
    REQUIRE(keep_choice(node.config, *own, node.files, node.log));  // and then it dies

    CHECK(node.choose()->text.values().at("budget_samples") == "320");
  }

  TEST_CASE("a slip that is taken back goes on with the run before, and only a slip is") {
    Fixture node;
    node.until("epochs=3");
    const OwnSettings right = node.start();
    node.save(right, 7);
    node.config.train.lr = 0.2;
    node.force("train.lr");
    const OwnSettings slip = node.start();
    CHECK(slip.training.schedule.peak == 0.2);
    bool saved = false;
    SUBCASE("before the slip saved anything") {}
    SUBCASE("after it did") { saved = true; }
    if (saved) node.save(slip, 1);

    node.config.train.lr.reset();
    node.config.origins.erase("train.lr");
    CHECK(node.choose()->text == right.text);
    CHECK(node.logged("goes back"));

    // Nobody misses what was never saved.
    std::filesystem::remove_all(node.files.checkpoints);
    for (const auto& entry : std::filesystem::directory_iterator(node.dir.path()))
      if (entry.is_directory()) std::filesystem::remove_all(entry.path());
    CHECK(node.choose()->text == slip.text);
  }

  TEST_CASE("a finished run is kept without the options that began it") {
    Fixture node;
    node.until("epochs=3");
    node.save(node.start(), 7);
    node.config.train.lr = 0.2;
    node.force("train.lr");
    const OwnSettings finished = node.start();
    node.save(finished, 1);
    gossip::consensus::CertificateMessage held;
    held.certificate.fingerprint = finished.text.fingerprint();
    std::filesystem::create_directory(node.files.final_dir);
    REQUIRE(write_whole(node.files.final_dir / "certificate.json", format_certificate(held)));

    node.config.train.lr.reset();
    node.config.origins.erase("train.lr");

    CHECK(node.choose()->text == finished.text);
  }

  TEST_CASE(
      "kept settings that make no sense here are named, and set aside before others are kept") {
    Fixture node;
    const auto before = node.choose();
    auto values = before->text.values();
    SUBCASE("not settings at all") { REQUIRE(write_whole(node.file, "hello\n")); }
    SUBCASE("of fewer classes than the data has") {
      values["classes"] = "2";
      REQUIRE(write_whole(node.file, bootstrap::Settings::from(values)->text()));
    }
    SUBCASE("with a genesis that this version does not draw") {
      values["genesis"] = std::string(64, 'a');
      REQUIRE(write_whole(node.file, bootstrap::Settings::from(values)->text()));
    }
    SUBCASE("with a key that this version does not know") {
      values["flux"] = "1";
      REQUIRE(write_whole(node.file, bootstrap::Settings::from(values)->text()));
    }
    const std::string bytes = text_kept(node.file);

    const auto own = node.choose();
    REQUIRE(own.has_value());
    CHECK(own->text == before->text);
    CHECK(node.logged("settings.not_kept"));
    CHECK(node.logged(node.aside().string()));
    CHECK(text_kept(node.file) == bytes);  // as after a dry run

    REQUIRE(keep_choice(node.config, *own, node.files, node.log));
    CHECK(text_kept(node.aside()) == bytes);
    CHECK_FALSE(std::filesystem::exists(node.file));
    node.lines.str("");
    CHECK(node.start().text == before->text);
    CHECK(node.lines.str().empty());
  }

  TEST_CASE("a folder or a link to nothing in the place of kept settings is set aside") {
    Fixture node;
    SUBCASE("a folder") { node.dir.write("settings/notes", "hello\n"); }
    SUBCASE("a link to nothing") { std::filesystem::create_symlink("elsewhere", node.file); }
    const auto there = std::filesystem::symlink_status(node.file).type();

    const OwnSettings own = node.start();

    CHECK(node.logged("settings.not_kept"));
    CHECK(std::filesystem::symlink_status(node.aside()).type() == there);
    CHECK(text_kept(node.file) == own.text.text());
  }

  TEST_CASE("a choice that cannot be used is told, and set aside before the next one is written") {
    Fixture node;
    SUBCASE("damaged") { REQUIRE(write_whole(node.files.chosen, "hello\n")); }
    SUBCASE("a link to nothing") {
      std::filesystem::create_symlink("elsewhere", node.files.chosen);
    }
    const auto there = std::filesystem::symlink_status(node.files.chosen).type();
    const auto aside = node.dir.path() / "settings.chosen.unusable";
    node.force("train.model");

    node.start();

    CHECK(node.logged("settings.not_kept"));
    CHECK(node.logged(aside.string()));
    CHECK(std::filesystem::symlink_status(aside).type() == there);
    CHECK(text_kept(node.files.chosen).find("model") != std::string::npos);
    node.lines.str("");
    node.start();
    CHECK_FALSE(node.logged("settings.not_kept"));
  }

  TEST_CASE("kept settings that cannot be set aside are told before they are replaced") {
    Fixture node;
    REQUIRE(write_whole(node.file, "hello\n"));
    node.dir.write("settings.unusable/notes", "what somebody keeps there\n");

    const auto own = node.choose();
    REQUIRE(own.has_value());
    node.lines.str("");
    REQUIRE(keep_choice(node.config, *own, node.files, node.log));

    CHECK(node.logged("settings.not_kept"));
    CHECK(node.logged("cannot be renamed to " + node.aside().string()));
  }
}
