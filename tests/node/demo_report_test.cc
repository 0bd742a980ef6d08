#include "node/cli/demo_report.h"

#include "node/observe/status.h"
#include "node/printable.h"
#include "tests/node/snapshots.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

using namespace starling::node;

namespace {

DemoEnd ended(std::string name, int status, std::string hash) {
  auto snapshot = busy_snapshot();
  snapshot.eval = StatusSnapshot::Eval{0.871, 0.4, 2'000, 8'412};
  return {std::move(name), status, json_text(to_json(snapshot)), std::move(hash), ""};
}

}  // namespace

TEST_SUITE("node/demo_report") {
  TEST_CASE("four equal hashes are the line that scripts wait for") {
    const auto verdict = demo_verdict({ended("node-1", 0, "ab"), ended("node-2", 0, "ab"),
                                       ended("node-3", 0, "ab"), ended("node-4", 0, "ab")});
    CHECK(verdict.line == "final consensus: 4/4 replicas identical  blake2b ab");
    CHECK(verdict.exit_code == 0);
  }

  TEST_CASE("one other hash is exit 6, and the line counts it out") {
    const auto verdict = demo_verdict(
        {ended("node-1", 0, "ab"), ended("node-2", 0, "cd"), ended("node-3", 0, "ab")});
    CHECK(verdict.line == "final consensus: 2/3 replicas identical  blake2b ab");
    CHECK(verdict.exit_code == 6);
  }

  TEST_CASE("a node that failed gives the demo its exit code") {
    CHECK(demo_verdict({ended("node-1", 0, "ab"), ended("node-2", 137, "")}).exit_code == 137);
    CHECK(demo_verdict({ended("node-1", 7, ""), ended("node-2", 7, "")}).exit_code == 7);
    CHECK(demo_verdict({ended("node-1", 0, "")}).exit_code == 6);
    CHECK(demo_verdict({}).line.empty());
  }

  TEST_CASE("the summary puts the bytes of a step beside those of an all-reduce") {
    const auto text = demo_summary({ended("node-1", 0, "ab"), ended("node-2", 0, "ab"),
                                    ended("node-3", 0, "ab"), ended("node-4", 0, "ab")});
    // 3,000,000 bytes in 8,412 steps; 2 x 3 / 4 x 4 bytes x 175,258 parameters.
    CHECK(text.find("0.4 kB a step") != std::string::npos);
    CHECK(text.find("1.05 MB") != std::string::npos);
    CHECK(text.find("2949x") != std::string::npos);
    CHECK(text.find("87.1 %") != std::string::npos);
  }

  TEST_CASE("a node that never answered leaves holes, not lies") {
    CHECK_FALSE(demo_progress_line({"", ""}));
    const auto line = demo_progress_line({"", json_text(to_json(busy_snapshot())), "not json"});
    REQUIRE(line);
    CHECK(line->find("steps -/8412/-") != std::string::npos);
    CHECK(line->find("progress 35.0%") != std::string::npos);
    const DemoEnd silent{"node-1", 3, "", "", "port in use"};
    const auto summary = demo_summary({silent});
    CHECK(summary.find("port in use") != std::string::npos);
    CHECK(summary.find("data-parallel") == std::string::npos);
  }
}
