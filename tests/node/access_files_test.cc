#include "node/access_files.h"

#include "tests/support/temp_folder.h"
#include "tests/transport/certificates.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
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

// A node that was given its secret in another folder, as a mounted one.
struct Mounted {
  Mounted() {
    std::filesystem::create_directories(given.current.parent_path());
    REQUIRE(SwarmSecret::generate().create(given.current));
    REQUIRE(files.read(wall_now()));
  }

  // As at a start of the node.
  [[nodiscard]] AccessFiles started() const {
    return {{.secret = given,
             .allow = scratch.path() / "peers.allow",
             .deny = scratch.path() / "peers.deny",
             .membership = {},
             .revoked = {},
             .ordered = ordered},
            AllowList::optional,
            24h,
            {}};
  }
  [[nodiscard]] SecretsAtHand look() {
    CHECK_FALSE(files.look(wall_now()));
    auto access = files.look(wall_now());
    REQUIRE(access);
    return std::move(*(*access).value().secrets);
  }
  static bool accepts(const SecretsAtHand& at_hand, const SwarmSecret& secret) {
    return at_hand.key.find(transport::SwarmKey::of(secret).current()->id) != nullptr;
  }

  TempFolder scratch;
  SecretFiles given = SecretFiles::beside(scratch.path() / "mounted" / "secret");
  SecretFiles ordered = SecretFiles::ordered_in(scratch.path());
  AccessFiles files = started();
};

// What write_whole() writes before it renames it to `file`.
std::filesystem::path fresh_file_of(const std::filesystem::path& file) {
  return file.parent_path() /
         ("." + file.filename().string() + "." + std::to_string(::getpid()) + ".new");
}

// No secret can be written beside `given` while this lives, not by root either: a link that nobody
// follows is in the way, which is Errc::permission as a read-only file system is.
class ReadOnly {
 public:
  explicit ReadOnly(const SecretFiles& given)
      : links_{fresh_file_of(given.next), fresh_file_of(given.previous)} {
    for (const auto& link : links_) std::filesystem::create_symlink("nowhere", link);
  }
  ~ReadOnly() {
    for (const auto& link : links_) std::filesystem::remove(link);
  }
  ReadOnly(const ReadOnly&) = delete;
  ReadOnly& operator=(const ReadOnly&) = delete;

 private:
  std::array<std::filesystem::path, 2> links_;
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

  TEST_CASE("a list, certificate or secret that is a link to nothing is no open door") {
    for (const auto* name : {"peers.allow", "peers.deny", "member.cert", "secret.next"}) {
      CAPTURE(name);
      Folder folder;
      REQUIRE(folder.files.read(wall_now()));
      const auto link = folder.scratch.path() / name;
      std::filesystem::create_symlink("unmounted", link);
      for (const auto& access : {folder.look().value(), folder.files.read(wall_now())}) {
        REQUIRE_FALSE(access);
        CHECK(access.error().code == Errc::permission);
        CHECK(access.error().detail.find(link.string() + ": a symbolic link to unmounted") == 0);
      }
      std::filesystem::remove(link);
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

  TEST_CASE("a secret that is mounted read-only is rotated in the node's folder") {
    Mounted at;
    const auto first = SwarmSecret::load(at.given.current).value();
    const auto next = first.rotated();
    const auto text = next.print();
    {
      const ReadOnly mount(at.given);
      CHECK(at.files.keep_next(as_bytes(text)).value() == at.ordered.next);
    }
    CHECK_FALSE(std::filesystem::exists(at.given.next));
    const auto during = at.look();
    CHECK(during.is_next);
    CHECK(during.key.current()->epoch == 0);
    CHECK(Mounted::accepts(during, next));

    REQUIRE(at.files.promote());
    const auto after = at.look();
    CHECK_FALSE(after.is_next);
    CHECK(after.previous);
    CHECK(after.key.current()->epoch == 1);
    CHECK(Mounted::accepts(after, first));
    CHECK_FALSE(at.files.look(wall_now()));
    CHECK(at.files.secret()->previous == at.ordered.previous);
    CHECK(SwarmSecret::load(at.given.current).value().epoch() == 0);

    // The next rotation, after a new start.
    at.files = at.started();
    CHECK(at.files.read(wall_now()).value().secrets->key.current()->epoch == 1);
    const auto third = next.rotated().print();
    CHECK(at.files.keep_next(as_bytes(third)).value() == at.ordered.next);
    CHECK(at.look().newest.epoch() == 2);
    REQUIRE(at.files.promote());
    CHECK(at.look().key.current()->epoch == 2);
  }

  TEST_CASE("a next secret that is mounted takes over in the node's folder, and stays mounted") {
    Mounted at;
    REQUIRE(begin_rotation(at.given));
    CHECK(at.look().is_next);
    {
      const ReadOnly mount(at.given);
      REQUIRE(at.files.promote());
    }
    const auto after = at.look();
    CHECK(after.key.current()->epoch == 1);
    CHECK_FALSE(after.is_next);
    CHECK_FALSE(after.ignored);
    CHECK(std::filesystem::exists(at.given.next));
    CHECK(SwarmSecret::load(at.given.current).value().epoch() == 0);
  }

  TEST_CASE(
      "a folder that can be written has all of a rotation, and a disk that fails moves nothing") {
    Mounted at;
    const auto next = SwarmSecret::load(at.given.current).value().rotated().print();
    const auto in_the_way = fresh_file_of(at.given.next);
    std::filesystem::create_directories(in_the_way);
    CHECK(at.files.keep_next(as_bytes(next)).error().code == Errc::io_failed);
    std::filesystem::remove(in_the_way);
    CHECK(at.files.keep_next(as_bytes(next)).value() == at.given.next);
    CHECK(at.look().is_next);
    REQUIRE(at.files.promote());
    CHECK(at.look().key.current()->epoch == 1);
    CHECK(SwarmSecret::load(at.given.current).value().epoch() == 1);
    CHECK_FALSE(std::filesystem::exists(at.ordered.current));
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
      std::filesystem::rename(folder.scratch.path() / name, folder.scratch.path() / "moved");
      std::filesystem::create_symlink("nowhere", folder.scratch.path() / name);
      CHECK(folder.look()->error().code == Errc::permission);
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
