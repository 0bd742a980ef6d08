#include "training/lease.h"

#include <doctest/doctest.h>

#include <array>
#include <new>
#include <thread>
#include <vector>

using namespace starling;
using namespace starling::training;

TEST_SUITE("training/lease") {
  TEST_CASE("the master has one user at a time, whoever asks") {
    std::array<float, 4> values{};
    MasterLease lease(gossip::MasterView{values, {}, {}});
    int inside = 0;
    int most = 0;

    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          lease.with_master([&](const gossip::MasterView& master) {
            most = std::max(most, ++inside);
            for (float& x : master.parameters) x += 1.0F;
            --inside;
          });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();

    CHECK(most == 1);
    for (const float x : values) CHECK(x == 2'000.0F);
  }

  // A lease that is never given back stops every codec job and the next step, for good.
  TEST_CASE("a job that throws gives the master back, and its caller gets the exception") {
    MasterLease lease(gossip::MasterView{});

    CHECK_THROWS_AS(lease.with_master([](const gossip::MasterView&) { throw std::bad_alloc(); }),
                    std::bad_alloc);

    bool got_it = false;
    lease.with_master([&](const gossip::MasterView&) { got_it = true; });
    CHECK(got_it);
  }
}
