// What an admin signs: certificates of members and inviters, and what is taken back.
#include "node/base/hash.h"
#include "tests/support/temp_folder.h"
#include "tests/transport/certificates.h"
#include "transport/admin_key.h"
#include "transport/peer_rules.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <string>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::uint64_t kToday = 1'800'000'000;

bool contains(const std::optional<std::string>& text, std::string_view part) {
  return text && text->find(part) != std::string::npos;
}

std::string hash_of(ByteView bytes) { return to_hex(Hasher{}.add(bytes).finish().view()); }

// The rules of a swarm with this admin.
PeerRules rules_of(const Admin& admin, Revocations revoked = {}) {
  PeerRules rules;
  rules.admin = {admin.key.id(), admin.swarm, std::move(revoked)};
  return rules;
}

TEST_SUITE("transport/certificate") {
  TEST_CASE("the admin's word makes a member, and an inviter's word under it") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto newcomer = identity_of(2).id();
    const auto word = admin.inviter(inviter.id(), 1000);
    CHECK_FALSE(admin.fault(admin.member(newcomer, 5)));
    CHECK_FALSE(admin.fault(word));
    CHECK_FALSE(admin.fault(admin.invited(word, inviter, newcomer, 1001)));
    CHECK_FALSE(admin.fault(admin.invited(word, inviter, newcomer, 1100)));
  }

  TEST_CASE("a certificate that anybody else signed, or for another node or swarm, is void") {
    const Admin admin;
    const auto node = identity_of(2).id();
    Admin other;
    other.key = identity_of(201);
    CHECK(contains(admin.fault(other.member(node, 5)), "not signed by this swarm's admin"));
    other = Admin{};
    other.swarm.bytes[0] = std::byte{8};
    CHECK(contains(admin.fault(other.member(node, 5)), "not signed by this swarm's admin"));
    auto stolen = admin.member(node, 5);
    stolen.own.node = identity_of(3).id();
    CHECK(admin.fault(stolen));
    for (const auto change : {0, 1, 2, 3}) {
      auto forged = admin.member(node, 5);
      if (change == 0) forged.own.serial = 6;
      if (change == 1) forged.own.until_s += 1'000'000;
      if (change == 2) forged.own.from_s -= 1'000'000;
      if (change == 3) forged.own.role = MemberRole::inviter;
      CHECK(admin.fault(forged));
    }
  }

  TEST_CASE(
      "who is no inviter, or not the admin's, makes no members, and nobody but the admin "
      "inviters") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto newcomer = identity_of(2).id();
    CHECK(contains(
        admin.fault(admin.invited(admin.member(inviter.id(), 1000), inviter, newcomer, 1001)),
        "no inviter"));
    const auto word = admin.inviter(inviter.id(), 1000);
    CHECK(contains(admin.fault(admin.invited(word, inviter, newcomer, 1101)), "serial"));
    CHECK(contains(admin.fault(admin.invited(word, inviter, newcomer, 1000)), "serial"));
    CHECK(contains(admin.fault(admin.invited(word, identity_of(9), newcomer, 1001)),
                   "not signed by the inviter"));
    Admin other;
    other.key = identity_of(201);
    CHECK(contains(
        admin.fault(other.invited(other.inviter(inviter.id(), 1000), inviter, newcomer, 1001)),
        "comes from an inviter"));
    auto climber = admin.invited(word, inviter, newcomer, 1001);
    climber.own.role = MemberRole::inviter;
    climber.own.issues = {5, 5};
    sign(climber.own, admin.swarm, inviter);
    CHECK(contains(admin.fault(climber), "only the admin"));
  }

  TEST_CASE("a certificate counts in its time, and five minutes before and after") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto chain = admin.member(identity_of(2).id(), 5);
    CHECK(contains(admin.fault(chain, admin.from_s - 301), "valid only in"));
    CHECK_FALSE(admin.fault(chain, admin.from_s - 300));
    CHECK_FALSE(admin.fault(chain, admin.until_s + 299));
    CHECK(contains(admin.fault(chain, admin.until_s + 300), "expired"));
    auto short_lived = admin.inviter(inviter.id(), 1000);
    short_lived.own.until_s = admin.from_s + 10;
    sign(short_lived.own, admin.swarm, admin.key);
    CHECK(contains(admin.fault(admin.invited(short_lived, inviter, identity_of(2).id(), 1001)),
                   "inviter whose own expired"));
  }

  TEST_CASE("chains survive their bytes, and anything cut, added or unknown is refused") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto node = identity_of(2).id();
    const auto word = admin.inviter(inviter.id(), 1000);
    for (const auto& chain :
         {admin.member(node, 5), admin.invited(word, inviter, node, 1001), word}) {
      const auto& shown_by = chain.own.node;
      const auto bytes = encode_chain(chain);
      CHECK(bytes.size() <= limits::kMaxCertificate);
      CHECK(decode_chain(shown_by, bytes).value() == chain);
      for (std::size_t size = 0; size < bytes.size(); ++size) {
        // The own certificate alone is whole too, and void without its inviter's.
        const auto part = decode_chain(shown_by, ByteView(bytes).first(size));
        if (part) CHECK(admin.fault(*part));
      }
      auto longer = bytes;
      longer.push_back(std::byte{0});
      CHECK_FALSE(decode_chain(shown_by, longer));
      auto other_version = bytes;
      other_version[0] = std::byte{2};
      CHECK_FALSE(decode_chain(shown_by, other_version));
      auto other_role = bytes;
      other_role[1] = std::byte{2};
      CHECK_FALSE(decode_chain(shown_by, other_role));
    }
    CHECK(decode_chain(node, Bytes(limits::kMaxCertificate + 1)).error().code == Errc::too_large);
  }

  TEST_CASE("every byte of a chain counts") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto node = identity_of(2).id();
    const auto bytes =
        encode_chain(admin.invited(admin.inviter(inviter.id(), 1000), inviter, node, 1001));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      auto changed = bytes;
      changed[i] ^= std::byte{1};
      const auto chain = decode_chain(node, changed);
      CAPTURE(i);
      CHECK((!chain || admin.fault(*chain)));
    }
  }

  TEST_CASE("a membership survives its file, and says whose it is") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto node = identity_of(2).id();
    const Membership membership{
        admin.swarm, admin.key.id(),
        admin.invited(admin.inviter(inviter.id(), 1000), inviter, node, 1001)};
    const auto text = print_membership(membership);
    CHECK(text.size() <= limits::kMaxMembershipText);
    CHECK(parse_membership(text).value() == membership);
    auto another = text;
    another[text.find("node ") + 5] ^= 1;
    CHECK_FALSE(parse_membership(another));
    CHECK_FALSE(parse_membership(text + "more 1\n"));
    CHECK_FALSE(parse_membership(text.substr(0, text.size() / 2)));
    CHECK_FALSE(parse_membership(text.substr(0, text.size() - 10)));
    CHECK_FALSE(parse_membership(""));
    CHECK(parse_membership(std::string(limits::kMaxMembershipText + 1, ' ')).error().code ==
          Errc::too_large);
  }

  // Reproduced without our code by certificate_vectors.py.
  TEST_CASE("what is signed never changes") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto node = identity_of(2).id();
    CHECK(hash_of(encode_chain(
              admin.invited(admin.inviter(inviter.id(), 1000), inviter, node, 1001))) ==
          "ae4db2b29a66ccc9316c1c6157afe3cb5c55302b1e4fe0c666daad0c386a2471");
    CHECK(hash_of(encode_revocations(admin.revoke(3, {node, inviter.id()}, {5, 1001})).value()) ==
          "2b7523fc1ddde5e0bae7f33043dc7782f80cec18ae702c3d2e56d735fa745b5e");
  }

  TEST_CASE("an admin key is a file of mode 0600 that is never replaced") {
    const TempFolder scratch;
    const auto file = scratch.path() / "admin.key";
    const SwarmId swarm{std::array<std::byte, 32>{std::byte{7}}};
    const auto made = AdminKey::create(file, swarm).value();
    struct stat info{};
    REQUIRE(::stat(file.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777U) == 0600);
    const auto loaded = AdminKey::load(file).value();
    CHECK(loaded.key.id() == made.key.id());
    CHECK(loaded.swarm == swarm);
    CHECK(AdminKey::create(file, swarm).error().code == Errc::already_exists);
    scratch.write("nothing", "starling-admin 1\nkey AAAA\n");
    REQUIRE(::chmod((scratch.path() / "nothing").c_str(), 0600) == 0);
    CHECK(AdminKey::load(scratch.path() / "nothing").error().code == Errc::corrupt);
    CHECK(fresh_serial() != fresh_serial());
  }
}

