#include "node/config/values.h"

#include "node/base/random.h"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>
#include <string_view>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

TEST_SUITE("node/values") {
  TEST_CASE("durations are read with their units") {
    CHECK(parse_duration("90s") == Duration(90s));
    CHECK(parse_duration("5m") == Duration(5min));
    CHECK(parse_duration("2h") == Duration(2h));
    CHECK(parse_duration("1d") == Duration(24h));
    CHECK(parse_duration("250ms") == Duration(250ms));
    CHECK(parse_duration("1h30m") == Duration(90min));
    CHECK(parse_duration("0.5s") == Duration(500ms));
    CHECK(parse_duration("0") == Duration(0));
  }

  TEST_CASE("a duration without a unit, with a sign or beyond a century is refused") {
    for (const auto* text : {"", "90", "s", "-5s", "+5s", "5 s", "5sec", "1e3s", "nan s", "5s ",
                             "99999999999h", "5m3"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_duration(text));
    }
  }

  TEST_CASE("counts refuse signs, fractions, rests and values out of range") {
    CHECK(parse_count("18446744073709551615", 0, std::numeric_limits<std::uint64_t>::max()) ==
          std::numeric_limits<std::uint64_t>::max());
    for (const auto* text : {"", "-1", "+1", "1.0", "1x", " 1", "0x10", "18446744073709551616"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_count(text, 0, std::numeric_limits<std::uint64_t>::max()));
    }
    CHECK(parse_count("9", 1, 8).error() == "a whole number from 1 to 8");
  }

  TEST_CASE("the end of a run is read in all four forms") {
    CHECK(parse_until("samples=240000")->amount == 240'000);
    CHECK(parse_until("samples=1.2M")->amount == 1'200'000);
    CHECK(parse_until("epochs=0.5")->kind == Until::Kind::epochs);
    CHECK(parse_until("steps=12k")->amount == 12'000);
    CHECK(parse_until("time=2h")->time == Duration(2h));
    for (const auto* text :
         {"", "samples", "samples=", "samples=0", "samples=1.5", "steps=-3", "epochs=0",
          "epochs=inf", "time=0", "time=5", "hours=2", "samples=240000x", "samples=99999999G"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_until(text));
    }
  }

  TEST_CASE("what is wrong with an end of the run is said with what is right") {
    const auto why = [](std::string_view text) { return parse_until(text).error(); };
    const auto says = [&](std::string_view text, std::string_view what) {
      CAPTURE(text);
      CAPTURE(why(text));
      CHECK(why(text).find(what) != std::string::npos);
    };
    says("time=5", "unit");
    says("time=2hours", "time=2h");
    says("samples=240000x", "k, M, G, T");
    says("samples=1e6", "samples=1.2M");
    says("epochs=", "epochs=18");
    says("samples=0", "samples above zero");
    says("steps=1.5", "a whole number of steps");
    says("epoch=3", "did you mean epochs=?");
    says("sample=3", "did you mean samples=?");
    says("epochs", "did you mean epochs=?");
    for (const auto* text : {"", "18", "2h", "top1=75.9"}) {
      says(text, "samples=N, epochs=E, steps=N or time=D");
      CHECK(why(text).find("did you mean") == std::string::npos);
    }
  }

  TEST_CASE("a schedule of image sides grows in both, and reads back as it is shown") {
    const auto stages = parse_resize("160@0.4,192@0.75");
    REQUIRE(stages.has_value());
    REQUIRE(stages->size() == 2);
    CHECK((*stages)[1].side == 192);
    CHECK((*stages)[1].until_share == 0.75);
    CHECK(show_resize(*stages) == "160@0.4,192@0.75");
    CHECK(parse_resize("off")->empty());
    CHECK(show_resize({}) == "off");
    for (const auto* text :
         {"", "160", "160@", "@0.4", "160@0", "160@1.1", "160@0.12345", "7@0.5", "1025@0.5",
          "160@0.4,", "160@0.4,160@0.8", "160@0.4,192@0.4", "192@0.4,160@0.8", "160@nan",
          "16@0.1,17@0.2,18@0.3,19@0.4,20@0.5,21@0.6"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_resize(text));
    }
  }

  TEST_CASE("what is shown reads back to the same value") {
    Rng rng(7);
    for (int i = 0; i < 2'000; ++i) {
      const Duration duration(
          static_cast<std::int64_t>(rng.below(std::uint64_t{1} << (1 + rng.below(45)))));
      CAPTURE(show_duration(duration));
      CHECK(parse_duration(show_duration(duration)) == duration);
      const Until samples{Until::Kind::samples, static_cast<double>(1 + rng.below(1'000'000'000)),
                          Duration{0}};
      CHECK(parse_until(show_until(samples)) == samples);
      const Until epochs{Until::Kind::epochs, static_cast<double>(1 + rng.below(9'999)) / 8,
                         Duration{0}};
      CAPTURE(show_until(epochs));
      CHECK(parse_until(show_until(epochs)) == epochs);
    }
  }

  TEST_CASE("addresses need a port, and brackets around the sixth version") {
    for (const auto* text :
         {"127.0.0.1:0", "[::]:7700", "[fe80::1%eth0]:1", "host.example:65535", ":7700"}) {
      CAPTURE(text);
      CHECK(parse_address(text));
    }
    for (const auto* text : {"", "host", "host:", "host:65536", "::1:7700", "[::1]", "a b:1",
                             "[]:1", "http://x:1", "x:1\n", "x\x1b:1"}) {
      CAPTURE(text);
      CHECK_FALSE(parse_address(text));
    }
  }

  TEST_CASE("a slip of the fingers finds its word, and a stranger finds none") {
    constexpr std::array<std::string_view, 4> kWords{"--batch", "--data", "--dir", "--device"};
    CHECK(nearest("--bacth", kWords) == "--batch");
    CHECK(nearest("--dat", kWords) == "--data");
    CHECK(nearest("--divice", kWords) == "--device");
    CHECK(nearest("--quantum", kWords).empty());
    constexpr std::array<std::string_view, 3> kShort{"--set", "id", "top"};
    for (const auto* stranger : {"--json", "-V", "zsh"}) {
      CAPTURE(stranger);
      CHECK(nearest(stranger, kShort).empty());
    }
    CHECK(nearest("--sett", kShort) == "--set");
    CHECK(nearest(std::string(10'000, 'x'), kWords).empty());
  }
}
