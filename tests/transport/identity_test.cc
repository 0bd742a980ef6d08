#include "transport/identity.h"

#include "node/base/fault.h"
#include "tests/support/temp_folder.h"
#include "transport/private_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <string>

namespace starling::transport {
namespace {

std::size_t files_in(const TempFolder& folder) {
  const std::filesystem::directory_iterator entries(folder.path());
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

TEST_SUITE("transport/identity") {
  TEST_CASE("a signature counts for its bytes, its domain and its signer alone") {
    const auto identity = Identity::generate();
    const auto other = Identity::generate();
    const Ed25519Verifier verifier;
    const auto message = as_bytes("a record");
    const auto signature = identity.sign("starling/test/1", message);

    CHECK(verifier.verify(identity.id(), "starling/test/1", message, signature) == Verdict::valid);
    CHECK(verifier.verify(identity.id(), "starling/test/2", message, signature) ==
          Verdict::invalid);
    CHECK(verifier.verify(other.id(), "starling/test/1", message, signature) == Verdict::invalid);
    CHECK(verifier.verify(identity.id(), "starling/test/1", as_bytes("a recorD"), signature) ==
          Verdict::invalid);
    // Moving bytes between domain and message makes another statement.
    CHECK(verifier.verify(identity.id(), "starling/test/1a", as_bytes(" record"), signature) ==
          Verdict::invalid);
    CHECK(verifier.verify(NodeId{}, "starling/test/1", message, signature) == Verdict::invalid);
  }

  TEST_CASE("a key file is made once, private, and found again") {
    const TempFolder folder;
    const auto path = folder.path() / "identity";
    CHECK(Identity::load(path).error().code == Errc::not_found);
    const auto made = Identity::load_or_create(path).value().id();
    CHECK(Identity::load_or_create(path).value().id() == made);
    CHECK(Identity::create(path).error().code == Errc::already_exists);
    struct stat info{};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK((info.st_mode & 0777U) == 0600U);
  }

#ifdef STARLING_FAULTS
  TEST_CASE("a key file is whole or not there, also where its writer dies in the middle") {
    const TempFolder folder;
    const auto path = folder.path() / "identity";
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const fault::Armed death(*fault::find_point("key.write"), {.effect = fault::Effect::kill});
      (void)Identity::create(path);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGKILL);

    CHECK(Identity::load(path).error().code == Errc::not_found);
    // What it left is known for unfinished: hidden, with the number of its writer.
    REQUIRE(files_in(folder) == 1);
    const auto left = std::filesystem::directory_iterator(folder.path())->path().filename();
    CHECK(left.string().starts_with(".identity."));
    CHECK(left.string().ends_with("." + std::to_string(child) + ".new"));
    const auto made = Identity::load_or_create(path);
    REQUIRE(made);
    CHECK(Identity::load(path).value().id() == made->id());
  }

  TEST_CASE("a disk that is full while a key file is written keeps nothing of it") {
    const TempFolder folder;
    const fault::Armed full(*fault::find_point("key.write"));
    CHECK(Identity::create(folder.path() / "identity").error().code == Errc::disk_full);
    CHECK(files_in(folder) == 0);
  }
#endif

  TEST_CASE("a key file takes no name that is taken, and leaves nothing behind then") {
    const TempFolder folder;
    const auto path = folder.path() / "identity";
    const auto elsewhere = folder.path() / "elsewhere";
    std::filesystem::create_symlink(elsewhere, path);
    CHECK(Identity::create(path).error().code == Errc::already_exists);
    CHECK(files_in(folder) == 1);  // the link, that nobody followed
    REQUIRE(std::filesystem::remove(path));

    REQUIRE(create_private_file(path, "first"));
    CHECK(create_private_file(path, "second").error().code == Errc::already_exists);
    CHECK(read_private_file(path, 100, Ownership::own).value() == "first");
    CHECK(files_in(folder) == 1);
  }

  TEST_CASE("a key file that others can read is refused, with the command that mends it") {
    const TempFolder folder;
    const auto path = folder.path() / "identity";
    REQUIRE(Identity::create(path));
    for (const mode_t mode : {0640U, 0604U, 0660U, 0644U}) {
      REQUIRE(::chmod(path.c_str(), mode) == 0);
      const auto loaded = Identity::load(path);
      REQUIRE_FALSE(loaded);
      CHECK(loaded.error().code == Errc::permission);
      CHECK(loaded.error().detail.find("chmod 600") != std::string::npos);
    }
  }

  TEST_CASE("an identity of a newer program, or on a disk that is not mounted, is called so") {
    const TempFolder folder;
    const auto path = folder.path() / "identity";
    std::filesystem::create_symlink("unmounted", path);
    for (const auto& loaded : {Identity::load(path), Identity::load_or_create(path)}) {
      REQUIRE_FALSE(loaded);
      CHECK(loaded.error().code == Errc::permission);
      CHECK(loaded.error().detail.find("a symbolic link to unmounted") != std::string::npos);
    }
    REQUIRE(std::filesystem::remove(path));
    REQUIRE(create_private_file(path, "starling-identity 2\nAAAA\n"));
    const auto newer = Identity::load(path);
    REQUIRE_FALSE(newer);
    CHECK(newer.error().code == Errc::unsupported);
    CHECK(newer.error().detail.find(path.string() + " is an identity file of a newer program") ==
          0);
  }

  TEST_CASE("a file that is no key, is too long, or is a folder is refused") {
    const TempFolder folder;
    const auto path = folder.path() / "identity";
    REQUIRE(create_private_file(path, "starling-identity 1\nAAAA\n"));
    CHECK(Identity::load(path).error().code == Errc::corrupt);
    const auto longer = folder.path() / "longer";
    REQUIRE(create_private_file(longer, std::string(5000, 'x')));
    CHECK(Identity::load(longer).error().code == Errc::too_large);
    CHECK(Identity::load(folder.path()).error().code == Errc::permission);
    CHECK(create_private_file(folder.path() / "no" / "such", "x").error().code == Errc::not_found);
  }

  TEST_CASE("a seed gives the key pair of RFC 8032, test 1") {
    const auto seed =
        from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").value();
    const auto identity = Identity::from_seed(std::span<const std::byte, 32>(seed.data(), 32));
    CHECK(to_hex(identity.id().view()) ==
          "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  }
}

}  // namespace
}  // namespace starling::transport
