#include "gossip/membership/member_record.h"

#include "node/base/random.h"
#include "tests/gossip/membership/test_swarm.h"

#include <doctest/doctest.h>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;

namespace {

MemberRecord full_record() {
  MemberRecord record;
  record.id = test_id(1);
  record.name = std::string(kMaxNameBytes, 'n');
  record.addresses.assign(kMaxAddresses, std::string(kMaxAddressBytes - 2, 'a') + ":1");
  record.incarnation = {77};
  record.instance = {0xfeedULL};
  record.state = RecordState::alive;
  record.roles = role::kTrainer;
  record.capabilities = capability::kDialable;
  record.data_set.bytes[3] = std::byte{9};
  return record;
}

}  // namespace

TEST_SUITE("gossip/member_record") {
  TEST_CASE("the largest record fits into 512 bytes and comes back as it was") {
    const TestSigner signer(test_id(1));
    auto record = full_record();
    sign_record(record, {}, signer);
    const Bytes bytes = encode_record(record);
    CHECK(bytes.size() <= kMaxRecordBytes);
    const auto back = parse_record(bytes);
    REQUIRE(back.has_value());
    CHECK(*back == record);
    CHECK(verify_record(*back, {}, TestVerifier()) == Verdict::valid);
  }

  TEST_CASE("a signature is worth nothing in another swarm") {
    const TestSigner signer(test_id(1));
    auto record = full_record();
    sign_record(record, {}, signer);
    SwarmId other;
    other.bytes[5] = std::byte{1};
    CHECK(verify_record(record, other, TestVerifier()) == Verdict::invalid);
  }

  TEST_CASE("a relay that changes one bit of a statement is found out") {
    const TestSigner signer(test_id(1));
    auto record = full_record();
    sign_record(record, {}, signer);
    const Bytes bytes = encode_record(record);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      CAPTURE(bit);
      Bytes changed = bytes;
      changed[bit / 8] ^= std::byte{1} << (bit % 8);
      const auto back = parse_record(changed);
      if (back) CHECK(verify_record(*back, {}, TestVerifier()) == Verdict::invalid);
    }
  }

  TEST_CASE("truncated and extended statements are refused") {
    const Bytes record = encode_record(full_record());
    Accusation accusation;
    accusation.incarnation = {1};
    ProgressReport report;
    report.incarnation = {1};
    for (std::size_t size = 0; size < record.size(); ++size)
      CHECK(!parse_record(ByteView(record).first(size)).has_value());
    Bytes longer = record;
    longer.push_back(std::byte{0});
    CHECK(!parse_record(longer).has_value());
    const Bytes accusing = encode_accusation(accusation);
    CHECK(parse_accusation(accusing).has_value());
    CHECK(!parse_accusation(ByteView(accusing).first(accusing.size() - 1)).has_value());
    const Bytes reporting = encode_report(report);
    CHECK(parse_report(reporting).has_value());
    CHECK(!parse_report(ByteView(reporting).subspan(1)).has_value());
  }

  TEST_CASE("names that would disturb a terminal or a JSON reader are refused") {
    for (const std::string name : {"bell\x07", "esc\x1b[2J", "del\x7f", "\xff\xfe", "\xc0\x80",
                                   "cut\xe2\x82", "\xed\xa0\x80", "csi\xc2\x9b"}) {
      auto record = full_record();
      record.name = name;
      CHECK(!check_record(record).has_value());
    }
    auto record = full_record();
    record.name = "mossy-otter \xe2\x82\xac \xc3\xa9";
    CHECK(check_record(record).has_value());
  }

  TEST_CASE("what cannot be a record of ours is named") {
    auto record = full_record();
    record.addresses.emplace_back("x:1");
    CHECK(check_record(record).error().detail.find("5 addresses") != std::string::npos);
    record = full_record();
    record.addresses = {"no port"};
    CHECK(check_record(record).error().detail.find("'no port'") != std::string::npos);
    record = full_record();
    record.incarnation = kMaxIncarnation;
    CHECK(!check_record(record).has_value());
    record.incarnation = {0};
    CHECK(!check_record(record).has_value());
  }

  TEST_CASE("random bytes never parse into something that encodes otherwise") {
    Rng rng(5);
    const Bytes good = encode_record(full_record());
    for (int round = 0; round < 20000; ++round) {
      Bytes bytes = good;
      for (int i = 0; i < 4; ++i)
        bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.below(256));
      const auto back = parse_record(bytes);
      if (back) CHECK(encode_record(*back) == bytes);
    }
  }
}
