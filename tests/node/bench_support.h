// What tests of benches share: a command line, its report, and what every spread keeps to.
#pragma once

#include "node/bench/bench.h"
#include "node/cli/verbs.h"
#include "tests/node/said.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace starling::node::testing {

using BenchHook = int (*)(const Arguments&, const Terminal&);

inline Said say(BenchHook bench, const Words& words) {
  return said_by(words, VerbHooks{.bench = bench});
}

inline nlohmann::json figures_of(BenchHook bench, const Words& words) {
  const auto said = say(bench, words);
  CAPTURE(said.err);
  REQUIRE(said.code == 0);
  const auto json = nlohmann::json::parse(said.out);
  CHECK(json.at("schema") == 1);
  CHECK(json.at("bench") == words.at(1));
  CHECK(json.at("machine").at("cores") >= 1);
  CHECK_FALSE(json.at("machine").at("cpu").get<std::string>().empty());
  return json;
}

// A spread is whole and in order.
inline void check_order(const nlohmann::json& spread) {
  CHECK(spread.at("min") <= spread.at("q1"));
  CHECK(spread.at("q1") <= spread.at("median"));
  CHECK(spread.at("median") <= spread.at("q3"));
  CHECK(spread.at("q3") <= spread.at("max"));
}

// The same, and its median is not zero.
inline void check_spread(const nlohmann::json& spread) {
  check_order(spread);
  CHECK(spread.at("median") > 0);
}

// Exit 2, nothing on the output, a reason on the other one.
inline std::string refusal_of(BenchHook bench, const Words& words) {
  const auto said = say(bench, words);
  CAPTURE(said.err);
  CHECK(said.code == 2);
  CHECK(said.out.empty());
  CHECK_FALSE(said.err.empty());
  return said.err;
}

}  // namespace starling::node::testing
