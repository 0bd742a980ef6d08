#include "node/invites.h"

#include "node/base/log.h"
#include "tests/support/counting_log.h"
#include "tests/support/temp_folder.h"

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;
using transport::Invite;
using transport::KeyId;

namespace {

// The invites of one process; another one on the same folder is a restart.
struct Process {
  explicit Process(const TempFolder& scratch)
      : folder(scratch.path() / "invites"), invites(std::make_unique<Invites>(folder, files, log)) {
    assert_io_thread();
    invites->load(wall_now());
  }
  ~Process() { files.join(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  template <class T>
  T run(transport::Task<T> task) {
    std::optional<T> result;
    asio::co_spawn(io, std::move(task),
                   [&](std::exception_ptr, T value) { result.emplace(std::move(value)); });
    io.restart();
    io.run();
    return std::move(*result);
  }
  Result<std::string> issue(WallTime expires) {
    return run(invites->issue(SwarmId{}, {{"127.0.0.1", 7700}}, expires));
  }

  asio::io_context io{1};
  asio::thread_pool files{1};
  CountingLog log{"invite.unreadable"};
  std::filesystem::path folder;
  std::unique_ptr<Invites> invites;
};

KeyId id_of(const std::string& text) {
  return transport::id_of_key(transport::parse_invite(text).value().key);
}

std::size_t files_in(const std::filesystem::path& folder) {
  std::error_code error;
  std::size_t count = 0;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; ++at)
    ++count;
  return count;
}

}  // namespace

TEST_SUITE("node/invites") {
  TEST_CASE("an invite is good once, and its file goes before anybody is let in") {
    assert_io_thread();
    const TempFolder scratch;
    Process process(scratch);
    const auto text = process.issue(wall_now() + 1h).value();
    const auto id = id_of(text);
    struct stat info{};
    REQUIRE(::stat((process.folder / to_hex(id)).c_str(), &info) == 0);
    CHECK((info.st_mode & 0777U) == 0600);
    CHECK(process.invites->find(id) == transport::parse_invite(text).value().key);

    CHECK(process.run(process.invites->redeem(id)));

    CHECK_FALSE(process.invites->find(id));
    CHECK(files_in(process.folder) == 0);
    CHECK_FALSE(process.run(process.invites->redeem(id)));
    CHECK_FALSE(process.invites->find(KeyId{}));
  }

  TEST_CASE("an open invite survives a restart, a used one does not come back") {
    assert_io_thread();
    const TempFolder scratch;
    std::string open;
    std::string used;
    {
      Process before(scratch);
      open = before.issue(wall_now() + 1h).value();
      used = before.issue(wall_now() + 1h).value();
      CHECK(before.run(before.invites->redeem(id_of(used))));
    }
    Process after(scratch);
    CHECK(after.invites->find(id_of(open)));
    CHECK_FALSE(after.invites->find(id_of(used)));
  }

  TEST_CASE("an invite whose file a person removed lets nobody in") {
    assert_io_thread();
    const TempFolder scratch;
    Process process(scratch);
    const auto id = id_of(process.issue(wall_now() + 1h).value());
    std::filesystem::remove(process.folder / to_hex(id));
    CHECK_FALSE(process.run(process.invites->redeem(id)));
  }

  TEST_CASE("what has expired opens nothing and is removed") {
    assert_io_thread();
    const TempFolder scratch;
    std::string text;
    {
      Process before(scratch);
      text = before.issue(wall_now() - 1s).value();
      CHECK_FALSE(before.invites->find(id_of(text)));
      CHECK(files_in(before.folder) == 1);
      (void)before.issue(wall_now() + 1h);
      CHECK(files_in(before.folder) == 1);
      (void)before.issue(wall_now() - 1s);
    }
    const Process after(scratch);
    CHECK(files_in(after.folder) == 1);
  }

  TEST_CASE("files that are no invites are left alone") {
    assert_io_thread();
    const TempFolder scratch;
    std::string text;
    {
      Process before(scratch);
      text = before.issue(wall_now() + 1h).value();
    }
    const auto folder = scratch.path() / "invites";
    scratch.write("invites/notes", "starling1:aaaa");
    scratch.write("invites/copy", text);
    std::filesystem::permissions(folder / "notes", std::filesystem::perms::owner_read);
    std::filesystem::permissions(folder / "copy", std::filesystem::perms::owner_read);
    Process after(scratch);
    CHECK(after.invites->find(id_of(text)));
    CHECK(files_in(folder) == 3);
    CHECK(after.log.count() == 2);
  }

  TEST_CASE("a folder of invites that cannot be read is told once, one that is not there is not") {
    assert_io_thread();
    const TempFolder scratch;
    CHECK(Process(scratch).log.count() == 0);
    std::filesystem::create_symlink("unmounted", scratch.path() / "invites");
    CHECK(Process(scratch).log.count() == 1);
    std::filesystem::remove(scratch.path() / "invites");
    scratch.write("invites", "not a folder\n");
    CHECK(Process(scratch).log.count() == 1);
  }

  TEST_CASE("what a process left that was killed writing an invite is passed over without a word") {
    assert_io_thread();
    const TempFolder scratch;
    std::string text;
    {
      Process before(scratch);
      text = before.issue(wall_now() + 1h).value();
    }
    const auto half = scratch.write("invites/." + to_hex(id_of(text)) + ".Xf3a9Q", text.substr(9));
    std::filesystem::permissions(half, std::filesystem::perms(0600));
    Process after(scratch);
    CHECK(after.invites->find(id_of(text)));
    CHECK(after.log.count() == 0);
    CHECK(std::filesystem::exists(half));
  }

  TEST_CASE("an invite without an address that fits is refused") {
    assert_io_thread();
    const TempFolder scratch;
    Process process(scratch);
    const auto issue = [&](std::size_t length) {
      return process.run(
          process.invites->issue(SwarmId{}, {{std::string(length, 'h'), 7700}}, wall_now() + 1h));
    };
    CHECK(issue(96).has_value());
    CHECK(issue(97).error().code == Errc::bad_config);
  }

  TEST_CASE("open invites are bounded in number") {
    assert_io_thread();
    const TempFolder scratch;
    Process process(scratch);
    for (std::size_t i = 0; i < kMaxOpenInvites; ++i)
      REQUIRE(process.issue(wall_now() + 1h).has_value());
    const auto refused = process.issue(wall_now() + 1h);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == Errc::too_many);
  }
}
