#include "gossip/membership/message_codec.h"

#include "gossip/membership/fact_spreader.h"
#include "node/base/random.h"
#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;

namespace {

MemberRecord named_record(std::uint64_t number) {
  MemberRecord record;
  record.id = test_id(number);
  record.name = "a node with a name";
  record.addresses = {"[2001:db8:0:0:0:0:0:1]:7700", "10.1.2.3:7700"};
  record.incarnation = {number + 1};
  return record;
}

std::vector<MembershipMessage> examples() {
  Facts facts;
  facts.records.push_back({named_record(1), 17});
  Accusation accusation;
  accusation.incarnation = {3};
  facts.accusations.push_back(accusation);
  ProgressReport report;
  report.incarnation = {1};
  report.samples = 1234567;
  facts.reports.push_back(report);
  facts.has = {{prefix_of(test_id(1)), FactName::Kind::record, 3},
               {~std::uint64_t{0}, FactName::Kind::report, kVersions - 1}};
  facts.wants = {{0, FactName::Kind::report, 0}};
  facts.answers = 5;
  facts.more_after = test_id(9);
  Digest digest;
  for (std::size_t i = 0; i < kBuckets; ++i) digest.buckets[i] = i * 0x123456789abcdefULL;
  digest.wants_reply = true;
  BucketRequest request;
  request.nonce = 77;
  request.buckets[0] = request.buckets[255] = request.buckets[100] = true;
  request.after = test_id(3);
  return {Heartbeat{5},
          Heartbeat{6, true, ~std::uint64_t{0}},
          HeartbeatAck{~std::uint64_t{0}},
          ProbeRequest{9, test_id(2)},
          ProbeReply{9, test_id(2), ProbeVerdict::unreachable},
          facts,
          Facts{},
          digest,
          request};
}

}  // namespace

TEST_SUITE("gossip/membership_codec") {
  TEST_CASE("every message comes back as it was sent") {
    for (const auto& message : examples()) {
      const auto wire = encode(message);
      CAPTURE(wire.type);
      CHECK(wire.room() == transport::Room::membership);
      const auto back = decode_membership(wire);
      REQUIRE(back.has_value());
      CHECK(*back == message);
    }
  }

  TEST_CASE("facts of any number are split into messages within 16 KiB, and none is lost") {
    Facts facts;
    for (std::uint64_t i = 0; i < 500; ++i) {
      facts.records.push_back({named_record(i), 1});
      Accusation accusation;
      accusation.incarnation = {i + 1};
      facts.accusations.push_back(accusation);
      ProgressReport report;
      report.incarnation = {i + 1};
      facts.reports.push_back(report);
      facts.has.push_back(name_of(report));
      facts.wants.push_back(name_of(report));
    }
    std::size_t records = 0;
    std::size_t others = 0;
    std::size_t names = 0;
    for (const auto& part : split(facts)) {
      const auto wire = encode(part);
      CHECK(wire.body.size() <= kMaxMembershipBody);
      const auto back = decode_membership(wire);
      REQUIRE(back.has_value());
      CHECK(std::get<Facts>(*back) == part);
      records += part.records.size();
      others += part.accusations.size() + part.reports.size();
      names += part.has.size() + part.wants.size();
    }
    CHECK(records == 500);
    CHECK(others == 1000);
    CHECK(names == 1000);
  }

  TEST_CASE("a name of no statement is refused") {
    // An honest name has a version. Many without one are no bytes at all in the canonical form, and
    // what takes no room must not be read any number of times.
    for (const std::size_t count : {1U, 100U}) {
      for (const bool has : {false, true}) {
        CAPTURE(count);
        Facts facts;
        (has ? facts.has : facts.wants).resize(count);
        const auto back = decode_membership(encode(facts));
        REQUIRE_FALSE(back.has_value());
        if (count == 1) CHECK(back.error().detail == "a name of no statement");
      }
    }
  }

  TEST_CASE("unknown types, attachments and empty bodies are refused") {
    CHECK(!decode_membership({0x01ff, encode(Heartbeat{1}).body, nullptr}).has_value());
    auto wire = encode(Heartbeat{1});
    wire.attachment = share(Bytes(3));
    CHECK(!decode_membership(wire).has_value());
    for (std::uint16_t type = 0x0101; type <= 0x0107; ++type)
      CHECK(!decode_membership({type, {}, nullptr}).has_value());
    CHECK(decode_membership({0x0105, Bytes(kMaxMembershipBody + 8), nullptr}).error().code ==
          Errc::too_large);
  }

  TEST_CASE("damaged messages are refused or mean something in bounds, and never crash") {
    Rng rng(11);
    for (const auto& message : examples()) {
      const auto wire = encode(message);
      for (int round = 0; round < 500; ++round) {
        auto damaged = wire;
        for (std::uint64_t i = 0; i <= rng.below(3); ++i)
          damaged.body[rng.below(damaged.body.size())] = static_cast<std::byte>(rng.below(256));
        const auto back = decode_membership(damaged);
        if (back) CHECK(decode_membership(encode(*back)).has_value());
      }
    }
  }
}
