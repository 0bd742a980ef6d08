#include "node/observe/progress_lines.h"

#include "tests/node/snapshots.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

namespace {

WallTime november() {
  return WallTime(std::chrono::sys_days(std::chrono::year(2026) / 11 / 21) + 2h + 14min + 7s +
                  89ms);
}

}  // namespace

TEST_SUITE("node/progress_lines") {
  TEST_CASE("a progress line has this form") {
    CHECK(progress_line(busy_snapshot(), november()) ==
          "2026-11-21T02:14:07Z INFO train step=8412 epoch=3.57 samples=2100000 progress=35.0% "
          "loss=2.417 img_s=2914 swarm_img_s=23180 peers=1 disagreement=3.7e-03 gossip_wait=0.4% "
          "left=1h38m");
  }

  TEST_CASE("what is not known yet is left out of the line") {
    const auto line = progress_line(StatusSnapshot{}, november());
    CHECK(line ==
          "2026-11-21T02:14:07Z INFO starting step=0 epoch=0.00 samples=0 img_s=0 "
          "swarm_img_s=0 peers=0 gossip_wait=0.0%");
  }

  TEST_CASE("a node that waits for a model says so in every line") {
    StatusSnapshot status;
    status.phase = Phase::joining;
    status.join = {.phase = "loading", .sponsor = "", .bytes_done = 1, .bytes_total = 8};
    CHECK(progress_line(status, november()).find("samples=0 join=loading state=12.5% img_s") !=
          std::string::npos);
    const auto json = nlohmann::json::parse(progress_json(status, november()));
    CHECK(json.at("join").at("bytes_total") == 8);
  }

  TEST_CASE("the JSON form is one object with the names of the status") {
    const auto text = progress_json(busy_snapshot(), november());
    CHECK(text.find('\n') == std::string::npos);
    const auto json = nlohmann::json::parse(text);
    CHECK(json.at("time") == "2026-11-21T02:14:07.089Z");
    CHECK(json.at("step") == 8'412);
    CHECK(json.at("swarm_samples") == 2'100'000);
    CHECK(json.at("members_alive") == 2);
  }

  TEST_CASE("a line comes every ten seconds, and at once when the phase changes") {
    ProgressLines lines(ProgressForm::plain);
    auto status = busy_snapshot();
    TimePoint now{};
    int count = 0;
    for (int second = 0; second < 60; ++second, now += 1s)
      count += lines.on_tick(now, status, november()) ? 1 : 0;
    CHECK(count == 6);
    status.phase = Phase::finishing;
    CHECK(lines.on_tick(now, status, november()));
    CHECK_FALSE(lines.on_tick(now + 1s, status, november()));
  }

  TEST_CASE("an accuracy comes with what it is of") {
    StatusSnapshot status;
    status.eval = StatusSnapshot::Eval{
        .accuracy_ratio = 0.9, .loss = 0.3, .of = Evaluated::neighbourhood, .references = 3};

    CHECK(progress_line(status, november()).find(" accuracy=90.0% of=neighbourhood ") !=
          std::string::npos);
    const auto json = nlohmann::json::parse(progress_json(status, november()));
    CHECK(json.at("accuracy_ratio") == 0.9);
    CHECK(json.at("of") == "neighbourhood");
  }

  TEST_CASE("no line comes where none is wanted") {
    ProgressLines lines(ProgressForm::none);
    CHECK_FALSE(lines.on_tick(TimePoint{}, busy_snapshot(), november()));
  }
}
