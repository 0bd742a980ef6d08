// Files that a node writes.
#include "training/file_io.h"

#include "node/base/posix_file.h"
#include "node/base/random.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace starling;
using namespace starling::training;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

Bytes some_bytes(std::size_t size) {
  Rng rng(size);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

// How much of a file is in the page cache.
std::size_t cached_bytes(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(file.ok());
  const std::size_t size = fs::file_size(path);
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.number(), 0);
  REQUIRE(at != MAP_FAILED);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> there((size + page - 1) / page);
  REQUIRE(::mincore(at, size, there.data()) == 0);
  ::munmap(at, size);
  return page * static_cast<std::size_t>(std::ranges::count_if(
                    there, [](unsigned char one) { return (one & 1U) != 0; }));
}

// Whether the file system lets go of pages at all: one in memory does not.
bool lets_go(const fs::path& folder) {
  const fs::path probe = folder / "probe";
  if (!write_whole_file(probe, std::string(kMiB, 'x'))) return false;
  const Descriptor file(::open(probe.c_str(), O_RDONLY | O_CLOEXEC));
  (void)::posix_fadvise(file.number(), 0, 0, POSIX_FADV_DONTNEED);
  return cached_bytes(probe) == 0;
}

}  // namespace

TEST_SUITE("training/file_io") {
  TEST_CASE("a large file written in uneven pieces is what was written") {
    const TempFolder folder;
    const fs::path path = folder.path() / "large";
    const Bytes bytes = some_bytes(33 * kMiB + 17);
    auto file = OutputFile::create(path);
    REQUIRE(file.has_value());

    std::size_t at = 0;
    for (std::size_t piece = 1; at < bytes.size(); piece = piece * 3 + 1) {
      const auto part = ByteView(bytes).subspan(at, std::min(piece, bytes.size() - at));
      REQUIRE(file->write(part).has_value());
      at += part.size();
    }
    REQUIRE(file->close_durably().has_value());

    const auto read = read_whole_file(path, bytes.size());
    REQUIRE(read.has_value());
    CHECK(*read == bytes);
  }

  TEST_CASE("a large file does not stay in the page cache") {
    const TempFolder folder;
    if (!lets_go(folder.path())) {
      MESSAGE("skipped: the file system of the temporary folder keeps every page");
      return;
    }
    const fs::path path = folder.path() / "large";
    const Bytes bytes = some_bytes(64 * kMiB);
    auto file = OutputFile::create(path);
    REQUIRE(file.has_value());
    REQUIRE(file->write(bytes).has_value());
    REQUIRE(file->close_durably().has_value());

    CHECK(cached_bytes(path) <= 16 * kMiB);
  }

  TEST_CASE("nothing is written through a symbolic link, which is named") {
    const TempFolder folder;
    const fs::path kept = folder.write("kept", std::string_view("as it was"));
    const fs::path link = folder.path() / "state.json";
    fs::create_symlink(kept, link);

    const auto written = write_whole_file(link, "x");

    REQUIRE_FALSE(written);
    CHECK(written.error().code == Errc::permission);
    CHECK(written.error().detail.starts_with(link.string() + ": a symbolic link"));
    CHECK(fs::file_size(kept) == 9);
  }

  TEST_CASE("a pipe in the place of a file is refused, and nobody waits for its writer") {
    const TempFolder folder;
    const fs::path pipe = folder.path() / "model.safetensors";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const auto read = read_prefix(pipe, kMiB);
    REQUIRE_FALSE(read);
    CHECK(read.error().code == Errc::permission);
    CHECK(read.error().detail.find("model.safetensors: not a regular file") != std::string::npos);
  }
}
