#include "node/observe/events.h"

#include "node/base/clock.h"
#include "tests/support/counting_log.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
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

bool wait_until(const std::function<bool()>& done) {
  const SteadyClock clock;
  const TimePoint end = clock.now() + std::chrono::minutes(1);
  while (!done()) {
    if (clock.now() > end) return false;
    std::this_thread::yield();
  }
  return true;
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
    {
      auto events = EventLog::open(file, log);
      REQUIRE(events);
      events->append("next", {});
    }
    const auto lines = lines_of(file);
    REQUIRE(lines.size() == 2);
    CHECK(lines[1].at("event") == "next");
  }

  TEST_CASE("the folder never holds more than twice the limit") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.path() / "events.jsonl";
    {
      auto events = EventLog::open(file, log, {.max_bytes = 1'000});
      REQUIRE(events);
      for (int i = 0; i < 200; ++i) events->append("tick", {{"i", i}});
      const bool written = wait_until([&] {
        const auto lines = lines_of(file);
        return !lines.empty() && lines.back().is_object() && lines.back().at("i") == 199;
      });
      CHECK(written);
      CHECK(events->lost() == 0);
    }
    CHECK(std::filesystem::file_size(file) <= 1'000);
    CHECK(std::filesystem::file_size(file.string() + ".1") <= 1'000);
    CHECK(lines_of(file).back().at("i") == 199);
  }

  TEST_CASE("a file that cannot be changed for a new one is written on") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.path() / "events.jsonl";
    auto events = EventLog::open(file, log, {.max_bytes = 400});
    REQUIRE(events);
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlimit few{64, limit.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    std::vector<int> held;
    while (held.empty() || held.back() >= 0) held.push_back(::open("/dev/null", O_RDONLY));
    const auto size = [&file] {
      std::error_code away;  // for a moment, while it is tried
      const auto bytes = std::filesystem::file_size(file, away);
      return away ? 0 : bytes;
    };
    events->append("tick", {{"i", 0}});
    REQUIRE(wait_until([&] { return size() > 0; }));
    const auto one = size();
    for (int i = 1; i < 10; ++i) events->append("tick", {{"i", i}});
    const bool written = wait_until([&] { return size() == 10 * one; });
    for (const int descriptor : held) ::close(descriptor);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &limit) == 0);

    CHECK(written);
    CHECK(events->lost() == 0);
    CHECK(wait_until([&] { return lines_of(file).size() == 10; }));
  }

  TEST_CASE("a file that cannot be renamed is told once, has an end, and is tried again") {
    const TempFolder scratch;
    CountingLog log("events.not_renamed");
    const auto file = scratch.path() / "events.jsonl";
    std::filesystem::create_directory(file.string() + ".1");  // which no file replaces
    auto events = EventLog::open(file, log, {.max_bytes = 1'000, .rename_again = {}});
    REQUIRE(events);
    for (int i = 0; i < 200; ++i) events->append("tick", {{"i", i}});
    CHECK(wait_until([&] { return events->lost() > 100; }));
    CHECK(log.count() == 1);
    CHECK(std::filesystem::file_size(file) > 1'000);
    CHECK(std::filesystem::file_size(file) <= 2'000);

    std::filesystem::remove(file.string() + ".1");
    CHECK(wait_until([&] {
      events->append("tick", {});
      std::error_code away;
      return std::filesystem::is_regular_file(file.string() + ".1", away);
    }));
    CHECK(log.count() == 1);
  }

  TEST_CASE("a full disk costs events, which are counted, and nothing else") {
    NullLog log;
    auto events = EventLog::open("/dev/full", log, {.max_bytes = std::uint64_t{1} << 40});
    REQUIRE(events);
    events->append("tick", {});
    events->append("tick", {});
    CHECK(wait_until([&] { return events->lost() == 2; }));
  }

  TEST_CASE("a FIFO that nobody reads is an error at once") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.path() / "events.jsonl";
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    const auto events = EventLog::open(file, log);
    REQUIRE_FALSE(events);
    CHECK(events.error().code == Errc::permission);
    CHECK(events.error().detail.find("not a regular file") != std::string::npos);
  }

  TEST_CASE("a disk that hangs keeps nobody waiting, and costs what does not fit") {
    const TempFolder scratch;
    NullLog log;
    const auto file = scratch.path() / "events.jsonl";
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
    const int reader = ::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    REQUIRE(reader >= 0);
    REQUIRE(::fcntl(reader, F_SETPIPE_SZ, 4'096) > 0);
    std::string read;
    {
      auto events = EventLog::open(file, log, {.max_waiting_bytes = 10'000});
      REQUIRE(events);
      // Far more than the pipe and the queue hold: were one of them waited for, this would not end.
      for (int i = 0; i < 1'000; ++i) events->append("tick", {{"i", i}});
      CHECK(events->lost() > 500);
      CHECK(events->lost() < 1'000);
      // The disk is back: what was kept is written, in order.
      std::array<char, 4'096> piece{};
      const auto kept = static_cast<std::ptrdiff_t>(1'000 - events->lost());
      const bool all = wait_until([&] {
        for (ssize_t size = 0; (size = ::read(reader, piece.data(), piece.size())) > 0;)
          read.append(piece.data(), static_cast<std::size_t>(size));
        return std::ranges::count(read, '\n') == kept;
      });
      CHECK(all);
    }
    ::close(reader);
    CHECK(nlohmann::json::parse(read.substr(0, read.find('\n'))).at("i") == 0);
  }
}

TEST_SUITE("node/recent_events") {
  TEST_CASE("the last events are numbered, and whoever knows some of them asks for the others") {
    RecentEvents events;
    CHECK(events.after(0).empty());
    events.add(LogLevel::info, "member.alive", "name=brisk-wren");
    events.add(LogLevel::warn, "checkpoint.failed", "why=\"disk full\"");

    const auto all = events.after(0);
    REQUIRE(all.size() == 2);
    CHECK(all[0].seq == 1);
    CHECK(all[0].time.size() == std::string_view("2026-11-21T02:14:07.123Z").size());
    CHECK(all[1].level == LogLevel::warn);
    CHECK(all[1].event == "checkpoint.failed");
    CHECK(all[1].text == "why=\"disk full\"");
    REQUIRE(events.after(1).size() == 1);
    CHECK(events.after(1)[0].seq == 2);
    CHECK(events.after(2).empty());
    CHECK(events.after(3).size() == 2);  // another process had a third one
  }

  TEST_CASE("events that go on for ever keep to their room, and leave the others theirs") {
    RecentEvents events;
    events.add(LogLevel::warn, "rare", "");
    for (int i = 0; i < 10'000; ++i) events.add(LogLevel::warn, "session.refused", "");
    auto kept = events.after(0);
    CHECK(kept.size() == RecentEvents::kMostOfOne + 1);
    CHECK(kept.front().event == "rare");
    CHECK(kept.back().seq == 10'001);
    CHECK(events.after(9'999).size() == 2);

    for (int i = 0; i < 1'000; ++i) events.add(LogLevel::info, "event-" + std::to_string(i), "");
    kept = events.after(0);
    CHECK(kept.size() == RecentEvents::kMost);
    CHECK(kept.back().event == "event-999");
    CHECK(std::ranges::is_sorted(kept, {}, &RecentEvent::seq));
  }

  TEST_CASE("a text that is too long ends in dots, at the end of a character") {
    for (const std::size_t before : {0U, 1U, 2U, 3U}) {
      CAPTURE(before);
      std::string text(before, 'x');
      for (int i = 0; i < 1'000; ++i) text += "\u20ac";  // three bytes
      RecentEvents events;
      events.add(LogLevel::info, "long", text);
      const auto kept = events.after(0).at(0).text;
      CHECK(kept.size() <= RecentEvents::kMaxText);
      CHECK(kept.size() > RecentEvents::kMaxText - 6);
      CHECK(kept.ends_with("\u20ac..."));
    }
  }
}
