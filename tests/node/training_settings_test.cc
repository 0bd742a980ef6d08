#include "node/training_settings.h"

#include "node/config/values.h"
#include "node/log_backend.h"
#include "training/data/spec.h"

#include <doctest/doctest.h>

#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::node;

namespace {

struct SettingsFixture {
  SteadyClock clock;
  std::ostringstream lines;
  LogBackend log{{}, clock, lines};
  training::DataSets data = *training::open_data(
      *training::parse_data_spec("synthetic:size=16,channels=1,train=64,val=16"), nullptr, log);
  Config config;

  SettingsFixture() { config.train.model = "small"; }
  SettingsText text() { return to_text(*settings_of(config, *data.train), Hash{}); }
};

// Images of classes with these names; none is ever read.
class NamedClasses final : public training::Dataset {
 public:
  explicit NamedClasses(std::vector<std::string> names) : names_(std::move(names)) {}

  std::uint32_t size() const override { return 100; }
  std::uint32_t channels() const override { return 1; }
  std::optional<training::ImageSize> uniform_size() const override {
    return training::ImageSize{16, 16};
  }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string name() const override { return "named set"; }
  Hash id() const override { return {}; }
  Result<void> read(std::uint32_t, training::Sample&) const override { return {}; }
  std::string sample_name(std::uint32_t) const override { return "image"; }

 private:
  std::vector<std::string> names_;
};

}  // namespace

