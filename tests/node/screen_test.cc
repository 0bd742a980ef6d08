#include "node/terminal/screen.h"

#include "node/observe/fields.h"
#include "node/printable.h"
#include "tests/node/snapshots.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace starling::node::terminal;
using namespace std::chrono_literals;

namespace {

std::string text_of(const Line& line) {
  std::string text;
  for (const auto& span : line) text += span.text;
  return text;
}

std::string text_of(const Frame& frame) {
  std::string text;
  for (const auto& line : frame) text += text_of(line) + "\n";
  return text;
}

// Where a text stands in a frame: its line, or the frame's size.
std::size_t line_with(const Frame& frame, const std::string& text) {
  std::size_t at = 0;
  while (at < frame.size() && text_of(frame[at]).find(text) == std::string::npos) ++at;
  return at;
}

bool contains(const Frame& frame, const std::string& text) {
  return line_with(frame, text) < frame.size();
}

// How a text of a frame looks.
Style style_with(const Frame& frame, const std::string& text) {
  for (const auto& line : frame)
    for (const auto& span : line)
      if (span.text.find(text) != std::string::npos) return span.style;
  FAIL("not in the frame: " << text);
  return Style::plain;
}

struct Shown {
  nlohmann::json status = to_json(busy_snapshot());
  Trends trends;
  std::vector<std::string> events;
  std::string trouble;

  [[nodiscard]] Frame draw(const Look& look = {}) const {
    return terminal::draw({status, trends, events, trouble}, look);
  }
};

}  // namespace

