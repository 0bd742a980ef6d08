#include "training/data/tar_shards.h"

#include "tests/support/counting_log.h"
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
  TEST_CASE("while many members are read the log says every ten seconds how far that is") {
    std::vector<std::unique_ptr<ByteSource>> shards;
    for (const std::string number : {"1", "2"}) {
      TarBuilder tar;
      for (const std::string member : {"a", "b", "c"})
        tar.add(number + member + ".jpg", "image").add(number + member + ".cls", "1");
      shards.push_back(std::make_unique<MemorySource>("shard-" + number, tar.finish()));
    }
    CountingLog log("data.found");
    const SlowClock clock;

    REQUIRE(open_tar_shards(std::move(shards), "shards", log, clock));

    CHECK(log.count() == 2);  // at the third image and at the sixth
  }

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

  TEST_CASE("folders inside class folders are no classes, and the parts stay apart") {
    TarBuilder tar;
    for (const std::string part : {"train", "val"}) {
      for (const std::string sub : {"a/s0", "a/s1", "b/s0", "b/s1/deep", "c/s1"}) {
        tar.add(part + "/" + sub + "/1.png", part + " " + sub);
      }
    }

    const auto sets = open_all({tar.finish()});

    REQUIRE(sets);
    REQUIRE(sets->train);
    REQUIRE(sets->val);
    CHECK(sets->train->class_names() == std::vector<std::string>{"a", "b", "c"});
    CHECK(sets->val->class_names() == sets->train->class_names());
    CHECK(sets->train->size() == 5);
    CHECK(sets->val->size() == 5);
    std::int64_t label = -1;
    CHECK(text_of(*sets->train, 3, label) == "train b/s1/deep");
    CHECK(label == 1);
    CHECK(text_of(*sets->val, 4, label) == "val c/s1");
    CHECK(label == 2);
  }

  TEST_CASE("the class of an image is where the folders begin to differ") {
    const struct {
      std::string what;
      std::vector<std::string> members;
      std::vector<std::string> classes;
      std::size_t train;
      std::size_t val;
    } cases[] = {
        {"folders in class folders, no parts",
         {"a/s0/1.png", "a/s1/1.png", "b/s0/1.png"},
         {"a", "b"},
         3,
         0},
        {"packed with tar -C", {"./a/1.png", "./b/1.png"}, {"a", "b"}, 2, 0},
        {"parts packed with tar -C",
         {"./train/a/1.png", "./train/b/1.png", "./val/a/1.png"},
         {"a", "b"},
         2,
         1},
        {"a folder around all",
         {"data/a/1.png", "data/b/x/1.png", "data/b/y/1.png"},
         {"a", "b"},
         3,
         0},
        {"and an image beside the classes",
         {"data/1.png", "data/a/1.png", "data/b/1.png"},
         {"a", "b"},
         2,
         0},
        {"one class", {"a/1.png", "a/2.png"}, {"a"}, 2, 0},
        {"one class in a folder", {"data/a/1.png", "data/a/2.png"}, {"a"}, 2, 0},
        {"one class with a folder", {"a/1.png", "a/s0/1.png"}, {"a"}, 2, 0},
        {"one class in two parts", {"train/a/1.png", "test/a/1.png"}, {"a"}, 1, 1},
        {"one part", {"train/a/1.png", "train/b/1.png"}, {"a", "b"}, 2, 0},
        {"the other part", {"val/a/1.png", "val/b/1.png"}, {"a", "b"}, 0, 2},
        {"a data set named test", {"test/train/a/1.png", "test/train/b/1.png"}, {"a", "b"}, 2, 0},
        {"the same with both parts",
         {"test/train/a/1.png", "test/train/b/1.png", "test/val/a/1.png"},
         {"a", "b"},
         2,
         1},
        {"folders between part and class",
         {"train/images/a/1.png", "train/images/b/1.png", "val/images/a/1.png"},
         {"a", "b"},
         2,
         1},
        {"a folder of images in each class, as in Tiny ImageNet",
         {"t/train/n1/images/1.JPEG", "t/train/n2/images/1.JPEG", "t/val/n2/images/1.JPEG"},
         {"n1", "n2"},
         2,
         1},
        {"a test set beside the validation set, for later",
         {"train/a/1.png", "train/b/1.png", "val/a/1.png", "test/a/1.png", "test/b/1.png"},
         {"a", "b"},
         2,
         1},
        {"a class that is called like a part",
         {"car/1.png", "train/1.png"},
         {"car", "train"},
         2,
         0},
        {"images of a part that have no class",
         {"train/a/1.png", "train/b/1.png", "test/1.png"},
         {"a", "b"},
         2,
         0},
    };
    for (const auto& wanted : cases) {
      CAPTURE(wanted.what);
      TarBuilder tar;
      for (const std::string& member : wanted.members) tar.add(member, "x");

      const auto sets = open_all({tar.finish()});

      REQUIRE(sets);
      CHECK((sets->train ? sets->train->size() : 0) == wanted.train);
      CHECK((sets->val ? sets->val->size() : 0) == wanted.val);
      CHECK((sets->train ? sets->train : sets->val)->class_names() == wanted.classes);
    }
  }

  TEST_CASE("folder names beyond what memory is for are refused") {
    TarBuilder tar;
    std::string deep;
    while (deep.size() < 4'000) deep += "d/";
    for (int i = 0; i < 17'000; ++i) {
      const std::string path = deep + std::to_string(i) + "/1.png";
      tar.add("x", as_bytes(pax_record("path", path)), 'x').add("1.png", "x");
    }

    const auto sets = open_all({tar.finish()});

    REQUIRE(!sets);
    CHECK(mentions(sets.error().detail, "bytes of their names"));
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
