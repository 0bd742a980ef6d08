#include "training/data/tar_shards.h"

#include "tests/training/data/fixtures.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

Result<DataSets> open_all(std::vector<Bytes> archives) {
  std::vector<std::unique_ptr<ByteSource>> shards;
  for (Bytes& archive : archives) {
    shards.push_back(std::make_unique<MemorySource>("shard-" + std::to_string(shards.size()),
                                                    std::move(archive)));
  }
  NullLog log;
  return open_tar_shards(std::move(shards), "shards", log);
}

std::string text_of(const Dataset& dataset, std::uint32_t index, std::int64_t& label) {
  Sample sample;
  REQUIRE(dataset.read(index, sample));
  label = sample.label;
  return std::string(as_text(sample.bytes));
}

}  // namespace

TEST_SUITE("training/data/tar_shards") {
  TEST_CASE("WebDataset samples pair an image with its class over several shards") {
    TarBuilder one;
    one.add("0001.cls", "3\n").add("0001.json", "{}").add("0001.jpg", "first");
    TarBuilder two;
    two.add("0002.jpg", "second").add("0002.mask.png", "mask").add("0002.cls", "0");

    const auto sets = open_all({one.finish(), two.finish()});

    REQUIRE(sets);
    REQUIRE(sets->train);
    CHECK(!sets->val);
    CHECK(sets->train->size() == 2);
    CHECK(sets->train->classes() == 4);
    std::int64_t label = -1;
    CHECK(text_of(*sets->train, 0, label) == "first");
    CHECK(label == 3);
    CHECK(text_of(*sets->train, 1, label) == "second");
    CHECK(label == 0);
    CHECK(sets->train->sample_name(1) == "shard-1: 0002.jpg");
  }

  TEST_CASE("a packed ImageFolder tree keeps its split and its order of classes") {
    TarBuilder tar;
    tar.add("set/train/dog/1.JPEG", "d1").add("set/train/cat/2.JPEG", "c2");
    tar.add("set/val/cat/a.b.jpg", "v").add("set/train/cat/._2.JPEG", "macOS").add("README", "x");

    const auto sets = open_all({tar.finish()});

    REQUIRE(sets);
    REQUIRE(sets->train);
    REQUIRE(sets->val);
    CHECK(sets->train->class_names() == std::vector<std::string>{"cat", "dog"});
    CHECK(sets->train->size() == 2);
    CHECK(sets->val->size() == 1);
    std::int64_t label = -1;
    CHECK(text_of(*sets->train, 0, label) == "d1");
    CHECK(label == 1);
    CHECK(text_of(*sets->val, 0, label) == "v");
    CHECK(label == 0);
  }

  TEST_CASE("images whose names share everything up to a dot are all samples") {
    TarBuilder tar;
    for (int i = 0; i < 200; ++i) tar.add("a/photo." + std::to_string(i) + ".jpg", "x");
    tar.add("b/photo.1.jpg", "y");

    const auto sets = open_all({tar.finish()});

    REQUIRE(sets);
    CHECK(sets->train->size() == 201);
  }

  TEST_CASE("samples without an image, or without a class, are left out") {
    TarBuilder tar;
    tar.add("1.cls", "1").add("2.jpg", "no class").add("3.jpg", "good").add("3.cls", "1");

    const auto sets = open_all({tar.finish()});

    REQUIRE(sets);
    CHECK(sets->train->size() == 1);
  }

  TEST_CASE("a class that is no small number is refused by name") {
    for (const char* cls : {"cat", "-1", "65536", "99999999999", "", "1.5"}) {
      CAPTURE(cls);
      TarBuilder tar;
      tar.add("7.jpg", "x").add("7.cls", cls);

      const auto sets = open_all({tar.finish()});

      REQUIRE(!sets);
      CHECK(sets.error().code == Errc::data_failed);
      CHECK(mentions(sets.error().detail, "7.cls"));
    }
  }

  TEST_CASE("shards without any sample say what was expected") {
    TarBuilder tar;
    tar.add("notes.txt", "x").add("image.jpg", "at the top, without a class");

    const auto sets = open_all({tar.finish(), Bytes{}});

    REQUIRE(!sets);
    CHECK(mentions(sets.error().detail, "KEY.cls"));
  }

  TEST_CASE("a truncated shard is refused by name") {
    TarBuilder tar;
    tar.add("a/1.jpg", std::string(2'000, 'x'));
    Bytes cut = tar.bytes();
    cut.resize(1'000);

    const auto sets = open_all({tar.finish(), cut});

    REQUIRE(!sets);
    CHECK(mentions(sets.error().detail, "shard-1"));
    CHECK(mentions(sets.error().detail, "truncated"));
  }
}
