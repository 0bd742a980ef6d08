#include "node/base/team.h"

#include <doctest/doctest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace starling;

namespace {

// As long as it lives no thread can start: no machine has room for such a stack.
class NoThreads {
 public:
  NoThreads() {
    REQUIRE(::pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t vast{};
    REQUIRE(::pthread_attr_init(&vast) == 0);
    REQUIRE(::pthread_attr_setstacksize(&vast, std::size_t{1} << 50U) == 0);
    REQUIRE(::pthread_setattr_default_np(&vast) == 0);
    ::pthread_attr_destroy(&vast);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace

TEST_SUITE("base/team") {
  TEST_CASE("every part runs once a round, each on its own thread, the first on the caller's") {
    Team team("test", 4);
    std::array<int, 4> rounds{};
    std::array<std::thread::id, 4> ids{};

    for (int round = 0; round < 100; ++round) {
      team.run([&](int part) {
        ++rounds.at(static_cast<std::size_t>(part));
        ids.at(static_cast<std::size_t>(part)) = std::this_thread::get_id();
      });
    }

    CHECK(rounds == std::array<int, 4>{100, 100, 100, 100});
    CHECK(ids[0] == std::this_thread::get_id());
    CHECK(std::set<std::thread::id>(ids.begin(), ids.end()).size() == 4);
  }

  TEST_CASE("a run returns after all parts, and what they wrote is seen") {
    Team team("test", 3);
    std::vector<int> written(3);
    for (int round = 1; round <= 200; ++round) {
      team.run([&](int part) { written[static_cast<std::size_t>(part)] = round; });
      REQUIRE(written == std::vector<int>{round, round, round});
    }
  }

  TEST_CASE("what a part throws reaches the caller after the others are done, and it goes on") {
    Team team("test", 3);
    std::atomic<int> done = 0;

    CHECK_THROWS_WITH_AS(team.run([&](int part) {
      ++done;
      if (part > 0) throw std::runtime_error("part " + std::to_string(part));
    }),
                         "part 1", std::runtime_error);
    CHECK(done == 3);
    team.run([&](int) { ++done; });
    CHECK(done == 6);
  }

  TEST_CASE("a team of one does its part on the caller's thread") {
    Team alone("test", 1);
    std::thread::id id;
    alone.run([&id](int) { id = std::this_thread::get_id(); });
    CHECK(id == std::this_thread::get_id());
  }

  TEST_CASE("parts for which the system gives no thread are done by the caller") {
    std::optional<Team> team;
    {
      const NoThreads none;
      team.emplace("test", 3);
    }
    std::vector<int> rounds(3);
    std::set<std::thread::id> ids;
    for (int round = 0; round < 2; ++round) {
      team->run([&](int part) {
        ++rounds[static_cast<std::size_t>(part)];
        ids.insert(std::this_thread::get_id());
      });
    }
    CHECK(rounds == std::vector<int>{2, 2, 2});
    CHECK(ids == std::set{std::this_thread::get_id()});

    std::vector<int> done(10);
    team->share(done.size(), [&done](std::size_t part) { ++done[part]; });
    CHECK(done == std::vector<int>(10, 1));
    CHECK_THROWS_WITH_AS(
        team->run([](int part) { throw std::runtime_error("part " + std::to_string(part)); }),
        "part 0", std::runtime_error);
  }

  TEST_CASE("shared parts are each done once, more or fewer than there are threads") {
    Team team("test", 3);
    for (const std::size_t parts : {0U, 1U, 2U, 3U, 100U}) {
      CAPTURE(parts);
      std::vector<std::atomic<int>> done(parts);
      team.share(parts, [&done](std::size_t part) { ++done[part]; });
      for (const auto& times : done) CHECK(times == 1);
    }
  }

  TEST_CASE("what a shared part throws reaches the caller") {
    Team team("test", 2);
    std::atomic<int> done = 0;
    CHECK_THROWS_AS(team.share(50,
                               [&](std::size_t part) {
                                 ++done;
                                 if (part == 7) throw std::runtime_error("part 7");
                               }),
                    std::runtime_error);
    CHECK(done >= 8);
    team.share(4, [&](std::size_t) { ++done; });
  }
}
