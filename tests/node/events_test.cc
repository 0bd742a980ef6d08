#include "node/observe/events.h"

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;

namespace {

std::vector<nlohmann::json> lines_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
  return lines;
}

}  // namespace

TEST_SUITE("node/events") {
  TEST_CASE("each event is one object on one line, also after a restart") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.path() / "events.jsonl";
    for (int start = 0; start < 2; ++start) {
      auto events = EventLog::open(file, log);
      REQUIRE(events);
      events->append("member.joined", {{"id", "abc"}, {"name", "a\nb"}});
    }
    const auto lines = lines_of(file);
    REQUIRE(lines.size() == 2);
    CHECK(lines[1].at("event") == "member.joined");
    CHECK(lines[1].at("name") == "a\nb");
    CHECK(lines[1].at("time").get<std::string>().size() == 24);
  }

  TEST_CASE("a line that a crash cut short does not swallow the next event") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.write("events.jsonl", "{\"event\":\"cut");
    auto events = EventLog::open(file, log);
    REQUIRE(events);
    events->append("next", {});
    const auto lines = lines_of(file);
    REQUIRE(lines.size() == 2);
    CHECK(lines[1].at("event") == "next");
  }

  TEST_CASE("the folder never holds more than twice the limit") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.path() / "events.jsonl";
    auto events = EventLog::open(file, log, {.max_bytes = 1'000});
    REQUIRE(events);
    for (int i = 0; i < 200; ++i) events->append("tick", {{"i", i}});
    CHECK(std::filesystem::file_size(file) <= 1'000);
    CHECK(std::filesystem::file_size(file.string() + ".1") <= 1'000);
    CHECK(lines_of(file).back().at("i") == 199);
    CHECK(events->lost() == 0);
  }

  TEST_CASE("a full disk costs events, which are counted, and nothing else") {
    NullLog log;
    auto events = EventLog::open("/dev/full", log, {.max_bytes = std::uint64_t{1} << 40});
    REQUIRE(events);
    events->append("tick", {});
    events->append("tick", {});
    CHECK(events->lost() == 2);
  }
}
