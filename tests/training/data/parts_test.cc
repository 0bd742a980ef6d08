// That a tree of folders is the same data set on disk and in a tar, or refused.
#include "training/data/parts.h"

#include "tests/training/data/fixtures.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

// What a data set is, apart from its pixels: its classes, and the class of each image in order of
// the images' text.
struct ReadTree {
  std::vector<std::string> classes;
  std::vector<std::string> train;  // "path class"
  std::vector<std::string> val;
  bool operator==(const ReadTree&) const = default;
};

std::vector<std::string> images_of(const Dataset* set) {
  std::vector<std::string> images;
  if (set == nullptr) return images;
  for (std::uint32_t i = 0; i < set->size(); ++i) {
    Sample sample;
    REQUIRE(set->read(i, sample));
    images.push_back(std::string(as_text(sample.bytes)) + " " +
                     set->class_names()[static_cast<std::size_t>(sample.label)]);
  }
  std::ranges::sort(images);
  return images;
}

Result<ReadTree> read_tree(const Result<DataSets>& sets) {
  if (!sets) return std::unexpected(sets.error());
  return ReadTree{sets->train->class_names(), images_of(sets->train.get()),
                  images_of(sets->val.get())};
}

// The same files, which hold their own names, in a folder and in a tar of its content.
struct BothTrees {
  Result<ReadTree> disk;
  Result<ReadTree> tar;
};

BothTrees read_both(const std::vector<std::string>& files) {
  const TempFolder folder;
  const TempFolder archive;
  TarBuilder tar;
  for (const std::string& file : files) {
    folder.write(file, as_bytes(file));
    tar.add("./" + file, file);
  }
  archive.write("tree.tar", tar.finish());
  return {read_tree(open_sets(folder.path().string())),
          read_tree(open_sets((archive.path() / "tree.tar").string()))};
}

struct WantedTree {
  std::string what;
  std::vector<std::string> files;
  ReadTree read;
};

const WantedTree kTrees[] = {
    {"a class called train",
     {"bus/1.png", "car/1.png", "train/1.png"},
     {{"bus", "car", "train"}, {"bus/1.png bus", "car/1.png car", "train/1.png train"}, {}}},
    {"val beside the classes",
     {"cat/1.png", "dog/1.png", "val/cat/1.png", "val/dog/1.png"},
     {{"cat", "dog"},
      {"cat/1.png cat", "dog/1.png dog"},
      {"val/cat/1.png cat", "val/dog/1.png dog"}}},
    {"val and test beside the classes",
     {"cat/1.png", "dog/1.png", "val/cat/1.png", "val/dog/1.png", "test/cat/1.png"},
     {{"cat", "dog"},
      {"cat/1.png cat", "dog/1.png dog"},
      {"val/cat/1.png cat", "val/dog/1.png dog"}}},
    {"a test set without labels",
     {"train/a/1.png", "train/b/1.png", "test/1.png"},
     {{"a", "b"}, {"train/a/1.png a", "train/b/1.png b"}, {}}},
    {"no training part",
     {"val/a/1.png", "val/b/1.png", "test/a/1.png", "test/b/1.png"},
     {{"a", "b"}, {"val/a/1.png a", "val/b/1.png b"}, {}}},
    {"a data set called test",
     {"test/train/a/1.png", "test/train/b/1.png", "test/val/a/1.png", "test/val/b/1.png"},
     {{"a", "b"},
      {"test/train/a/1.png a", "test/train/b/1.png b"},
      {"test/val/a/1.png a", "test/val/b/1.png b"}}},
    {"a class in a part is called like one",
     {"train/bus/1.png", "train/train/1.png", "val/bus/1.png", "val/train/x/1.png"},
     {{"bus", "train"},
      {"train/bus/1.png bus", "train/train/1.png train"},
      {"val/bus/1.png bus", "val/train/x/1.png train"}}},
    {"folders called like parts in classes",
     {"a/train/x/1.png", "a/val/x/1.png", "b/train/x/1.png"},
     {{"a", "b"}, {"a/train/x/1.png a", "a/val/x/1.png a", "b/train/x/1.png b"}, {}}},
    {"a folder without images is no class beside the parts",
     {"train/a/1.png", "train/b/1.png", "devkit/x/readme.txt"},
     {{"a", "b"}, {"train/a/1.png a", "train/b/1.png b"}, {}}},
    {"images beside the classes",
     {"1.png", "train/1.png", "train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png"},
     {{"a", "b"}, {"train/a/1.png a", "train/b/1.png b"}, {"val/a/1.png a", "val/b/1.png b"}}},
};

}  // namespace

