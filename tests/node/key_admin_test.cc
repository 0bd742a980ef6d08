#include "node/state_dir.h"
#include "tests/node/said.h"
#include "tests/support/temp_folder.h"
#include "transport/admin_key.h"
#include "transport/member_certificate.h"
#include "transport/revocation.h"
#include "transport/secret.h"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::node;
using namespace starling::node::testing;

namespace {

// A swarm with a secret, an admin key and a node that never ran.
struct AdminsDesk {
  AdminsDesk() {
    REQUIRE(said_by({"key", "new", "--dir", dir}).code == 0);
    REQUIRE(said_by({"key", "admin", key, "--dir", dir}).code == 0);
    id = said_by({"id", "--dir", dir}).out.substr(0, 64);
  }
  [[nodiscard]] Said certify(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"key", "certify", id, "--admin-key", key});
    return said_by(more);
  }
  [[nodiscard]] Said revoke(std::vector<std::string> more) const {
    more.insert(more.begin(), {"key", "revoke"});
    more.insert(more.end(), {"--admin-key", key});
    return said_by(more);
  }
  [[nodiscard]] transport::Revocations list() const {
    return transport::parse_revocations(
               read_whole(key + ".revoked", transport::kMaxRevocationsText).value())
        .value();
  }

  TempFolder scratch;
  std::string dir = (scratch.path() / "node").string();
  std::string key = (scratch.path() / "admin.key").string();
  std::string id;
};

}  // namespace