TEST_SUITE("node/screen") {
  TEST_CASE("the screen says what a person asks of a run in 24 lines of 80 characters") {
    const auto frame = Shown{}.draw();
    REQUIRE(frame.size() == 24);
    for (const auto* text : {"mossy-otter", "training", "35.0 %", "step 8412", "left 1h38m",
                             "2.4170", "2914 img/s", "swarm 23180", "2 alive, 1 suspect, 1 left",
                             "2100000 samples", "brisk-wren", "4.2 ms", "L2", "q quit"}) {
      CAPTURE(text);
      CHECK(contains(frame, text));
    }
    CHECK(style_with(frame, "alive  ") == Style::good);
    CHECK(style_with(frame, "lost") == Style::bad);  // the edge, whatever state its member has
  }

  TEST_CASE("no frame is larger than its terminal") {
    Shown shown;
    shown.status["warnings"] = {std::string(300, 'w')};
    shown.status["node"]["name"] = std::string(200, 'n');
    for (int i = 0; i < 40; ++i)
      shown.events.push_back(R"({"time":"2026-11-21T02:14:07.123Z","event":"joined"})");
    for (const std::size_t columns : {1U, 7U, 40U, 80U, 200U})
      for (const std::size_t rows : {0U, 1U, 2U, 5U, 12U, 24U, 60U})
        for (const auto table : {Table::neighbours, Table::members}) {
          CAPTURE(columns);
          CAPTURE(rows);
          const auto frame = shown.draw(
              {.size = {columns, rows}, .unicode = true, .table = table, .first_row = 3});
          CHECK(frame.size() == rows);
          for (const auto& line : frame) CHECK(fields::width_of(text_of(line)) <= columns);
        }
  }

  TEST_CASE("nothing that a peer or a file says can move the cursor") {
    Shown shown;
    shown.events = {
        "{\"time\":\"2026-11-21T02:14:07.123Z\",\"event\":\"x\\u001b[2J\",\"why\":\"\\n\"}",
        "no JSON \x1b[31m"};
    shown.trouble = "\x1b]0;title\x07";
    const auto frame = shown.draw({.size = {120, 40}, .table = Table::members});
    CHECK(contains(frame, "ash\\x1b[2J\\x0aheron"));
    for (const char c : text_of(frame)) CHECK((c == '\n' || static_cast<unsigned char>(c) >= 0x20));
  }

  TEST_CASE("a terminal without Unicode gets a screen of ASCII") {
    Shown shown;
    shown.trends.take(TimePoint{1s}, shown.status);
    for (const char c : text_of(shown.draw({.size = {100, 30}, .unicode = false})))
      CHECK(static_cast<unsigned char>(c) < 0x80);
  }

  TEST_CASE("a node that waits for a model says how much of it has come") {
    StatusSnapshot waits;
    waits.join = {.phase = "loading", .sponsor = "", .bytes_done = 50, .bytes_total = 900};
    Shown shown;
    CHECK_FALSE(contains(shown.draw(), "JOIN"));
    shown.status = to_json(waits);
    CHECK(contains(shown.draw(), "loading  50 B of 900 B"));
  }

  TEST_CASE("a status of an older program, and one before the first step, are shown as well") {
    Shown shown;
    shown.status = nlohmann::json::object();
    CHECK(contains(shown.draw(), "no edge yet"));
    shown.status = to_json(StatusSnapshot{});
    CHECK(contains(shown.draw({.size = {}, .table = Table::members}), "nobody yet"));
    shown.status = "no object";
    CHECK(shown.draw().size() == 24);
  }

  TEST_CASE("the table scrolls to its end, and no further") {
    Shown shown;
    auto& members = shown.status["members"];
    members = nlohmann::json::array();
    for (int i = 0; i < 100; ++i)
      members.push_back({{"name", "member-" + std::to_string(i)}, {"state", "alive"}});
    CHECK(rows_of(shown.status, Table::members) == 100);
    const auto at = [&](std::size_t row) {
      return shown.draw({.size = {}, .table = Table::members, .first_row = row});
    };
    CHECK(contains(at(0), "member-0 "));
    CHECK_FALSE(contains(at(0), "member-99"));
    CHECK(contains(at(50), "member-50"));
    CHECK_FALSE(contains(at(50), "member-49"));
    CHECK(contains(at(5'000), "member-99"));
    CHECK(text_of(at(5'000)) == text_of(at(99)));
  }

  TEST_CASE("the final consensus has a line of its own once it began") {
    Shown shown;
    CHECK_FALSE(contains(shown.draw(), "END"));
    auto status = busy_snapshot();
    status.consensus = {"certified", 3, std::string(64, 'f'), {"a", "b", "c"}, 3};
    shown.status = to_json(status);
    const auto frame = shown.draw({.size = {140, 24}});
    CHECK(contains(frame, "certified  epoch 3  3 participants, 3 identical"));
    CHECK(contains(frame, std::string(64, 'f')));
  }

  TEST_CASE("what is wrong stands in the screen: warnings, and why it is not a new one") {
    Shown shown;
    shown.status["warnings"] = {"no other member is in reach"};
    shown.trouble = "no new status: nobody runs there";
    const auto frame = shown.draw();
    CHECK(style_with(frame, "WARNING") == Style::bad);
    CHECK(contains(frame, "no other member is in reach"));
    CHECK(line_with(frame, "nobody runs there") == 23);
  }

  TEST_CASE("events have the newest last, below the table") {
    Shown shown;
    for (int i = 0; i < 9; ++i)
      shown.events.push_back(R"({"time":"2026-11-21T02:14:0)" + std::to_string(i) +
                             R"(.123Z","event":"joined","via":"node-)" + std::to_string(i) + "\"}");
    const auto frame = shown.draw({.size = {80, 40}});
    const auto last = line_with(frame, "02:14:08  joined  via=node-8");
    REQUIRE(last < frame.size());
    CHECK(line_with(frame, "via=node-7") == last - 1);
    CHECK(line_with(frame, "brisk-wren") < last);
  }

  TEST_CASE("an event that nests without end is shown as its text, and ends no screen") {
    Shown shown;
    const std::string deep(1'000'000, '[');
    shown.events = {R"({"event":"deep","of":)" + deep + std::string(deep.size(), ']') + "}",
                    R"({"event":"flat","of":[[1,2],{"a":[3]}]})"};
    const auto frame = shown.draw({.size = {80, 40}});
    CHECK(contains(frame, R"({"event":"deep","of":[[[)"));
    CHECK(contains(frame, R"(flat  of=[[1,2],{"a":[3]}])"));
  }

  TEST_CASE("events take no row from the neighbours of a node in 24 lines of 80 characters") {
    Shown shown;
    auto& neighbours = shown.status["neighbours"];
    neighbours = nlohmann::json::array();
    for (int i = 0; i < 8; ++i)  // three cycles, and two that asked
      neighbours.push_back({{"name", "peer-" + std::to_string(i)}, {"state", "alive"}});
    for (int i = 0; i < 40; ++i)
      shown.events.push_back(R"({"time":"2026-11-21T02:14:00.123Z","event":"event-)" +
                             std::to_string(i) + "\"}");
    const auto frame = shown.draw();
    CHECK(contains(frame, "peer-0"));
    CHECK(contains(frame, "peer-7"));
    CHECK(contains(frame, "event-39"));
  }

  TEST_CASE("a bar is full at the end, and never longer than its place") {
    CHECK(bar(0, 4, false) == "[....]");
    CHECK(bar(0.5, 4, false) == "[##..]");
    CHECK(bar(1, 4, false) == "[####]");
    CHECK(bar(7, 4, false) == "[####]");
    CHECK(bar(-1, 4, false) == "[....]");
    CHECK(bar(std::numeric_limits<double>::quiet_NaN(), 4, false) == "[....]");
    CHECK(bar(0.625, 4, true) == "▕██▌ ▏");
    for (int i = 0; i <= 100; ++i) CHECK(fields::width_of(bar(i / 100.0, 13, true)) == 15);
  }

  TEST_CASE("a course runs from the lowest value to the highest") {
    CHECK(spark_line(std::vector<double>{0, 1, 2, 3}, 4, true) == "▁▃▆█");
    CHECK(spark_line(std::vector<double>{0, 0, 3, 3}, 2, true) == "▁█");  // means of two
    CHECK(spark_line(std::vector<double>{5, 5}, 8, false) == "==");
    CHECK(spark_line({}, 8, true).empty());
    CHECK(spark_line(std::vector<double>{1, std::numeric_limits<double>::infinity()}, 8, true)
              .empty());
  }
}

TEST_SUITE("node/trends") {
  TEST_CASE("rates are what was sent meanwhile, for each neighbour too") {
    Trends trends;
    auto status = busy_snapshot();
    const auto peer = status.neighbours[0].id;
    trends.take(TimePoint{1s}, to_json(status));
    CHECK_FALSE(trends.rates());
    status.traffic.bytes_sent += 3'000;
    status.traffic.bytes_received += 1'000;
    status.neighbours[0].bytes_sent += 500;
    trends.take(TimePoint{3s}, to_json(status));
    CHECK(trends.rates().value().sent == 1'500);
    CHECK(trends.rates().value().received == 500);
    CHECK(trends.rates_of(peer).value().sent == 250);
    CHECK_FALSE(trends.rates_of("nobody"));
    // Long after, what is older than the window does not count.
    trends.take(TimePoint{30s}, to_json(status));
    trends.take(TimePoint{41s}, to_json(status));
    CHECK(trends.rates().value().sent == 0);
  }

  TEST_CASE("a node that was started again begins anew, instead of sending less than nothing") {
    Trends trends;
    auto status = busy_snapshot();
    trends.take(TimePoint{1s}, to_json(status));
    status.traffic.bytes_sent = 10;
    trends.take(TimePoint{2s}, to_json(status));
    CHECK_FALSE(trends.rates());
    status.traffic.bytes_sent = 110;
    trends.take(TimePoint{3s}, to_json(status));
    CHECK(trends.rates().value().sent == 100);
  }

  TEST_CASE("a look without a step adds nothing to the course of the loss") {
    Trends trends;
    auto status = busy_snapshot();
    for (int i = 0; i < 3; ++i) trends.take(TimePoint{i * 1s}, to_json(status));
    CHECK(trends.losses().size() == 1);
    ++status.progress.step;
    status.train.loss = 2.0;
    trends.take(TimePoint{4s}, to_json(status));
    CHECK(trends.losses() == std::vector<double>{2.417, 2.0});
  }

  TEST_CASE("a course of any length keeps its shape in a bounded number of values") {
    Course course;
    for (int i = 0; i < 100'000; ++i) course.add(i);
    const auto& values = course.values();
    CHECK(values.size() < Course::kMost);
    CHECK(values.size() >= Course::kMost / 4);
    CHECK(values.front() < 1'000);
    CHECK(values.back() > 99'000);
    CHECK(std::ranges::is_sorted(values));
  }
}
