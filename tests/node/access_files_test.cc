#include "node/access_files.h"

#include "tests/support/temp_folder.h"
#include "tests/transport/certificates.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;
using transport::identity_of;
using transport::SwarmSecret;

namespace {

NodeId some_node(unsigned char number) {
  NodeId id;
  id.bytes.fill(std::byte{number});
  return id;
}

std::string line_of(const NodeId& id) { return to_hex(id.view()) + " somebody\n"; }

struct Folder {
  explicit Folder(AllowList allow_list = AllowList::optional)
      : files({.secret = secret,
               .allow = scratch.path() / "peers.allow",
               .deny = scratch.path() / "peers.deny",
               .membership = scratch.path() / "member.cert",
               .revoked = scratch.path() / "revoked"},
              allow_list, 24h, self) {
    REQUIRE(SwarmSecret::generate().create(secret.current));
  }

  // An admin of this folder's swarm.
  [[nodiscard]] transport::Admin admin() const {
    transport::Admin admin;
    admin.swarm = SwarmSecret::load(secret.current).value().swarm();
    return admin;
  }

  // What the second of two looks at the same files makes of them.
  [[nodiscard]] std::optional<Result<Access>> look(WallTime now = wall_now()) {
    CHECK_FALSE(files.look(now));
    return files.look(now);
  }

  NodeId self = identity_of(2).id();
  TempFolder scratch;
  SecretFiles secret = SecretFiles::beside(scratch.path() / "secret");
  AccessFiles files;
};

// Nothing can be opened while one of these lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_SUITE("node/access_files") {
  TEST_CASE("without lists everybody with the secret is welcome") {
    Folder folder;
    const auto access = folder.files.read(wall_now()).value();
    CHECK(access.secrets.has_value());
    CHECK(access.rules == transport::PeerRules{});
    CHECK_FALSE(folder.look());
  }

  TEST_CASE("a list that comes, changes and is emptied is noticed each time, once") {
    Folder folder;
    REQUIRE(folder.files.read(wall_now()));
    folder.scratch.write("peers.allow", line_of(some_node(1)));
    folder.scratch.write("peers.deny", "# nobody\n");
    const auto came = folder.look();
    REQUIRE(came);
    CHECK((*came)->rules.allowed == std::set{some_node(1)});
    CHECK((*came)->rules.denied.empty());
    CHECK_FALSE(folder.look());

    folder.scratch.write("peers.allow", line_of(some_node(1)) + line_of(some_node(2)));
    folder.scratch.write("peers.deny", line_of(some_node(2)));
    const auto changed = folder.look();
    REQUIRE(changed);
    CHECK((*changed)->rules.allowed == std::set{some_node(1), some_node(2)});
    CHECK((*changed)->rules.denied == std::set{some_node(2)});

    folder.scratch.write("peers.allow", "");
    const auto emptied = folder.look();
    REQUIRE(emptied);
    CHECK((*emptied)->rules.allowed == std::set<NodeId>{});
    CHECK_FALSE(folder.look());
  }

  TEST_CASE("a wrong line names file, line, value and remedy, and is told once") {
    Folder folder;
    REQUIRE(folder.files.read(wall_now()));
    folder.scratch.write("peers.deny", line_of(some_node(1)) + "mossy-otter\n");
    const auto wrong = folder.look();
    REQUIRE(wrong);
    REQUIRE_FALSE(*wrong);
    const auto& detail = wrong->error().detail;
    CHECK(detail.find("peers.deny: line 2: \"mossy-otter\"") != std::string::npos);
    CHECK(detail.find("starling id") != std::string::npos);
    CHECK_FALSE(folder.look());
    folder.scratch.write("peers.deny", line_of(some_node(1)));
    CHECK((*folder.look())->rules.denied == std::set{some_node(1)});
  }

  TEST_CASE("a list that is being written is obeyed when two looks in a row saw the same of it") {
    Folder folder;
    folder.scratch.write("peers.allow", line_of(some_node(1)));
    REQUIRE(folder.files.read(wall_now()));
    std::string text;
    for (int lines = 0; lines < 3; ++lines) {
      CAPTURE(lines);
      folder.scratch.write("peers.allow", text);
      CHECK_FALSE(folder.files.look(wall_now()));
      text += line_of(some_node(1)) + line_of(some_node(2));
    }
    folder.scratch.write("peers.allow", text);
    const auto whole = folder.look();
    REQUIRE(whole);
    CHECK((*whole)->rules.allowed == std::set{some_node(1), some_node(2)});
  }