TEST_SUITE("transport/revocation") {
  TEST_CASE("a revoked node is out whatever it shows, and a revoked certificate alone") {
    const Admin admin;
    const auto inviter = identity_of(1);
    const auto node = identity_of(2).id();
    const auto word = admin.inviter(inviter.id(), 1000);
    const auto direct = admin.member(node, 5);
    const auto invited = admin.invited(word, inviter, node, 1001);
    CHECK(admin.revoke(1, {node}).fault_in(node, nullptr));
    CHECK(admin.revoke(1, {node}).fault_in(node, &direct));
    CHECK(admin.revoke(1, {}, {5}).fault_in(node, &direct));
    CHECK_FALSE(admin.revoke(1, {}, {5}).fault_in(node, &invited));
    CHECK(contains(admin.revoke(1, {inviter.id()}).fault_in(node, &invited), "inviter"));
    CHECK(contains(admin.revoke(1, {}, {1000}).fault_in(node, &invited), "inviter"));
    CHECK_FALSE(admin.revoke(1, {inviter.id()}, {1000}).fault_in(node, &direct));
  }

  TEST_CASE("a higher number replaces a lower one, and of equal ones everybody keeps the same") {
    const Admin admin;
    const auto node = identity_of(2).id();
    const auto first = admin.revoke(1, {node});
    const auto second = admin.revoke(2, {});
    CHECK(first.replaces(Revocations{}));
    CHECK(second.replaces(first));
    CHECK_FALSE(first.replaces(second));
    CHECK_FALSE(first.replaces(first));
    const auto twin = admin.revoke(1, {});
    CHECK(first.replaces(twin) != twin.replaces(first));
    CHECK_FALSE(Revocations{}.replaces(Revocations{}));
  }

  TEST_CASE("lists survive bytes and text, and what is not canonical is refused") {
    const Admin admin;
    const auto list = admin.revoke(3, {identity_of(1).id(), identity_of(2).id()}, {1, 2, 77});
    const auto bytes = encode_revocations(list).value();
    CHECK(decode_revocations(bytes).value() == list);
    CHECK(parse_revocations(print_revocations(list).value()).value() == list);
    CHECK(signed_by(admin.key.id(), list, admin.swarm));
    CHECK_FALSE(signed_by(identity_of(1).id(), list, admin.swarm));
    CHECK_FALSE(signed_by(admin.key.id(), list, SwarmId{}));
    for (std::size_t size = 0; size < bytes.size(); ++size)
      CHECK_FALSE(decode_revocations(ByteView(bytes).first(size)));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      auto changed = bytes;
      changed[i] ^= std::byte{1};
      const auto other = decode_revocations(changed);
      CAPTURE(i);
      CHECK((!other || !signed_by(admin.key.id(), *other, admin.swarm)));
    }
    CHECK_FALSE(parse_revocations("starling-revoked "));
    CHECK_FALSE(parse_revocations("starling-revoked A\n"));
    auto swapped = bytes;
    std::swap_ranges(swapped.begin() + 17, swapped.begin() + 25, swapped.begin() + 25);
    CHECK(decode_revocations(swapped).error().detail.find("order") != std::string::npos);
  }

  TEST_CASE("a list of more than 64 KiB is neither made nor read, and counts reserve nothing") {
    const Admin admin;
    Revocations list{1, {}, {}, {}};
    for (std::uint64_t serial = 1; serial <= 8'300; ++serial) list.serials.insert(serial);
    CHECK(encode_revocations(list).error().code == Errc::too_large);
    list.serials.erase(list.serials.begin(), list.serials.lower_bound(200));
    sign(list, admin.swarm, admin.key);
    const auto bytes = encode_revocations(list).value();
    CHECK(bytes.size() <= limits::kMaxRevocations);
    CHECK(parse_revocations(print_revocations(list).value()).value() == list);
    CHECK(decode_revocations(Bytes(limits::kMaxRevocations + 1)).error().code == Errc::too_large);
    auto lies = encode_revocations(admin.revoke(1, {})).value();
    for (std::size_t i = 9; i < 17; ++i) lies[i] = std::byte{0xff};
    CHECK_FALSE(decode_revocations(lies));
  }
}

