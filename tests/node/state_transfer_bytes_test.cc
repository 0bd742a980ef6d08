#include "node/state_transfer_bytes.h"

#include "node/base/hash.h"

#include <doctest/doctest.h>

#include <string>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;

namespace {

NodeId id_of(std::uint64_t number) { return *NodeId::from(Hasher().add(number).finish().view()); }

}  // namespace

TEST_SUITE("node/state_transfer_bytes") {
  TEST_CASE("what a checkpoint keeps of the swarm comes back from its text") {
    const SavedProgress saved{.counters = {{id_of(1), 0}, {id_of(2), ~std::uint64_t{0}}},
                              .age = 5'300.25,
                              .run_age = 77s};
    const auto back = parse_progress(format_progress(saved));
    CHECK(back.counters == saved.counters);
    CHECK(back.age == saved.age);
    CHECK(back.run_age == saved.run_age);
  }

  TEST_CASE("lines that make no sense are left out and cost nothing else") {
    const std::string good = to_hex(id_of(3).view()) + " 12\n";
    const auto back = parse_progress("age nan\nrun_age_ms -5\n\nage\nhello world\n" + good +
                                     to_hex(id_of(4).view()) + " twelve\nabcd 9\n");
    CHECK(back.age == 0);
    CHECK(back.run_age == 0s);
    REQUIRE(back.counters.size() == 1);
    CHECK(back.counters[0].id == id_of(3));
    CHECK(back.counters[0].samples == 12);
  }

  TEST_CASE("a run older than anybody's is cut, not wrapped") {
    CHECK(parse_progress("run_age_ms 18446744073709551615\n").run_age > 1h);
  }
}
