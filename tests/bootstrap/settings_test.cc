#include "bootstrap/settings.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::bootstrap;

namespace {

Settings settings(std::map<std::string, std::string> values) {
  return *Settings::from(std::move(values));
}

SettingsVerdict mirrored(SettingsVerdict verdict) {
  switch (verdict) {
    case SettingsVerdict::adopt_theirs:
      return SettingsVerdict::they_adopt;
    case SettingsVerdict::they_adopt:
      return SettingsVerdict::adopt_theirs;
    default:
      return verdict;
  }
}

}  // namespace

TEST_SUITE("bootstrap/settings") {
  TEST_CASE("settings have one text, and the text gives them back") {
    const auto made = settings({{"model", "resnet50"}, {"lr", "1.7"}, {"img", "224"}});
    CHECK(made.text() == "img=224\nlr=1.7\nmodel=resnet50\n");
    const auto back = Settings::parse(made.text());
    REQUIRE(back.has_value());
    CHECK(*back == made);
    CHECK(back->fingerprint() == made.fingerprint());
    CHECK(settings({{"lr", "1.70"}}).fingerprint() != settings({{"lr", "1.7"}}).fingerprint());
  }

  TEST_CASE("texts that are not canonical are refused") {
    for (const std::string text : {"b=1\na=2\n", "a=1\na=2\n", "a=1", "a\n", "A=1\n", "=1\n",
                                   "a=\x01\n", "a b=1\n", "a=\xff\n"})
      CHECK(!Settings::parse(text).has_value());
    CHECK(Settings::parse("").has_value());
    CHECK(Settings::parse("a==\n").has_value());
    CHECK(!Settings::parse(std::string(Settings::kMaxText + 1, 'a')).has_value());
    CHECK(Settings::from({{"a", std::string(300, 'x')}}).error().detail.find("'a'") !=
          std::string::npos);
  }

  TEST_CASE("the decision table: more members, then more progress, then the smaller fingerprint") {
    const auto x = settings({{"lr", "0.8"}});
    const auto y = settings({{"lr", "1.7"}});
    const bool x_smaller = x.fingerprint() < y.fingerprint();
    struct Row {
      std::uint64_t here_alive, here_samples, there_alive, there_samples;
      SettingsVerdict verdict;
    };
    const auto tie = x_smaller ? SettingsVerdict::they_adopt : SettingsVerdict::adopt_theirs;
    for (const auto& row : {Row{3, 0, 2, 999, SettingsVerdict::they_adopt},
                            Row{2, 999, 3, 0, SettingsVerdict::adopt_theirs},
                            Row{2, 10, 2, 9, SettingsVerdict::they_adopt},
                            Row{2, 9, 2, 10, SettingsVerdict::adopt_theirs}, Row{0, 0, 0, 0, tie},
                            Row{5, 7, 5, 7, tie}}) {
      const SettingsSide here{x, {}, row.here_alive, row.here_samples};
      const SettingsSide there{y, {}, row.there_alive, row.there_samples};
      CHECK(decide(here, there).verdict == row.verdict);
      CHECK(decide(there, here).verdict == mirrored(row.verdict));
      CHECK(decide(here, {x, {}, row.there_alive, row.there_samples}).verdict ==
            SettingsVerdict::same);
    }
  }

  TEST_CASE("what a person forced on the losing side is never given up, and the diff says so") {
    const auto x = settings({{"lr", "0.8"}, {"img", "224"}});
    const auto y = settings({{"lr", "1.7"}, {"img", "224"}});
    const SettingsSide small{x, {"lr"}, 1, 0};
    const SettingsSide large{y, {}, 9, 0};
    const auto decision = decide(small, large);
    CHECK(decision.verdict == SettingsVerdict::refused);
    CHECK(decision.diff == "lr 0.8 here, 1.7 there");
    CHECK(decision.forced == "lr forced here");
    CHECK(decide(large, small).verdict == SettingsVerdict::refused);
    CHECK(decide(large, small).forced == "lr forced there");
    // Forcing what does not differ is no conflict, and neither is what the winner forced.
    CHECK(decide({x, {"img"}, 1, 0}, large).verdict == SettingsVerdict::adopt_theirs);
    CHECK(decide({x, {}, 1, 0}, {y, {"lr"}, 9, 0}).verdict == SettingsVerdict::adopt_theirs);
  }

  TEST_CASE("a long diff is cut, a missing key is shown") {
    std::map<std::string, std::string> many;
    for (char c = 'a'; c < 'm'; ++c) many[std::string(1, c)] = "1";
    const auto text = diff(settings(many), settings({}));
    CHECK(text.find("a 1 here, (none) there") == 0);
    CHECK(text.find("and 4 more") != std::string::npos);
  }
}
