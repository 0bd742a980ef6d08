#include "node/log_backend.h"

#include "tests/node/said.h"
#include "tests/node/snapshots.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <sstream>
#include <string>

using namespace starling;
using namespace starling::node;
using starling::node::testing::contains;
using namespace std::chrono_literals;

TEST_SUITE("node/log_backend") {
  TEST_CASE("a line is time, level, event and fields, and ends once") {
    std::ostringstream out;
    const ManualClock clock;
    LogBackend log({}, clock, out);

    log.warn("session.closed", {{"peer", "brisk-wren"}, {"after_s", 3}, {"why", "no reply\nX"}});

    const auto text = out.str();
    CHECK(text.size() > 21);
    CHECK(text[10] == 'T');
    CHECK(text[19] == 'Z');
    CHECK(text.substr(20) ==
          " WARN session.closed peer=brisk-wren after_s=3 why=\"no reply\\x0aX\"\n");
  }

  TEST_CASE("the JSON form is one object a line") {
    std::ostringstream out;
    const ManualClock clock;
    LogBackend log({.format = LineFormat::json}, clock, out);

    log.info("a.b", {{"name", "x\xff\n"}, {"count", 7}});

    const auto json = nlohmann::json::parse(out.str());
    CHECK(json.at("level") == "INFO");
    CHECK(json.at("event") == "a.b");
    CHECK(json.at("count") == 7);
    CHECK(std::ranges::count(out.str(), '\n') == 1);
  }

  TEST_CASE("the JSON form keeps numbers and switches as such, and texts of digits as texts") {
    std::ostringstream out;
    const ManualClock clock;
    LogBackend log({.format = LineFormat::json}, clock, out);
    constexpr double kNone = std::numeric_limits<double>::infinity();

    log.info("a.b", {{"most", ~std::uint64_t{0}},
                     {"least", -3},
                     {"small", 3e-7},
                     {"share", 12.3F},
                     {"large", 100'000.0},
                     {"on", true},
                     {"none", kNone},
                     {"peer", "12345678"},
                     {"word", "true"},
                     {"zeros", std::string("007")}});

    const auto json = nlohmann::json::parse(out.str());
    CHECK(json.at("most") == ~std::uint64_t{0});
    CHECK(json.at("least") == -3);
    CHECK(json.at("small") == 3e-7);
    CHECK(json.at("large") == 100'000);
    CHECK(contains(out.str(), R"("share":12.3,)"));
    CHECK(json.at("on") == true);
    CHECK(json.at("none") == "inf");
    CHECK(json.at("peer") == "12345678");
    CHECK(json.at("word") == "true");
    CHECK(json.at("zeros") == "007");
  }

  TEST_CASE("the JSON form is ASCII, because eight-bit control characters move a cursor, too") {
    std::ostringstream out;
    const ManualClock clock;
    LogBackend log({.format = LineFormat::json}, clock, out);
    const std::string name =
        "x\xc2\x9b"
        "2J gr\xc3\xbc\xc3\x9f";  // U+009B: CSI

    log.info("a.b", {{"name", name}});

    CHECK(
        std::ranges::all_of(out.str(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
    CHECK(nlohmann::json::parse(out.str()).at("name") == name);
  }

  TEST_CASE("lines below the level are not written, and the level can change") {
    std::ostringstream out;
    const ManualClock clock;
    LogBackend log({}, clock, out);
    log.debug("quiet");
    CHECK(out.str().empty());
    log.set_level(LogLevel::debug);
    log.debug("loud");
    CHECK(out.str().find("DEBUG loud") != std::string::npos);
  }

  TEST_CASE("a flood of one event is cut, counted and told, and hides no other event") {
    std::ostringstream out;
    ManualClock clock;
    LogBackend log({.per_event = 3}, clock, out);
    for (int i = 0; i < 100; ++i) log.warn("flood");
    log.warn("other");
    for (int i = 0; i < 5; ++i) log.error("error");
    CHECK(std::ranges::count(out.str(), '\n') == 3 + 1 + 5);

    clock.advance(61s);
    log.warn("flood");
    CHECK(out.str().find("flood suppressed=97") != std::string::npos);
    log.warn("flood");
    CHECK(out.str().ends_with("WARN flood\n"));
  }

  TEST_CASE("the last lines are kept, whatever is written, as text that moves no cursor") {
    std::ostringstream out;
    ManualClock clock;
    LogBackend log({.level = LogLevel::error, .per_event = 3}, clock, out);
    log.info("member.alive", {{"name", "x\x1b[2J\n"}, {"count", 7}});
    log.debug("exchange");
    log.set_level(LogLevel::debug);
    log.debug("exchange");
    for (int i = 0; i < 100; ++i) log.warn("flood");

    const auto kept = log.recent().after(0);
    REQUIRE(kept.size() == 4);
    CHECK(kept[0].level == LogLevel::info);
    CHECK(kept[0].event == "member.alive");
    CHECK(kept[0].text == R"(name="x\x1b[2J\x0a" count=7)");
    CHECK(kept[3].event == "flood");
    CHECK_FALSE(out.str().contains("member.alive"));
  }

  TEST_CASE("colours mark levels where they are wanted, and nothing else") {
    std::ostringstream out;
    const ManualClock clock;
    LogBackend log({.colour = LineColour::levels}, clock, out);
    log.info("calm");
    CHECK(out.str().find('\x1b') == std::string::npos);
    log.error("bad");
    CHECK(out.str().find("\x1b[31mERROR\x1b[0m bad") != std::string::npos);
  }
}
