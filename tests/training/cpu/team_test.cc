#include "training/cpu/team.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/cpu/team") {
  TEST_CASE("every part runs once a round, each on its own thread, the first on the caller's") {
    Team team(4, [] {});
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
    Team team(3, [] {});
    std::vector<int> written(3);
    for (int round = 1; round <= 200; ++round) {
      team.run([&](int part) { written[static_cast<std::size_t>(part)] = round; });
      REQUIRE(written == std::vector<int>{round, round, round});
    }
  }

  TEST_CASE("what a part throws reaches the caller after the others are done, and it goes on") {
    Team team(3, [] {});
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

  TEST_CASE("every thread of a team is prepared once, the caller's is not") {
    std::atomic<int> begun = 0;
    {
      Team team(3, [&begun] { ++begun; });
      team.run([](int) {});
      team.run([](int) {});
    }
    CHECK(begun == 2);
    Team alone(1, [&begun] { ++begun; });
    int runs = 0;
    alone.run([&runs](int) { ++runs; });
    CHECK(runs == 1);
    CHECK(begun == 2);
  }
}