  TEST_CASE("files that could not be read for a while are read again, and that is told once") {
    Folder folder;
    REQUIRE(folder.files.read(wall_now()));
    const auto file = folder.scratch.write("peers.deny", line_of(some_node(1)));
    {
      const NoDescriptors none;
      const auto failed = folder.look();
      REQUIRE(failed);
      REQUIRE_FALSE(*failed);
      CHECK(failed->error().code == Errc::io_failed);
      CHECK_FALSE(folder.look());
      // Whoever changed something waits for an answer.
      REQUIRE(::chmod(file.c_str(), 0600) == 0);
      CHECK(folder.look());
    }
    const auto later = folder.files.look(wall_now());
    REQUIRE(later);
    REQUIRE(later->has_value());
    CHECK((*later)->rules.denied == std::set{some_node(1)});
    CHECK_FALSE(folder.look());
  }

  TEST_CASE("a list that vanishes is an error and not an open door") {
    for (const auto* name : {"peers.allow", "peers.deny"}) {
      CAPTURE(name);
      Folder folder;
      folder.scratch.write(name, line_of(some_node(1)));
      REQUIRE(folder.files.read(wall_now()));
      std::filesystem::remove(folder.scratch.path() / name);
      const auto gone = folder.look();
      REQUIRE(gone);
      REQUIRE_FALSE(*gone);
      CHECK(gone->error().code == Errc::not_found);
      folder.scratch.write(name, line_of(some_node(2)));
      CHECK((*folder.look()).has_value());
    }
  }

