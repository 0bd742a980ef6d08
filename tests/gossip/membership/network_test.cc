#include "gossip/membership/network.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <string_view>

using namespace starling::gossip;

TEST_SUITE_BEGIN("gossip/membership/network");

TEST_CASE("addresses of one /16 or one IPv6 /32 are one network") {
  CHECK(network_of("9.1.2.3").has_value());
  CHECK(network_of("9.1.2.3") == network_of("9.1.250.1"));
  CHECK(network_of("9.1.2.3") != network_of("9.2.2.3"));
  CHECK(network_of("2001:db8:1::1") == network_of("2001:db8:ffff::2"));
  CHECK(network_of("2001:db8::1") != network_of("2001:db9::1"));
}

TEST_CASE("an IPv4 address that is written as IPv6 is of the same network") {
  CHECK(network_of("::ffff:9.1.2.3") == network_of("9.1.7.7"));
}

TEST_CASE("names and addresses that the internet does not route are of none") {
  for (const std::string_view host :
       {"10.1.2.3", "127.0.0.1", "192.168.1.1", "172.16.0.1", "172.31.0.1", "169.254.1.1",
        "100.64.0.1", "0.0.0.0", "::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "node.example",
        ""}) {
    CAPTURE(host);
    CHECK_FALSE(network_of(host).has_value());
  }
  CHECK(network_of("172.32.0.1").has_value());
  CHECK(network_of("100.128.0.1").has_value());
}

TEST_CASE("the host of an address is what is before its port") {
  CHECK(host_of("9.1.2.3:7700") == "9.1.2.3");
  CHECK(host_of("[2001:db8::1]:7700") == "2001:db8::1");
  CHECK(host_of("node.example:1") == "node.example");
  CHECK(host_of("nonsense") == "nonsense");
  CHECK(host_of("[:") == "[");
}

TEST_SUITE_END();