TEST_SUITE("node/training_settings") {
  TEST_CASE("settings come back from their text, whatever the degree") {
    SettingsFixture node;
    for (const auto degree : {std::optional<std::uint32_t>(), std::optional<std::uint32_t>(8)}) {
      node.config.swarm.degree = degree;
      const auto text = node.text();
      CHECK(text.at("degree") == (degree ? "8" : "auto"));
      const auto parsed = parse_settings(text);
      REQUIRE(parsed.has_value());
      CHECK(parsed->degree == degree.value_or(0));
      CHECK(to_text(*parsed, Hash{}) == text);
    }
  }

  TEST_CASE("the rule of the final consensus is a setting where it is not the mean") {
    SettingsFixture node;
    const auto before = node.text();
    CHECK_FALSE(before.contains("aggregator"));
    for (const auto& [chosen, rule] :
         {std::pair{FinishRule::median, gossip::consensus::Rule::median},
          std::pair{FinishRule::trimmed, gossip::consensus::Rule::trimmed}}) {
      node.config.finish.aggregator = chosen;
      const auto text = node.text();
      const auto parsed = parse_settings(text);
      REQUIRE(parsed.has_value());
      CHECK(parsed->rule == rule);
      CHECK(to_text(*parsed, Hash{}) == text);
    }
    auto text = before;
    for (const std::string word : {"mean", "mode", ""}) {
      CAPTURE(word);
      text["aggregator"] = word;
      CHECK_FALSE(parse_settings(text).has_value());
    }
    node.config.origins["finish.aggregator"] = {};
    CHECK(forced_settings(node.config).contains("aggregator"));
  }

  TEST_CASE("who may end the run is a setting where it is the admin") {
    SettingsFixture node;
    const auto before = node.text();
    CHECK_FALSE(before.contains("finish_by"));
    node.config.finish.by = FinishBy::admin;
    const auto text = node.text();
    CHECK(text.at("finish_by") == "admin");
    const auto parsed = parse_settings(text);
    REQUIRE(parsed.has_value());
    CHECK(parsed->finish_by == FinishBy::admin);
    CHECK(to_text(*parsed, Hash{}) == text);
    auto wrong = before;
    for (const std::string word : {"any", "everybody", ""}) {
      CAPTURE(word);
      wrong["finish_by"] = word;
      CHECK_FALSE(parse_settings(wrong).has_value());
    }
    node.config.origins["finish.by"] = {};
    CHECK(forced_settings(node.config).contains("finish_by"));
  }

  TEST_CASE("where the admin ends the run, a node needs a certificate, which names the admin") {
    const NodeId self{std::array<std::byte, 32>{std::byte{1}}};
    const NodeId admin{std::array<std::byte, 32>{std::byte{2}}};
    const std::optional<transport::Membership> certified =
        transport::Membership{.swarm = {}, .admin = admin, .chain = {}};
    TrainingSettings settings;
    CHECK(check_ends_by_order(settings, std::nullopt, self, Doing::starting).has_value());
    CHECK_FALSE(ends_by_order_of(settings, certified).has_value());

    settings.finish_by = FinishBy::admin;
    CHECK(check_ends_by_order(settings, certified, self, Doing::starting).has_value());
    CHECK(ends_by_order_of(settings, certified) == std::optional(admin));
    CHECK(ends_by_order_of(settings, std::nullopt) == std::optional(NodeId{}));
    const auto refused = check_ends_by_order(settings, std::nullopt, self, Doing::starting);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Errc::bad_config);
    CHECK(refused.error().detail.find("finish.by = admin") != std::string::npos);
    CHECK(refused.error().detail.find("starling key certify " + to_hex(self.view())) !=
          std::string::npos);
  }

  TEST_CASE("smaller images at the start are a setting, and fit the model") {
    SettingsFixture node;
    const auto before = node.text();
    CHECK_FALSE(before.contains("resize"));
    node.config.train.resize = {{8, 0.3}, {12, 0.6}};
    const auto text = node.text();
    CHECK(text.at("resize") == "8@0.3,12@0.6");
    const auto parsed = parse_settings(text);
    REQUIRE(parsed.has_value());
    CHECK(parsed->resize == std::vector<training::ImageStage>{{8, 0.3}, {12, 0.6}});
    CHECK(to_text(*parsed, Hash{}) == text);

    auto wrong = before;
    for (const std::string word : {"off", "", "16@0.5", "12@0.5,8@0.6", "8@0.5,"}) {
      CAPTURE(word);
      wrong["resize"] = word;
      CHECK_FALSE(parse_settings(wrong).has_value());
    }
    // The data has 16 pixels a side, and this model takes no fewer than 8.
    node.config.train.resize = {{16, 0.5}};
    const auto refused = settings_of(node.config, *node.data.train);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().detail.find("train.resize = 16@0.5") != std::string::npos);
    node.config.train.model = "resnet50";
    node.config.train.img = 64;
    node.config.train.resize = {{8, 0.5}};
    CHECK_FALSE(settings_of(node.config, *node.data.train).has_value());
    node.config.origins["train.resize"] = {};
    CHECK(forced_settings(node.config).contains("resize"));
  }

  TEST_CASE("images that the default model does not take are trained with the small one") {
    SettingsFixture node;
    node.config.train.model = Config{}.train.model;
    REQUIRE(node.config.train.model == "resnet50");
    CHECK(node.text().at("model") == "small");

    node.config.origins["train.model"] = {};
    CHECK(node.text().at("model") == "resnet50");
    node.config.origins.clear();
    node.config.train.img = 16;
    CHECK(node.text().at("model") == "resnet50");
    node.config.train.img = 64;
    CHECK(node.text().at("model") == "resnet50");
  }

  TEST_CASE("data whose labels mean other classes fits no model") {
    const NamedClasses three({"ant", "bee", "cat"});
    const NamedClasses two({"ant", "cat"});
    const NamedClasses other({"ant", "bee", "cow"});
    const NamedClasses more({"ant", "bee", "cat", "dog"});
    const NamedClasses numbers({"0", "1", "2"});
    const NamedClasses first_numbers({"0", "1"});
    const NamedClasses holed_numbers({"0", "2"});
    const auto fits = [](const training::Dataset& data, const training::Dataset& swarm) {
      training::ModelSpec model;
      model.classes = swarm.classes();
      model.class_names = training::names_of_classes(swarm);
      return check_classes(model, data, Doing::joining);
    };
    CHECK(fits(three, three).has_value());
    CHECK(fits(numbers, numbers).has_value());
    // Nobody can tell whether they agree; IDX files and folders may be of the same images.
    CHECK(fits(numbers, three).has_value());
    CHECK(fits(three, numbers).has_value());
    CHECK(fits(first_numbers, numbers).has_value());
    CHECK(fits(first_numbers, three).has_value());
    CHECK_FALSE(fits(holed_numbers, numbers).has_value());
    CHECK_FALSE(fits(other, three).has_value());
    CHECK_FALSE(fits(more, three).has_value());
    CHECK_FALSE(fits(more, numbers).has_value());
    const auto refused = fits(two, three);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Errc::data_failed);
    CHECK(refused.error().detail.find("3 classes, named set has 2") != std::string::npos);
    CHECK(refused.error().detail.find("an empty one for each class") != std::string::npos);
  }

  TEST_CASE("the names of the classes are a setting where there are names") {
    SettingsFixture node;
    CHECK_FALSE(node.text().contains("class_names"));
    const auto named = *settings_of(node.config, NamedClasses({"ant", "bee", "cat"}));
    const auto text = to_text(named, Hash{});
    const auto parsed = parse_settings(text);
    REQUIRE(parsed.has_value());
    CHECK(parsed->model == named.model);
    CHECK(to_text(*parsed, Hash{}) == text);
    CHECK(to_text(*settings_of(node.config, NamedClasses({"ant", "cow", "cat"})), Hash{}) != text);
    for (const std::string word : {"", "ant", "zz"}) {
      CAPTURE(word);
      auto wrong = text;
      wrong["class_names"] = word;
      CHECK_FALSE(parse_settings(wrong).has_value());
    }
  }

  TEST_CASE("an extension makes other settings of the same run") {
    SettingsFixture node;
    const auto before = node.text();
    node.config.run.extend = 3;
    const auto after = node.text();
    CHECK(after != before);
    const auto parsed = parse_settings(after);
    REQUIRE(parsed.has_value());
    CHECK(parsed->extension == 3);
    node.config.origins["run.extend"] = {};
    CHECK(forced_settings(node.config).contains("extend"));
  }

  TEST_CASE("a degree that no topology has is refused by name") {
    SettingsFixture node;
    for (const std::string degree : {"0", "17", "four", ""}) {
      CAPTURE(degree);
      auto text = node.text();
      text["degree"] = degree;
      const auto parsed = parse_settings(text);
      REQUIRE_FALSE(parsed.has_value());
      CHECK(parsed.error().detail.find("degree") != std::string::npos);
    }
  }

  TEST_CASE("a budget of time is whole seconds, and every run has an end") {
    SettingsFixture node;
    using std::chrono::milliseconds;
    for (const auto& [time, whole] :
         {std::pair{milliseconds(900), false}, std::pair{milliseconds(1'500), false},
          std::pair{milliseconds(1'000), true}, std::pair{milliseconds(61'000), true}}) {
      CAPTURE(time.count());
      node.config.train.until = {.kind = Until::Kind::time, .amount = 0, .time = time};
      const auto made = settings_of(node.config, *node.data.train);
      REQUIRE(made.has_value() == whole);
      if (whole) CHECK(parse_settings(to_text(*made, Hash{}))->budget.time == time);
      if (!whole) CHECK(made.error().detail.find("whole seconds") != std::string::npos);
    }
    auto text = node.text();
    text["budget_seconds"] = "0";
    const auto endless = parse_settings(text);
    REQUIRE_FALSE(endless.has_value());
    CHECK(endless.error().detail.find("budget_samples") != std::string::npos);
  }

  TEST_CASE("a budget that hangs on this node's data or batch is given up for a peer's") {
    SettingsFixture node;
    node.config.origins["train.until"] = {};
    for (const auto& [text, forced] : {std::pair{"samples=1000", true}, std::pair{"time=5s", true},
                                       std::pair{"epochs=3", false}, std::pair{"steps=3", false}}) {
      CAPTURE(text);
      node.config.train.until = *parse_until(text);
      for (const std::string key : {"budget_samples", "budget_seconds"}) {
        CHECK(settings_by_hand(node.config).contains(key));
        CHECK(forced_settings(node.config).contains(key) == forced);
      }
    }
    node.config.swarm.adopt = Adopt::never;
    CHECK(forced_settings(node.config).contains("budget_samples"));
  }

  TEST_CASE("a degree that a person chose is never given up") {
    SettingsFixture node;
    CHECK_FALSE(forced_settings(node.config).contains("degree"));
    node.config.origins["swarm.degree"] = {};
    CHECK(forced_settings(node.config).contains("degree"));
  }
}
