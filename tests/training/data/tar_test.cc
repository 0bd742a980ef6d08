#include "training/data/tar.h"

#include "node/base/random.h"
#include "tests/training/data/fixtures.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

struct Walk {
  std::vector<TarMember> members;
  std::string error;
};

Walk walk(Bytes archive) {
  const MemorySource source("x.tar", std::move(archive));
  TarReader reader(source);
  Walk result;
  while (true) {
    const auto member = reader.next();
    if (!member) {
      result.error = member.error().detail;
      return result;
    }
    if (!*member) return result;
    result.members.push_back(**member);
  }
}

}  // namespace

TEST_SUITE("training/data/tar") {
  TEST_CASE("members come with the place of their bytes") {
    TarBuilder tar;
    tar.add("a/one.jpg", "1").add("a", {}, '5').add("b/two.jpg", std::string(513, '2'));

    const Walk result = walk(tar.finish());

    CHECK(result.error.empty());
    REQUIRE(result.members.size() == 2);
    CHECK(result.members[0].name == "a/one.jpg");
    CHECK(result.members[0].data_at == 512);
    CHECK(result.members[1].size == 513);
    CHECK(result.members[1].header_at == 3 * 512);
  }

  TEST_CASE("an archive without its closing zeros, and one with a single zero block, are whole") {
    TarBuilder tar;
    tar.add("a", "1");
    Bytes one_zero = tar.bytes();
    one_zero.resize(one_zero.size() + 512);

    CHECK(walk(tar.bytes()).members.size() == 1);
    CHECK(walk(tar.bytes()).error.empty());
    CHECK(walk(one_zero).error.empty());
    CHECK(walk({}).members.empty());
  }

  TEST_CASE("PAX and GNU names replace the short ones, and belong to one member only") {
    const std::string name = "train/" + std::string(200, 'n') + ".jpg";
    const std::string pax = pax_record("mtime", "1.5") + pax_record("path", name);
    const std::string gnu = name + std::string(1, '\0');
    TarBuilder tar;
    tar.add("x", as_bytes(pax), 'x').add("short", "1").add("plain", "2");
    tar.add("././@LongLink", as_bytes(gnu), 'L').add("short", "3");
    tar.add("g", as_bytes(pax_record("comment", "all")), 'g').add("last", "4");

    const Walk result = walk(tar.finish());

    CHECK(result.error.empty());
    REQUIRE(result.members.size() == 4);
    CHECK(result.members[0].name == name);
    CHECK(result.members[1].name == "plain");
    CHECK(result.members[2].name == name);
    CHECK(result.members[3].name == "last");
  }

  TEST_CASE("a member can be read again from the place of its first header") {
    const std::string pax = pax_record("path", "the/name");
    TarBuilder tar;
    tar.add("before", "0").add("x", as_bytes(pax), 'x').add("short", "1");
    const MemorySource source("x.tar", tar.finish());
    TarReader reader(source);
    (void)reader.next();
    const auto second = reader.next();
    REQUIRE(second);
    REQUIRE(*second);

    const auto again = TarReader(source, (*second)->header_at).next();

    REQUIRE(again);
    REQUIRE(*again);
    CHECK((*again)->name == "the/name");
  }

  TEST_CASE("a truncated archive is an error that names the member and the place") {
    TarBuilder tar;
    tar.add("first.jpg", std::string(600, 'x')).add("second.jpg", std::string(2'000, 'y'));
    Bytes cut = tar.bytes();
    cut.resize(cut.size() - 1'024);

    const Walk result = walk(cut);

    CHECK(result.members.size() == 1);
    CHECK(mentions(result.error, "truncated"));
    CHECK(mentions(result.error, "second.jpg"));
    cut.resize(512 + 1'024 + 100);
    CHECK(mentions(walk(cut).error, "truncated inside a header"));
  }

  TEST_CASE("sizes that cannot be are refused") {
    const auto error = [](std::string_view size) {
      TarBuilder tar;
      tar.add_lying("a", size, as_bytes("1"));
      return walk(tar.finish()).error;
    };

    CHECK(mentions(error("77777777777"), "truncated"));
    CHECK(mentions(error("1234x"), "damaged size"));
    CHECK(mentions(error(std::string("\xff") + std::string(11, '\xff')), "damaged size"));
    const std::string base256 =
        std::string("\x80") + std::string(10, '\0') + std::string(1, '\x01');
    CHECK(error(base256).empty());
  }

  TEST_CASE("damaged extensions are refused") {
    const auto error = [](const std::string& pax) {
      TarBuilder tar;
      tar.add("x", as_bytes(pax), 'x').add("short", "1");
      return walk(tar.finish()).error;
    };

    CHECK(mentions(error("99 path=x\n"), "damaged PAX record"));
    CHECK(mentions(error("3\n"), "damaged PAX record"));
    CHECK(mentions(error("7 path\n"), "damaged PAX record"));
    CHECK(mentions(error(pax_record("size", "12z")), "damaged PAX size"));
    CHECK(mentions(error(pax_record("size", "18446744073709551615")), "truncated"));
    CHECK(mentions(error(pax_record("path", std::string(5'000, 'p'))), "too long"));
    CHECK(mentions(error(pax_record("GNU.sparse.major", "1")), "sparse"));
    TarBuilder tar;
    tar.add("x", as_bytes(std::string((1 << 20) + 1, ' ')), 'x').add("short", "1");
    CHECK(mentions(walk(tar.finish()).error, "extension"));
  }

  TEST_CASE("bytes that are no archive are refused at the first block") {
    CHECK(mentions(walk(Bytes(2'048, std::byte{'z'})).error, "not a tar archive"));
    CHECK(mentions(walk(Bytes(100, std::byte{'z'})).error, "truncated"));
  }

  TEST_CASE("whatever is changed in an archive, the walk ends and stays inside it") {
    TarBuilder tar;
    const std::string pax = pax_record("path", "p") + pax_record("size", "1");
    tar.add("a", "1").add("x", as_bytes(pax), 'x').add("b", "2").add("L", as_bytes("long"), 'L');
    tar.add("c", std::string(700, 'c'));
    const Bytes good = tar.finish();
    for (std::uint64_t seed = 1; seed <= 2'000; ++seed) {
      CAPTURE(seed);
      Rng rng(seed);
      Bytes bad = good;
      for (int i = 0; i < 3; ++i) bad[rng.below(bad.size())] = static_cast<std::byte>(rng());
      bad.resize(rng.below(bad.size() + 1));

      for (const TarMember& member : walk(bad).members) {
        CHECK(member.data_at + member.size <= bad.size());
      }
    }
  }
}
