#include "node/certifier.h"

#include "tests/support/temp_folder.h"
#include "tests/transport/certificates.h"

#include <doctest/doctest.h>

#include <set>

using namespace starling;
using namespace starling::node;
using transport::identity_of;

namespace {

constexpr std::uint64_t kNow = 1'800'000'000;

struct Inviter {
  transport::Admin admin;
  transport::Identity identity = identity_of(1);
  transport::Membership own{admin.swarm, admin.key.id(), admin.inviter(identity.id(), 1000)};
  TempFolder scratch;
  std::filesystem::path serials = scratch.path() / "serials";

  [[nodiscard]] Result<transport::Membership> certify(unsigned char number,
                                                      std::uint64_t now_s = kNow) const {
    return certify_newcomer(own, identity, identity_of(number).id(), serials, now_s);
  }
};

}  // namespace

TEST_SUITE("node/certifier") {
  TEST_CASE(
      "newcomers get valid certificates with serials of their own, as long as the inviter's") {
    const Inviter inviter;
    std::set<std::uint64_t> serials;
    for (unsigned char number = 10; number < 15; ++number) {
      const auto made = inviter.certify(number).value();
      CHECK_FALSE(inviter.admin.fault(made.chain));
      CHECK(made.chain.own.node == identity_of(number).id());
      CHECK(made.chain.own.until_s == inviter.admin.until_s);
      serials.insert(made.chain.own.serial);
      CHECK(transport::parse_membership(transport::print_membership(made)).value() == made);
    }
    CHECK(serials == std::set<std::uint64_t>{1001, 1002, 1003, 1004, 1005});
  }

  TEST_CASE(
      "the count goes on after a restart, ends with the range, and begins anew with a new "
      "certificate") {
    Inviter inviter;
    inviter.scratch.write("serials", "1000 99\n");
    CHECK(inviter.certify(10).value().chain.own.serial == 1100);
    CHECK(inviter.certify(11).error().code == Errc::too_many);
    inviter.own.chain = inviter.admin.inviter(inviter.identity.id(), 5000);
    CHECK(inviter.certify(11).value().chain.own.serial == 5001);
  }

  TEST_CASE("a count on a disk that is not mounted is not taken for none") {
    const Inviter inviter;
    std::filesystem::create_symlink("unmounted", inviter.serials);
    const auto made = inviter.certify(10);
    REQUIRE_FALSE(made);
    CHECK(made.error().detail.find(inviter.serials.string()) == 0);
    CHECK(std::filesystem::is_symlink(inviter.serials));
  }

  TEST_CASE("a count that cannot be read is not taken for none") {
    const Inviter inviter;
    for (const auto* text : {"", "1000", "1000 ", "1000 x\n", "1000 1", "1000 1\nmore"}) {
      CAPTURE(text);
      inviter.scratch.write("serials", text);
      CHECK(inviter.certify(10).error().code == Errc::corrupt);
    }
  }

  TEST_CASE("a member, an invited member and an inviter past its time certify nobody") {
    Inviter inviter;
    CHECK_FALSE(why_no_inviter(inviter.own, kNow));
    CHECK(inviter.certify(10, std::uint64_t{inviter.admin.until_s} + 301).error().code ==
          Errc::refused);
    const auto invited = inviter.certify(10).value();
    inviter.own.chain = inviter.admin.member(inviter.identity.id(), 5);
    CHECK(why_no_inviter(inviter.own, kNow)->find("--role") != std::string::npos);
    CHECK(inviter.certify(11).error().code == Errc::refused);
    CHECK(why_no_inviter(invited, kNow));
  }
}