TEST_SUITE("node/key_admin") {
  TEST_CASE("key admin makes one key for the swarm of the secret and never replaces it") {
    const AdminsDesk desk;
    const auto admin = transport::AdminKey::load(desk.key).value();
    CHECK(admin.swarm == transport::SwarmSecret::load(desk.dir + "/secret").value().swarm());
    CHECK(said_by({"key", "admin", desk.key, "--dir", desk.dir}).code == 3);
    CHECK(said_by({"key", "admin", "--dir", desk.dir}).code == 2);
    CHECK(transport::AdminKey::load(desk.key).value().key.id() == admin.key.id());
  }

  TEST_CASE(
      "key certify prints a certificate of this swarm for that node, with its role and time") {
    const AdminsDesk desk;
    const auto admin = transport::AdminKey::load(desk.key).value();
    const auto made = transport::parse_membership(desk.certify().out).value();
    CHECK(made.swarm == admin.swarm);
    CHECK(made.admin == admin.key.id());
    CHECK(to_hex(made.chain.own.node.view()) == desk.id);
    CHECK(made.chain.own.role == transport::MemberRole::member);
    CHECK(made.chain.own.until_s - made.chain.own.from_s == 90U * 24 * 3600);
    const auto said = desk.certify({"--role", "inviter", "--ttl", "2h"});
    const auto inviter = transport::parse_membership(said.out).value().chain.own;
    CHECK(inviter.role == transport::MemberRole::inviter);
    CHECK(inviter.until_s - inviter.from_s == 7200U);
    CHECK(inviter.issues.contains(inviter.serial + 65'535));
    CHECK_FALSE(inviter.issues.contains(inviter.serial));
    CHECK(contains(said.err, "member.cert"));
    CHECK(inviter.serial != made.chain.own.serial);
  }

  TEST_CASE("key certify names what is wrong and prints no certificate") {
    const AdminsDesk desk;
    for (const auto& words : std::vector<std::vector<std::string>>{
             {"--role", "king"}, {"--ttl", "1m"}, {"--ttl", "soon"}, {"--list", "x"}}) {
      const auto said = desk.certify(words);
      CHECK(said.code == 2);
      CHECK(said.out.empty());
      CHECK(contains(said.err, words[0]));
    }
    CHECK(said_by({"key", "certify", "mossy-otter", "--admin-key", desk.key}).code == 2);
    CHECK(contains(said_by({"key", "certify", desk.id}).err, "--admin-key"));
    CHECK(said_by({"key", "certify", desk.id, "--admin-key", desk.dir + "/secret"}).code == 3);
  }

  TEST_CASE("key revoke makes each list from the one before it") {
    const AdminsDesk desk;
    const auto admin = transport::AdminKey::load(desk.key).value();
    CHECK(desk.revoke({desk.id, "--no-list"}).code == 0);
    CHECK(desk.list().number == 1);
    CHECK(desk.revoke({"00000000000000ff", std::string(64, 'a')}).code == 0);
    const auto list = desk.list();
    CHECK(list.number == 2);
    CHECK(list.nodes.size() == 2);
    CHECK(list.serials == std::set<std::uint64_t>{255});
    CHECK(transport::signed_by(admin.key.id(), list, admin.swarm));
    CHECK(contains(desk.revoke({desk.id}).out, "already"));
    CHECK(desk.list() == list);
    CHECK(desk.revoke({"xyz"}).code == 2);
    CHECK(desk.revoke({}).code == 2);
    CHECK(desk.list() == list);
  }

  TEST_CASE("a list that is missing is taken for no empty one, unless there never was one") {
    const AdminsDesk desk;
    const auto file = desk.key + ".revoked";
    const auto rotate = [&](std::vector<std::string> more) {
      more.insert(more.begin(), {"key", "rotate", "--dir", desk.dir, "--admin-key", desk.key});
      return said_by(more);
    };
    REQUIRE(desk.revoke({desk.id, "--no-list"}).code == 0);
    REQUIRE(said_by({"id", "--dir", desk.dir}).code == 0);
    std::filesystem::rename(file, file + ".away");

    for (const auto& said : {desk.revoke({std::string(64, 'a')}), rotate({})}) {
      CHECK(said.code == 3);
      CHECK(contains(said.err, file + ": there is no list"));
      CHECK(contains(said.err, "--no-list"));
    }
    CHECK_FALSE(std::filesystem::exists(file));
    CHECK_FALSE(std::filesystem::exists(desk.dir + "/secret.next"));

    // Said of a list that is there, it is a mistake as well.
    std::filesystem::rename(file + ".away", file);
    for (const auto& said :
         {desk.revoke({std::string(64, 'a'), "--no-list"}), rotate({"--no-list"})}) {
      CHECK(said.code == 2);
      CHECK(contains(said.err, file));
    }
    CHECK(desk.list().number == 1);
    CHECK_FALSE(std::filesystem::exists(desk.dir + "/secret.next"));
    std::filesystem::remove(file);
    CHECK(rotate({"--no-list"}).code == 0);
    CHECK(transport::SwarmSecret::load(desk.dir + "/secret.next").value().order()->revocations ==
          0);
  }

  TEST_CASE("key revoke adds to no list of another admin") {
    const AdminsDesk desk;
    const AdminsDesk other;
    REQUIRE(other.revoke({other.id, "--no-list"}).code == 0);
    const auto said = desk.revoke({desk.id, "--list", other.key + ".revoked"});
    CHECK(said.code != 0);
    CHECK(contains(said.err, "not signed by this admin key"));
  }

  TEST_CASE("key rotate with the admin's key makes a secret with an order that names the list") {
    const AdminsDesk desk;
    const auto admin = transport::AdminKey::load(desk.key).value();
    REQUIRE(desk.revoke({desk.id, "--no-list"}).code == 0);
    CHECK(said_by({"key", "rotate", "--dir", desk.dir, "--list", "x"}).code == 2);
    CHECK(said_by({"key", "rotate", "--dir", desk.dir, "--no-list"}).code == 2);
    CHECK(said_by({"key", "rotate", "--dir", desk.dir, "--admin-key", desk.key}).code == 0);
    const auto next = transport::SwarmSecret::load(desk.dir + "/secret.next").value();
    CHECK(next.epoch() == 1);
    CHECK(next.ordered_by(admin.key.id()));
    CHECK(next.order()->revocations == 1);
    CHECK_FALSE(next.ordered_by(transport::Identity::generate().id()));
    const AdminsDesk other;
    const auto said = said_by({"key", "rotate", "--dir", other.dir, "--admin-key", desk.key});
    CHECK(said.code != 0);
    CHECK(contains(said.err, "admin key is of swarm"));
  }

  TEST_CASE("key rotate takes no list for an empty one because its name is wrong") {
    const AdminsDesk desk;
    const auto list = desk.dir + "/revoked";
    const auto rotate = [&](const std::string& file) {
      return said_by({"key", "rotate", "--dir", desk.dir, "--admin-key", desk.key, "--list", file});
    };
    const auto revoked = desk.revoke({desk.id, "--no-list", "--list", list});
    REQUIRE(revoked.code == 0);
    // What it says to do next names the same list.
    CHECK(contains(revoked.out, "rotate --admin-key " + desk.key + " --list " + list + "`"));
    const auto wrong = rotate(list + "d");
    CHECK(wrong.code == 3);
    CHECK(contains(wrong.err, list + "d"));
    CHECK(rotate(list).code == 0);
    CHECK(transport::SwarmSecret::load(desk.dir + "/secret.next").value().order()->revocations ==
          1);
  }

  TEST_CASE("key show tells of the certificate and of what was revoked") {
    const AdminsDesk desk;
    const auto text = desk.certify({"--role", "inviter"}).out;
    desk.scratch.write("node/member.cert", text);
    REQUIRE(
        desk.revoke({std::string(64, 'a'), "--no-list", "--list", desk.dir + "/revoked"}).code ==
        0);
    const auto shown =
        nlohmann::json::parse(said_by({"key", "show", "--dir", desk.dir, "--json"}).out);
    const auto& certificate = shown.at("certificate");
    CHECK(certificate.at("role") == "inviter");
    CHECK(certificate.at("node") == desk.id);
    CHECK(certificate.at("revocations") == 1);
    CHECK(certificate.at("revoked_nodes") == 1);
    CHECK(contains(said_by({"key", "show", "--dir", desk.dir}).out, "inviter"));
    // A list that cannot be read is not an empty one.
    desk.scratch.write("node/revoked", std::string(transport::kMaxRevocationsText + 1, 'x'));
    CHECK(said_by({"key", "show", "--dir", desk.dir, "--json"}).code != 0);
  }
}
