#include "node/secret_files.h"

#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>

using namespace starling;
using namespace starling::node;
using namespace std::chrono_literals;
using transport::SwarmKey;
using transport::SwarmSecret;

namespace {

constexpr Duration kDay = 24h;

struct Files {
  Files() { REQUIRE(SwarmSecret::generate().create(files.current)); }
  [[nodiscard]] SwarmSecret load() const { return SwarmSecret::load(files.current).value(); }

  TempFolder scratch;
  SecretFiles files = SecretFiles::beside(scratch.path() / "secret");
};

bool accepts(const SwarmKey& key, const SwarmSecret& secret) {
  return key.find(SwarmKey::of(secret).current()->id) != nullptr;
}

bool dials_with(const SwarmKey& key, const SwarmSecret& secret) {
  return key.current()->id == SwarmKey::of(secret).current()->id;
}

bool is_private(const std::filesystem::path& file) {
  struct stat info{};
  return ::stat(file.c_str(), &info) == 0 && (info.st_mode & 0777U) == 0600;
}

}  // namespace

TEST_SUITE("node/secret_files") {
  TEST_CASE("a secret behind a link that leads nowhere is not taken for none") {
    for (const auto which : {&SecretFiles::next, &SecretFiles::previous}) {
      const Files at;
      const auto& link = at.files.*which;
      std::filesystem::create_symlink("unmounted", link);
      const auto loaded = load_secrets(at.files, kDay, wall_now());
      REQUIRE_FALSE(loaded.has_value());
      CHECK(loaded.error().code == Errc::permission);
      CHECK(loaded.error().detail.starts_with(link.string() + ": a symbolic link to unmounted"));
    }
  }

  TEST_CASE("a rotation goes from one secret over both to the next one") {
    const Files at;
    const auto& files = at.files;
    const auto first = at.load();
    CHECK(dials_with(load_secrets(files, kDay, wall_now()).value().key, first));

    REQUIRE(begin_rotation(files));
    const auto next = SwarmSecret::load(files.next).value();
    CHECK(next.epoch() == 1);
    CHECK(next.swarm() == first.swarm());
    CHECK(is_private(files.next));
    const auto during = load_secrets(files, kDay, wall_now()).value().key;
    CHECK(dials_with(during, first));
    CHECK(accepts(during, next));

    CHECK(promote_next(files).value() == 1);
    CHECK_FALSE(std::filesystem::exists(files.next));
    CHECK(is_private(files.current));
    CHECK(is_private(files.previous));
    const auto after = load_secrets(files, kDay, wall_now()).value().key;
    CHECK(dials_with(after, next));
    CHECK(accepts(after, first));
  }

  TEST_CASE("the previous secret opens nothing when its time is over") {
    const Files at;
    const auto first = at.load();
    REQUIRE(begin_rotation(at.files));
    REQUIRE(promote_next(at.files));
    CHECK(accepts(load_secrets(at.files, kDay, wall_now() + 23h).value().key, first));
    CHECK_FALSE(accepts(load_secrets(at.files, kDay, wall_now() + 25h).value().key, first));
    CHECK_FALSE(accepts(load_secrets(at.files, 0s, wall_now() + 1s).value().key, first));
  }

  TEST_CASE("the next rotation may begin while the previous secret still counts") {
    const Files at;
    const auto first = at.load();
    REQUIRE(begin_rotation(at.files));
    REQUIRE(promote_next(at.files));
    REQUIRE(begin_rotation(at.files));
    const auto key = load_secrets(at.files, kDay, wall_now()).value().key;
    CHECK(accepts(key, first));
    CHECK(accepts(key, SwarmSecret::load(at.files.next).value()));
    CHECK(promote_next(at.files).value() == 2);
    CHECK_FALSE(accepts(load_secrets(at.files, kDay, wall_now()).value().key, first));
  }

  TEST_CASE("what is no step of a rotation is refused with the remedy, and changes nothing") {
    const Files at;
    const auto none = promote_next(at.files);
    REQUIRE_FALSE(none);
    CHECK(none.error().code == Errc::not_found);
    CHECK(none.error().detail.find("key rotate") != std::string::npos);

    REQUIRE(begin_rotation(at.files));
    const auto twice = begin_rotation(at.files);
    REQUIRE_FALSE(twice);
    CHECK(twice.error().code == Errc::already_exists);

    std::filesystem::remove(at.files.next);
    REQUIRE(SwarmSecret::generate().create(at.files.next));
    CHECK(promote_next(at.files).error().code == Errc::wrong_swarm);
    CHECK(load_secrets(at.files, kDay, wall_now()).error().code == Errc::wrong_swarm);
    CHECK(at.load().epoch() == 0);
    CHECK_FALSE(std::filesystem::exists(at.files.previous));
  }

  TEST_CASE(
      "a next secret that is no later one opens no door and waits for nobody, by both names") {
    const Files at;
    const auto first = at.load();
    REQUIRE(begin_rotation(at.files));
    REQUIRE(promote_next(at.files));
    CHECK_FALSE(load_secrets(at.files, kDay, wall_now()).value().ignored);
    const auto put = [&](const SwarmSecret& next) {
      std::filesystem::remove(at.files.next);
      REQUIRE(next.create(at.files.next));
    };

    for (const auto& next : {first.rotated(), at.load().rotated()}) {
      put(next);
      const auto loaded = load_secrets(at.files, kDay, wall_now()).value();
      const bool is_later = next.epoch() == 2;
      CAPTURE(next.epoch());
      CHECK(loaded.is_next == is_later);
      CHECK(accepts(loaded.key, next) == is_later);
      CHECK(loaded.newest.epoch() == next.epoch());
      REQUIRE(loaded.ignored.has_value() == !is_later);
      if (is_later) continue;
      CHECK(loaded.ignored->find(at.files.next.string()) != std::string::npos);
      CHECK(loaded.ignored->find(at.files.current.string() + ",") != std::string::npos);
      CHECK(promote_next(at.files).error().code == Errc::bad_argument);
      CHECK(std::filesystem::exists(at.files.next));
    }
  }

  TEST_CASE("promoting what was promoted already, a copy of it, takes the copy away") {
    const Files at;
    REQUIRE(begin_rotation(at.files));
    std::filesystem::copy_file(at.files.next, at.scratch.path() / "copy");
    REQUIRE(promote_next(at.files));
    const auto previous = SwarmSecret::load(at.files.previous).value();
    std::filesystem::rename(at.scratch.path() / "copy", at.files.next);
    CHECK(load_secrets(at.files, kDay, wall_now()).value().ignored);

    CHECK(promote_next(at.files).value() == 1);

    CHECK_FALSE(std::filesystem::exists(at.files.next));
    CHECK(at.load().epoch() == 1);
    CHECK(SwarmSecret::load(at.files.previous).value().epoch() == previous.epoch());
  }

  TEST_CASE("promoting goes on where a crash ended it") {
    const Files at;
    REQUIRE(begin_rotation(at.files));
    // The first half of promoting: FILE.previous is written, FILE.next is not FILE yet.
    REQUIRE(at.load().create(at.files.previous));
    CHECK(accepts(load_secrets(at.files, kDay, wall_now()).value().key, at.load()));
    CHECK(promote_next(at.files).value() == 1);
    CHECK(at.load().epoch() == 1);
  }

  TEST_CASE("of a secret that was given and one that was ordered the later one counts") {
    const Files at;
    const auto ordered = SecretFiles::ordered_in(at.scratch.path() / "node");
    std::filesystem::create_directories(ordered.current.parent_path());
    const auto chosen = [&] { return in_force(at.files, ordered).value(); };
    const auto put = [](const std::filesystem::path& file, const SwarmSecret& secret) {
      std::filesystem::remove(file);
      REQUIRE(secret.create(file));
    };
    const auto first = at.load();
    const auto second = first.rotated();
    CHECK(chosen().current == at.files.current);
    CHECK(chosen().next == at.files.next);

    put(ordered.current, first);  // a promotion that a crash ended
    put(ordered.next, second);
    CHECK(chosen().current == at.files.current);
    CHECK(chosen().next == ordered.next);
    CHECK(chosen().previous == at.files.previous);
    put(at.files.next, second);
    CHECK(chosen().next == at.files.next);

    CHECK(promote_into(chosen(), ordered).value() == 1);
    CHECK(chosen().current == ordered.current);
    CHECK(chosen().next == ordered.next);
    CHECK(chosen().previous == ordered.previous);
    CHECK(SwarmSecret::load(ordered.previous).value().epoch() == 0);
    CHECK(is_private(ordered.previous));
    put(at.files.next, second.rotated());
    CHECK(chosen().current == ordered.current);
    CHECK(chosen().next == at.files.next);

    put(at.files.current, second);
    CHECK(chosen().current == at.files.current);
    put(ordered.current, SwarmSecret::generate());
    const auto foreign = in_force(at.files, ordered);
    REQUIRE_FALSE(foreign);
    CHECK(foreign.error().code == Errc::wrong_swarm);
    CHECK(foreign.error().detail.starts_with(ordered.current.string() + " "));
  }

  TEST_CASE("what is left of another swarm is named before a secret is put beside it") {
    const Files at;
    const auto swarm = at.load().swarm();
    REQUIRE(begin_rotation(at.files));
    REQUIRE(promote_next(at.files));
    REQUIRE(begin_rotation(at.files));
    std::filesystem::remove(at.files.current);
    CHECK(check_leftovers(at.files, swarm));
    for (const auto& file : {at.files.next, at.files.previous}) {
      std::filesystem::remove(file);
      REQUIRE(SwarmSecret::generate().create(file));
      const auto checked = check_leftovers(at.files, swarm);
      REQUIRE_FALSE(checked);
      CHECK(checked.error().code == Errc::wrong_swarm);
      CHECK(checked.error().detail.starts_with(file.string() + " "));
      std::filesystem::remove(file);
    }
    CHECK(check_leftovers(at.files, swarm));
  }

  TEST_CASE("a next secret that others can read is refused") {
    const Files at;
    REQUIRE(begin_rotation(at.files));
    REQUIRE(::chmod(at.files.next.c_str(), 0644) == 0);
    CHECK(load_secrets(at.files, kDay, wall_now()).error().code == Errc::permission);
  }
}
