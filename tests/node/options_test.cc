#include "node/options.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

TEST_SUITE("node/options") {
  TEST_CASE(
      "a run of a few seconds is not spent on waiting for peers, unless somebody wants that") {
    Config config;
    const Duration usual = join_options(config).grace;
    config.train.until = {.kind = Until::Kind::time, .amount = 0, .time = 2s};
    CHECK(join_options(config).grace == Duration(500ms));
    config.train.until.time = 1h;
    CHECK(join_options(config).grace == usual);
    config.train.until.time = 2s;
    config.origins["net.join_grace"] = {};
    CHECK(join_options(config).grace == usual);
  }

  TEST_CASE("an interval of nothing means never") {
    const TimePoint now{1h};
    CHECK(next_due(now, 5s) == now + 5s);
    CHECK(next_due(now, 0s) == kNever);
  }

  TEST_CASE("an advertised address has the port that is listened on, or one of its own, never 0") {
    Config config;
    config.net.advertise = {"node.example"};
    const auto bound = advertised_addresses(config, {"127.0.0.1", 7701});
    REQUIRE(bound);
    CHECK(bound->front().port == 7701);
    config.net.advertise = {"node.example:7702"};
    CHECK(advertised_addresses(config, {"127.0.0.1", 7701})->front().port == 7702);
    config.net.advertise = {"node.example:0"};
    const auto refused = advertised_addresses(config, {"127.0.0.1", 7701});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::bad_config);
    CHECK(refused.error().detail.find("node.example:0") != std::string::npos);
  }

  TEST_CASE("threads that read are chosen by hand, or by the cores, one to four") {
    Config config;
    CHECK(data_threads(config) >= 1);
    CHECK(data_threads(config) <= 4);
    config.data.threads = 9;
    CHECK(data_threads(config) == 9);
  }

  TEST_CASE("members that are trusted count in full, and others near to the median") {
    const auto ratio = [](const Config& config) {
      return gossip_options(config).membership.progress.max_rate_ratio;
    };
    Config config;
    CHECK(ratio(config) == 10'000);
    config.gossip.aggregator = ExchangeRule::clip;
    CHECK(ratio(config) == 16);
    config.gossip.aggregator = ExchangeRule::mean;
    config.swarm.mode = SwarmMode::open;
    CHECK(ratio(config) == 16);
    config.swarm.mode = SwarmMode::closed;
    CHECK(ratio(config) == 16);
    config.gossip.max_rate_ratio = 500;
    CHECK(ratio(config) == 500);
  }
}
