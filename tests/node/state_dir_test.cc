#include "node/state_dir.h"

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

using namespace starling;
using namespace starling::node;

namespace fs = std::filesystem;

TEST_SUITE("node/state_dir") {
  TEST_CASE("a folder belongs to one process, and a second one is told which") {
    const TempFolder scratch;
    const auto first = StateDir::open(scratch.path() / "a" / "b");
    REQUIRE(first);

    const auto second = StateDir::open(scratch.path() / "a" / "b");

    REQUIRE_FALSE(second);
    CHECK(second.error().code == Errc::already_exists);
    CHECK(second.error().detail.find(std::to_string(::getpid())) != std::string::npos);
  }

  TEST_CASE("whoever only looks at a folder changes nothing, and is told what a start would be") {
    const TempFolder scratch;
    const auto dir = scratch.path() / "a" / "b" / "";
    {
      const auto look = StateDir::look(dir);
      REQUIRE(look);
      CHECK(look->path() == scratch.path() / "a" / "b");
    }
    CHECK(fs::is_empty(scratch.path()));
    {
      const auto node = StateDir::open(dir);
      REQUIRE(node);
      REQUIRE(node->write_address("127.0.0.1:7700"));
      const auto busy = StateDir::look(dir);
      REQUIRE_FALSE(busy);
      CHECK(busy.error().code == Errc::already_exists);
      CHECK(busy.error().detail.find(std::to_string(::getpid())) != std::string::npos);
    }
    // A leftover that a start would remove, and a lock that nobody holds.
    scratch.write("a/b/address", "127.0.0.1:1\n");
    const auto before = fs::last_write_time(dir / "lock");
    {
      const auto look = StateDir::look(dir);
      CHECK(look);
    }
    CHECK(fs::exists(dir / "address"));
    CHECK(fs::last_write_time(dir / "lock") == before);
    CHECK(StateDir::open(dir));

    scratch.write("file", "");
    const auto file = StateDir::look(scratch.path() / "file");
    REQUIRE_FALSE(file);
    CHECK(file.error().detail.ends_with("choose another --dir"));
    CHECK_FALSE(StateDir::look(scratch.path() / "file" / "dir"));
  }

  TEST_CASE("a folder that cannot be made says which one above it and why") {
    // Nobody makes a folder there, not even root.
    const auto state = StateDir::open("/sys/starling-nobody/node");
    REQUIRE_FALSE(state);
    CHECK(state.error().code == Errc::permission);
    CHECK(state.error().detail.find("/sys/starling-nobody: cannot be made: ") == 0);
    CHECK(state.error().detail.ends_with("choose another --dir"));
  }

  TEST_CASE("the folder is private and free again after its process") {
    const TempFolder scratch;
    const auto dir = scratch.path() / "state" / "";
    {
      const auto state = StateDir::open(dir);
      REQUIRE(state);
      struct stat status{};
      REQUIRE(::stat(dir.c_str(), &status) == 0);
      CHECK((status.st_mode & 0777) == 0700);
      REQUIRE(state->write_address("127.0.0.1:7700"));
      CHECK(read_whole(state->address_file(), 100) == "127.0.0.1:7700\n");
    }
    CHECK_FALSE(fs::exists(dir / "address"));
    CHECK(StateDir::open(dir));
  }

  TEST_CASE("an address of an earlier process that was killed is gone before anything starts") {
    const TempFolder scratch;
    scratch.write("address", "127.0.0.1:1\n");
    const auto state = StateDir::open(scratch.path());
    REQUIRE(state);
    CHECK_FALSE(fs::exists(state->address_file()));
  }

  TEST_CASE("a FIFO or a device in the place of a file is an error, and keeps nobody waiting") {
    const TempFolder scratch;
    const auto fifo = scratch.path() / "peers.deny";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    for (const fs::path& file : {fifo, fs::path("/dev/zero"), scratch.path()}) {
      CAPTURE(file.string());
      const auto text = read_whole(file, 100);
      REQUIRE_FALSE(text);
      CHECK(text.error().code == Errc::permission);
      CHECK(text.error().detail.find(file.string() + ": not a regular file") == 0);
    }
    CHECK(read_whole("/dev/null", 100) == "");  // as in `--config /dev/null`
  }

  TEST_CASE(
      "a link that leads nowhere is no missing file: on a disk that is not mounted it is one") {
    const TempFolder scratch;
    const auto target = scratch.path() / "unmounted";
    for (const std::string name : {"incarnation", "final"})
      fs::create_symlink(target, scratch.path() / name);
    for (const std::string name : {"incarnation", "final/certificate.json"}) {
      const auto text = read_whole(scratch.path() / name, 100);
      REQUIRE_FALSE(text);
      CAPTURE(text.error().detail);
      CHECK(text.error().code == Errc::permission);
      CHECK(text.error().detail.find((scratch.path() / name).string()) == 0);
      CHECK(text.error().detail.find(target.string()) != std::string::npos);
      CHECK(text.error().detail.find("mount or put back") != std::string::npos);
    }
    const auto state = StateDir::open(scratch.path());
    REQUIRE(state);
    CHECK_FALSE(state->read_incarnation());  // not 0: peers would take this node for an old record
  }

  TEST_CASE("a pipe that the process was given is read to its end") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    REQUIRE(::write(ends[1], "a\nb\n", 4) == 4);
    ::close(ends[1]);
    CHECK(read_whole(fmt::format("/dev/fd/{}", ends[0]), 100) == "a\nb\n");
    ::close(ends[0]);
  }

  TEST_CASE("incarnations start at zero and go on where the ceiling was") {
    const TempFolder scratch;
    const auto state = StateDir::open(scratch.path());
    REQUIRE(state);
    CHECK(state->read_incarnation() == Incarnation{0});
    REQUIRE(state->write_incarnation_ceiling({kIncarnationStride}));
    CHECK(state->read_incarnation() == Incarnation{kIncarnationStride});
    scratch.write("incarnation", "12x\n");
    REQUIRE_FALSE(state->read_incarnation());
    CHECK(state->read_incarnation().error().code == Errc::corrupt);
  }

  TEST_CASE("an incarnation that leaves no room for more is refused as what it is: damage") {
    const TempFolder scratch;
    const auto state = StateDir::open(scratch.path());
    REQUIRE(state);
    scratch.write("incarnation", "18446744073709551615\n");
    REQUIRE_FALSE(state->read_incarnation());
    CHECK(state->read_incarnation().error().code == Errc::corrupt);
  }

  TEST_CASE("a lock that is a link is refused, and what it leads to is left as it is") {
    const TempFolder scratch;
    const auto elsewhere = scratch.write("elsewhere", "mine");
    fs::create_symlink(elsewhere, scratch.path() / "lock");
    const auto state = StateDir::open(scratch.path());
    REQUIRE_FALSE(state);
    CHECK(state.error().code == Errc::permission);
    CHECK(read_whole(elsewhere, 10) == "mine");
  }

  TEST_CASE("a file is replaced whole or not at all, with its mode") {
    const TempFolder scratch;
    const auto file = scratch.write("x", "old");
    REQUIRE(write_whole(file, "new", FileMode::secret));
    CHECK(read_whole(file, 10) == "new");
    struct stat status{};
    REQUIRE(::stat(file.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    CHECK(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()) == 1);
    CHECK_FALSE(write_whole(scratch.path() / "none" / "x", "new"));
  }

  TEST_CASE("what a killed process was writing is removed by the next start, and nothing else is") {
    const TempFolder scratch;
    const auto dead = [] {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      ::waitpid(child, nullptr, 0);
      return child;
    }();
    const auto left = scratch.write(fmt::format(".status.json.{}.new", dead), "{");
    // In a container the process of the start before had the same number.
    const auto of_namesake = scratch.write(fmt::format(".identity.key.{}.new", ::getpid()), "");
    const auto at_work = scratch.write(fmt::format(".settings.json.{}.new", ::getppid()), "{");
    const auto of_a_person = scratch.write(".notes.new", "mine");
    REQUIRE(StateDir::open(scratch.path()));
    CHECK_FALSE(fs::exists(left));
    CHECK_FALSE(fs::exists(of_namesake));
    CHECK(fs::exists(at_work));
    CHECK(fs::exists(of_a_person));
  }

  TEST_CASE("a file that is too large is refused before it fills the memory") {
    const TempFolder scratch;
    const auto file = scratch.write("x", "12345");
    CHECK(read_whole(file, 5));
    REQUIRE_FALSE(read_whole(file, 4));
    CHECK(read_whole(file, 4).error().code == Errc::too_large);
    const auto huge = scratch.write("huge", "");
    fs::resize_file(huge, std::uintmax_t{1} << 40);
    CHECK(read_whole(huge, 1'000).error().code == Errc::too_large);
    CHECK(read_whole(scratch.path() / "y", 4).error().code == Errc::not_found);
  }
}
