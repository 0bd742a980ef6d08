#include "bootstrap/seeds.h"

#include <doctest/doctest.h>

#include <string>

using namespace starling;
using namespace starling::bootstrap;

namespace {

Result<std::string> no_file(const std::string& path) {
  return fail(Errc::not_found, Doing::reading_file, path);
}

std::string complaint(std::string_view text) {
  const auto seeds = parse_seeds(text, no_file);
  return seeds ? "" : seeds.error().detail;
}

}  // namespace

TEST_SUITE("bootstrap/seeds") {
  TEST_CASE("addresses, pinned addresses and names are told apart") {
    const std::string id(64, 'a');
    const auto seeds = parse_seeds(
        "10.0.0.1:7700, [2001:db8::1]:80," + id + "@host.example:9,dns:svc:7,dns:svc", no_file);
    REQUIRE(seeds.has_value());
    REQUIRE(seeds->size() == 5);
    CHECK(seeds->at(0).endpoint == transport::Endpoint{"10.0.0.1", 7700});
    CHECK(seeds->at(1).endpoint == transport::Endpoint{"2001:db8::1", 80});
    CHECK(seeds->at(2).pin.has_value());
    CHECK(seeds->at(3).kind == SeedKind::all_of_name);
    CHECK(seeds->at(4).endpoint.port == 7700);
    CHECK(!seeds->at(0).pin.has_value());
  }

  TEST_CASE("a file holds addresses, one or more to a line, and comments") {
    const auto read = [](const std::string& path) -> Result<std::string> {
      CHECK(path == "peers.txt");
      return "# ours\n10.0.0.1:1\n\n 10.0.0.2:2 , 10.0.0.3:3  # both\r\n10.0.0.1:1\n";
    };
    const auto seeds = parse_seeds("@peers.txt,10.0.0.9:9", read);
    REQUIRE(seeds.has_value());
    CHECK(seeds->size() == 4);
  }

  TEST_CASE("what is wrong is named with its value and what would be right") {
    CHECK(complaint("10.0.0.1:99999").find("10.0.0.1:99999") != std::string::npos);
    CHECK(complaint("10.0.0.1:0").find("host:port") != std::string::npos);
    CHECK(complaint("a:1,,b:2").find("missing") != std::string::npos);
    CHECK(complaint("xyz@a:1").find("64 hexadecimal digits") != std::string::npos);
    CHECK(complaint("dns:").find("dns:starling-headless:7700") != std::string::npos);
    CHECK(complaint("srv:_gossip._tcp.x").find("dns:NAME:PORT") != std::string::npos);
    CHECK(complaint("@").find("name of a file") != std::string::npos);
    CHECK(parse_seeds("@gone", no_file).error().code == Errc::not_found);
    const auto nested =
        parse_seeds("@a", [](const std::string&) -> Result<std::string> { return "@b"; });
    CHECK(nested.error().detail.find("cannot name another file") != std::string::npos);
  }

  TEST_CASE("the number of seeds and the size of a file are bounded") {
    std::string many;
    for (std::size_t i = 0; i <= kMaxSeeds; ++i) many += "h" + std::to_string(i) + ":1\n";
    const auto read = [&](const std::string&) -> Result<std::string> { return many; };
    CHECK(parse_seeds("@f", read).error().code == Errc::too_many);
    many.assign(kMaxSeedFileBytes + 1, ' ');
    CHECK(parse_seeds("@f", read).error().code == Errc::too_large);
  }
}
