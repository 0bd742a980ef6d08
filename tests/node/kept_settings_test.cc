#include "node/kept_settings.h"

#include "node/log_backend.h"
#include "node/state_dir.h"
#include "tests/support/temp_folder.h"
#include "training/data/spec.h"

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
  std::filesystem::path file = dir.path() / "settings";
  training::DataSets data = *training::open_data(
      *training::parse_data_spec("synthetic:size=16,channels=1,train=64,val=16"), nullptr, log);
  Config config;

  Fixture() {
    config.train.model = "small";
    config.train.until = {.kind = Until::Kind::samples, .amount = 1'000, .time = {}};
  }
  void force(const std::string& key) { config.origins[key] = {}; }
  Result<OwnSettings> choose() { return choose_settings(config, *data.train, file, log); }
  bool logged(std::string_view part) const { return lines.str().find(part) != std::string::npos; }
};

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

  TEST_CASE("kept settings that make no sense here are named and left alone") {
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
    const auto own = node.choose();
    REQUIRE(own.has_value());
    CHECK(own->text == before->text);
    CHECK(node.logged("settings.not_kept"));
  }
}