  TEST_CASE("a list that others may write is refused with the command that mends it") {
    Folder folder;
    const auto file = folder.scratch.write("peers.allow", line_of(some_node(1)));
    REQUIRE(::chmod(file.c_str(), 0664) == 0);
    const auto refused = folder.files.read(wall_now());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::permission);
    CHECK(refused.error().detail.find("chmod 644") != std::string::npos);
  }

  TEST_CASE("what the message about a file's mode asks for is noticed when it is done") {
    Folder folder;
    REQUIRE(folder.files.read(wall_now()));
    const auto file = folder.scratch.write("peers.deny", line_of(some_node(1)));
    REQUIRE(::chmod(file.c_str(), 0664) == 0);
    const auto refused = folder.look();
    REQUIRE(refused);
    REQUIRE_FALSE(*refused);
    REQUIRE(::chmod(file.c_str(), 0644) == 0);
    const auto mended = folder.look();
    REQUIRE(mended);
    REQUIRE(mended->has_value());
    CHECK((*mended)->rules.denied == std::set{some_node(1)});
  }

  TEST_CASE("a closed swarm needs a list of allowed nodes or a certificate") {
    Folder folder(AllowList::required);
    const auto missing = folder.files.read(wall_now());
    REQUIRE_FALSE(missing);
    CHECK(missing.error().code == Errc::bad_config);
    CHECK(missing.error().detail.find("peers.allow") != std::string::npos);
    folder.scratch.write("peers.allow", line_of(some_node(1)));
    CHECK(folder.files.read(wall_now()).has_value());
  }

  TEST_CASE("a rotation of the secret is noticed at each of its steps") {
    Folder folder;
    REQUIRE(folder.files.read(wall_now()));
    REQUIRE(begin_rotation(folder.secret));
    auto begun = folder.look();
    REQUIRE(begun);
    CHECK((*begun)->secrets->key.current()->epoch == 0);
    REQUIRE(promote_next(folder.secret));
    auto promoted = folder.look();
    REQUIRE(promoted);
    CHECK((*promoted)->secrets->key.current()->epoch == 1);
    CHECK_FALSE(folder.look());
    CHECK(folder.look(wall_now() + 25h));
    CHECK_FALSE(folder.look(wall_now() + 26h));
  }

  TEST_CASE("what is left of another swarm is named before a newcomer's invite is spent") {
    const TempFolder scratch;
    const auto self = identity_of(2).id();
    const auto secret = SecretFiles::beside(scratch.path() / "secret");
    AccessFiles files({.secret = std::nullopt,
                       .allow = scratch.path() / "peers.allow",
                       .deny = scratch.path() / "peers.deny",
                       .membership = scratch.path() / "member.cert",
                       .revoked = scratch.path() / "revoked"},
                      AllowList::optional, 24h, self);
    const transport::Admin admin;
    const auto elsewhere = SwarmSecret::generate();
    const auto check = [&](const SwarmId& swarm) {
      return files.check_newcomer(files.read(wall_now()).value(), secret, swarm);
    };
    CHECK(check(elsewhere.swarm()));

    scratch.write("member.cert", transport::print_membership(
                                     {admin.swarm, admin.key.id(), admin.member(self, 5)}));
    CHECK(check(admin.swarm));
    const auto refused = check(elsewhere.swarm());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::wrong_swarm);
    CHECK(refused.error().detail.starts_with((scratch.path() / "member.cert").string()));

    REQUIRE(elsewhere.create(secret.next));
    const auto left = check(admin.swarm);
    REQUIRE_FALSE(left);
    CHECK(left.error().code == Errc::wrong_swarm);
    CHECK(left.error().detail.starts_with(secret.next.string()));
  }

  TEST_CASE("an open swarm has lists, too, and no secret") {
    const TempFolder scratch;
    scratch.write("peers.deny", line_of(some_node(1)));
    AccessFiles files({.secret = std::nullopt,
                       .allow = scratch.path() / "peers.allow",
                       .deny = scratch.path() / "peers.deny",
                       .membership = {},
                       .revoked = {}},
                      AllowList::optional, 24h, {});
    const auto access = files.read(wall_now()).value();
    CHECK_FALSE(access.secrets.has_value());
    CHECK(access.rules.denied == std::set{some_node(1)});
  }

  TEST_CASE("a certificate of this node makes the swarm closed, with what was revoked") {
    Folder folder(AllowList::required);
    REQUIRE_FALSE(folder.files.read(wall_now()));
    const auto admin = folder.admin();
    const transport::Membership membership{admin.swarm, admin.key.id(),
                                           admin.member(folder.self, 5)};
    folder.scratch.write("member.cert", transport::print_membership(membership));
    const auto came = folder.look();
    REQUIRE(came);
    REQUIRE(came->has_value());
    CHECK((*came)->membership == membership);
    CHECK((*came)->rules.admin->admin == admin.key.id());
    CHECK((*came)->rules.admin->revoked.number == 0);

    const auto list = admin.revoke(3, {some_node(1)});
    folder.scratch.write("revoked", transport::print_revocations(list).value());
    const auto revoked = folder.look();
    REQUIRE(revoked);
    CHECK((*revoked)->rules.admin->revoked == list);
    CHECK_FALSE(folder.look());
    for (const auto* name : {"revoked", "member.cert"}) {
      CAPTURE(name);
      std::filesystem::remove(folder.scratch.path() / name);
      const auto gone = folder.look();
      REQUIRE(gone);
      REQUIRE_FALSE(*gone);
      CHECK(gone->error().code == Errc::not_found);
    }
  }

  TEST_CASE(
      "a certificate of another node, swarm or admin, and a list of another admin, change "
      "nothing") {
    Folder folder;
    const auto admin = folder.admin();
    const auto code_with = [&](const transport::Membership& membership) {
      folder.scratch.write("member.cert", transport::print_membership(membership));
      const auto read = folder.files.read(wall_now());
      return read ? Errc::internal : read.error().code;
    };
    CHECK(code_with({admin.swarm, admin.key.id(), admin.member(some_node(1), 5)}) ==
          Errc::wrong_identity);
    CHECK(code_with({admin.swarm, some_node(1), admin.member(folder.self, 5)}) ==
          Errc::bad_signature);
    const transport::Admin elsewhere;
    CHECK(code_with({elsewhere.swarm, elsewhere.key.id(), elsewhere.member(folder.self, 5)}) ==
          Errc::wrong_swarm);
    CHECK(code_with({admin.swarm, admin.key.id(), admin.member(folder.self, 5)}) == Errc::internal);
    transport::Admin other;
    other.swarm = admin.swarm;
    other.key = identity_of(201);
    folder.scratch.write("revoked", transport::print_revocations(other.revoke(1, {})).value());
    CHECK(folder.files.read(wall_now()).error().code == Errc::bad_signature);
    folder.scratch.write("revoked", "nothing\n");
    CHECK(folder.files.read(wall_now()).error().code == Errc::corrupt);
  }
}
