#include "node/base/posix_file.h"

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <string>

using namespace starling;

TEST_SUITE("base/posix_file") {
  TEST_CASE("a failed file operation has the code that a person can act on") {
    CHECK(errc_of_errno(ENOENT) == Errc::not_found);
    CHECK(errc_of_errno(EEXIST) == Errc::already_exists);
    CHECK(errc_of_errno(EROFS) == Errc::permission);
    CHECK(errc_of_errno(ENOSPC) == Errc::disk_full);
    CHECK(errc_of_errno(EDQUOT) == Errc::disk_full);
    CHECK(errc_of_errno(EIO) == Errc::io_failed);
  }

  TEST_CASE("a link that leads nowhere is told from a name at which nothing is") {
    namespace fs = std::filesystem;
    const TempFolder scratch;
    const fs::path link = scratch.path() / "link";
    const fs::path target = scratch.path() / "unmounted" / "file";
    fs::create_symlink(target, link);
    for (const fs::path& file : {link, link / "in" / "it"}) {
      const std::string told = dead_link(file);
      CAPTURE(told);
      CHECK(told.starts_with(file.string() + ": "));
      CHECK(told.find("link to " + target.string() + ", where nothing is") != std::string::npos);
      CHECK(told.find("remove the link") != std::string::npos);
    }
    fs::create_symlink(scratch.path(), scratch.path() / "good");
    for (const fs::path& file : {scratch.path() / "none", scratch.path() / "good",
                                 scratch.path() / "good" / "none", fs::path("none"), fs::path()})
      CHECK(dead_link(file) == "");
  }

  TEST_CASE("a folder is flushed, and what is none says why") {
    CHECK(flush_folder("") == 0);
    CHECK(flush_folder("/tmp") == 0);
    CHECK(flush_folder("/proc/self") == 0);  // where a folder cannot be flushed
    CHECK(flush_folder("/nonexistent/folder") == ENOENT);
    CHECK(flush_folder("/dev/null") == ENOTDIR);
  }

  TEST_CASE("a descriptor is closed when it goes, unless it was handed over") {
    int closed = -1;
    int kept = -1;
    {
      const Descriptor first(::open("/dev/null", O_RDONLY));
      Descriptor second(::open("/dev/null", O_RDONLY));
      REQUIRE(first.ok());
      REQUIRE(second.ok());
      closed = first.number();
      kept = second.release();
    }

    CHECK(::fcntl(closed, F_GETFD) == -1);
    CHECK(::fcntl(kept, F_GETFD) != -1);
    CHECK(::close(kept) == 0);
  }
}