TEST_SUITE("training/data/parts") {
  TEST_CASE("a tree is the same data set as a folder and as a tar") {
    for (const WantedTree& tree : kTrees) {
      CAPTURE(tree.what);
      const auto [disk, tar] = read_both(tree.files);

      CHECK_MESSAGE(disk, (disk ? "" : disk.error().detail));
      CHECK_MESSAGE(tar, (tar ? "" : tar.error().detail));
      if (disk) CHECK(*disk == tree.read);
      if (tar) CHECK(*tar == tree.read);
    }
  }

  TEST_CASE("a tree that can be read in two ways is refused as both, with what to do") {
    const struct {
      std::string what;
      std::vector<std::string> files;
      std::string names;  // what the refusal speaks of
    } cases[] = {
        {"train with folders beside classes",
         {"bus/1.png", "car/1.png", "train/steam/1.png", "train/electric/1.png"},
         "'train'"},
        {"images beside both parts",
         {"plots/1.png", "train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png"},
         "'plots'"},
        {"parts without classes", {"train/1.png", "val/1.png"}, "'train'"},
        {"one part without classes", {"train/1.png"}, "'train'"},
        {"train without classes beside a part with some",
         {"train/1.png", "val/a/1.png", "val/b/1.png"},
         "'train'"},
        {"test without classes beside classes and a part",
         {"a/1.png", "b/1.png", "test/1.png", "val/a/1.png", "val/b/1.png"},
         "'test'"},
    };
    for (const auto& tree : cases) {
      CAPTURE(tree.what);
      const auto [disk, tar] = read_both(tree.files);

      for (const Result<ReadTree>* read : {&disk, &tar}) {
        REQUIRE(!*read);
        const Error& error = read->error();
        CHECK(error.code == Errc::data_failed);
        CAPTURE(error.detail);
        CHECK(mentions(error.detail, tree.names));
        CHECK(mentions(error.detail, "a part of the data or a class"));
        CHECK(mentions(error.detail, "; "));
      }
    }
  }

  TEST_CASE("a part without an image is refused by name") {
    for (const std::string empty : {"train", "val"}) {
      CAPTURE(empty);
      const TempFolder folder;
      const std::string full = empty == "train" ? "val" : "train";
      for (const std::string name : {"a", "b"})
        folder.write(full + "/" + name + "/1.png", as_bytes(name));
      folder.write(empty + "/a/1.bmp", as_bytes("no form that is known"));

      const auto sets = open_sets(folder.path().string());

      REQUIRE(!sets);
      CHECK(mentions(sets.error().detail, "/" + empty + ": "));
    }
  }

  TEST_CASE("the classes of a part may be links to folders") {
    const TempFolder folder;
    const TempFolder elsewhere;
    std::filesystem::create_directories(folder.path() / "train");
    for (const std::string name : {"a", "b"}) {
      elsewhere.write(name + "/1.png", as_bytes(name));
      std::filesystem::create_directory_symlink(elsewhere.path() / name,
                                                folder.path() / "train" / name);
    }

    const auto sets = open_sets(folder.path().string());

    REQUIRE(sets);
    CHECK(sets->train->size() == 2);
  }

  TEST_CASE("a class that only the validation part has is an error in both") {
    const auto [disk, tar] =
        read_both({"bus/1.png", "car/1.png", "test/steam/1.png", "test/electric/1.png"});

    REQUIRE(!disk);
    REQUIRE(!tar);
    CHECK(mentions(disk.error().detail, "class 'electric' is not among the 2 classes"));
    CHECK(mentions(tar.error().detail, "class 'electric' is not among the 2 classes"));
  }
}
