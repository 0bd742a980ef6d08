#include "node/bench/bench.h"

#include "node/cli/verbs.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <sstream>
#include <string>
#include <vector>

using namespace starling::node;

namespace {

struct Said {
  int code = 0;
  std::string out;
  std::string err;
};

int measure(const Arguments& arguments, const Terminal& terminal) {
  const std::array table{bench::kCodecBench, bench::kOptimBench};
  return bench::carry_out(table, arguments, terminal);
}

Said say(const std::vector<std::string>& words) {
  std::ostringstream out;
  std::ostringstream err;
  const Surroundings surroundings{{}, Terminal{out, err}, VerbHooks{.bench = &measure}};
  const int code = run_command_line(words, surroundings);
  return {code, out.str(), err.str()};
}

nlohmann::json figures_of(const std::vector<std::string>& words) {
  const auto said = say(words);
  CAPTURE(said.err);
  REQUIRE(said.code == 0);
  const auto json = nlohmann::json::parse(said.out);
  CHECK(json.at("schema") == 1);
  CHECK(json.at("bench") == words.at(1));
  CHECK(json.at("machine").at("cores") >= 1);
  CHECK_FALSE(json.at("machine").at("cpu").get<std::string>().empty());
  return json;
}

// A spread is whole and in order, and its median is not zero.
void check_spread(const nlohmann::json& spread) {
  CHECK(spread.at("min") <= spread.at("q1"));
  CHECK(spread.at("q1") <= spread.at("median"));
  CHECK(spread.at("median") <= spread.at("q3"));
  CHECK(spread.at("q3") <= spread.at("max"));
  CHECK(spread.at("median") > 0);
}

}  // namespace

TEST_SUITE("node/bench") {
  TEST_CASE("codec reports times, bytes and kept energy of every level") {
    const auto json = figures_of({"bench", "codec", "--n", "400000", "--repeats", "3", "--json"});
    CHECK(json.at("params").at("n") == 400'000);
    REQUIRE(json.at("levels").size() == 7);
    double bytes_before = 0;
    double sent_before = 0;
    for (const auto& row : json.at("levels")) {
      CAPTURE(row.dump());
      for (const auto* stage : {"encode_cpu_ms", "apply_cpu_ms", "exchange_cpu_ms", "exchange_ms",
                                "floor_cpu_ms", "encode_over_floor"})
        check_spread(row.at(stage));
      CHECK(row.at("bytes") > bytes_before);
      CHECK(row.at("sent_energy") > sent_before);
      CHECK(row.at("sent_energy") < 1);
      bytes_before = row.at("bytes");
      sent_before = row.at("sent_energy");
      if (row.at("level") > "L2") continue;
      // Within a block a threshold takes exactly the largest ones.
      CHECK(row.at("kept_energy_in_blocks") == doctest::Approx(1).epsilon(1e-4));
      CHECK(row.at("kept_energy") > 0.98);
      CHECK(row.at("kept_energy") <= doctest::Approx(1));
    }
  }

  TEST_CASE("codec measures one level on the path that was asked for") {
    const auto json = figures_of({"bench", "codec", "--n", "8192", "--repeats", "1", "--level",
                                  "L2", "--isa", "scalar", "--json"});
    CHECK(json.at("params").at("isa") == "scalar");
    REQUIRE(json.at("levels").size() == 1);
    CHECK(json.at("levels").at(0).at("level") == "L2");
  }

  TEST_CASE("optim reports both types of working copy") {
    const auto json = figures_of({"bench", "optim", "--n", "200000", "--repeats", "5", "--json"});
    for (const auto* type : {"bf16", "fp32"}) {
      CAPTURE(type);
      for (const auto* figure : {"step_ms", "floor_cpu_ms", "over_floor"})
        check_spread(json.at(type).at(figure));
    }
    CHECK(json.at("bf16").at("bytes") == 200'000 * 20);
    CHECK(json.at("fp32").at("bytes") == 200'000 * 24);
  }

  TEST_CASE("without --json a bench prints a table") {
    const auto said = say({"bench", "codec", "--n", "8192", "--repeats", "1", "--level", "L3"});
    CHECK(said.code == 0);
    CHECK(said.out.find("encode_cpu_ms") != std::string::npos);
    CHECK(said.out.find("L3") != std::string::npos);
    CHECK(said.out.find('{') == std::string::npos);
  }

  TEST_CASE("a flag that a bench does not look at is exit 2 and names those that it takes") {
    for (const auto& words :
         std::vector<std::vector<std::string>>{{"bench", "optim", "--level", "L2"},
                                               {"bench", "codec", "--batch", "16"},
                                               {"bench", "codec", "--level", "L7"},
                                               {"bench", "codec", "--isa", "neon"},
                                               {"bench", "codec", "--n", "0"},
                                               {"bench", "optim", "--repeats", "none"},
                                               {"bench", "quantum"},
                                               {"bench"}}) {
      const auto said = say(words);
      CAPTURE(said.err);
      CHECK(said.code == 2);
      CHECK(said.out.empty());
      CHECK_FALSE(said.err.empty());
    }
    CHECK(say({"bench", "optim", "--level", "L2"}).err.find("--n") != std::string::npos);
    CHECK(say({"bench", "quantum"}).err.find("codec") != std::string::npos);
  }
}