TEST_SUITE("transport/peer_rules") {
  TEST_CASE(
      "under an admin a session needs the list, a valid certificate or an invite of this node") {
    const Admin admin;
    const auto node = identity_of(2).id();
    const auto chain = admin.member(node, 5);
    auto rules = rules_of(admin);
    const auto why = [&](const Credentials& with) {
      const auto refused = rules.refusal(node, with);
      return refused ? refused->detail : std::string();
    };
    CHECK(why({}).find("no certificate") != std::string::npos);
    CHECK(why({.certificate = &chain, .now_s = kToday}).empty());
    CHECK(why({.certificate = &chain, .now_s = kToday * 2}).find("expired") != std::string::npos);
    CHECK(why({.invited = true, .now_s = kToday}).empty());
    rules.allowed.emplace().insert(identity_of(3).id());
    CHECK_FALSE(rules.refusal(identity_of(3).id()));
    CHECK(why({.certificate = &chain, .now_s = kToday}).empty());
    CHECK_FALSE(why({}).empty());
    rules.denied.insert(node);
    CHECK(why({.certificate = &chain, .now_s = kToday}).find("denied") != std::string::npos);
  }

  TEST_CASE("who was revoked is out, listed or invited or not") {
    const Admin admin;
    const auto node = identity_of(2).id();
    const auto chain = admin.member(node, 5);
    auto rules = rules_of(admin, admin.revoke(1, {node}));
    CHECK(rules.refusal(node, {.certificate = &chain, .now_s = kToday}));
    CHECK(rules.refusal(node, {.invited = true, .now_s = kToday}));
    rules.allowed.emplace().insert(node);
    CHECK(rules.refusal(node, {.now_s = kToday})->detail.find("revoked") != std::string::npos);
    rules.admin->revoked = admin.revoke(2, {}, {5});
    CHECK_FALSE(rules.refusal(node, {.now_s = kToday}));
    CHECK(rules.refusal(node, {.certificate = &chain, .now_s = kToday}));
  }
}

}  // namespace
}  // namespace starling::transport
