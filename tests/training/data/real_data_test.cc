// Real photographs and digits, where STARLING_TEST_DATA names a folder with them.
#include "tests/training/data/fixtures.h"
#include "training/data/loader.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

Result<DataSets> open_text(const std::string& text) {
  NullLog log;
  const auto spec = parse_data_spec(text);
  REQUIRE(spec);
  return open_data(*spec, nullptr, log);
}

struct PassResult {
  std::size_t images = 0;
  std::size_t bad = 0;
  double mean = 0;  // of all normalised values
};

PassResult evaluate(const Dataset& dataset, std::uint32_t target, std::uint32_t channels) {
  NullLog log;
  LoaderOptions options = loader_options_for(dataset, Pass::evaluation, target, channels);
  options.batch = 50;
  Loader loader(dataset, options, log);
  PassResult result;
  const std::size_t floats = std::size_t{target} * target * channels;
  while (true) {
    auto batch = loader.next();
    REQUIRE(batch);
    if (!*batch) break;
    for (std::size_t i = 0; i < (*batch)->size * floats; ++i) {
      result.mean += (*batch)->images.data()[i];
    }
    result.images += (*batch)->size;
    loader.recycle(std::move(**batch));
  }
  result.mean /= static_cast<double>(result.images * floats);
  result.bad = loader.bad_samples();
  return result;
}

}  // namespace

TEST_SUITE("training/data/real_data") {
  TEST_CASE("Fashion-MNIST of the Debian package opens where it is installed") {
    if (!std::filesystem::exists("/usr/share/datasets/fashion-mnist")) {
      MESSAGE("skipped: install dataset-fashion-mnist");
      return;
    }
    const auto sets = open_text("fashion-mnist");

    REQUIRE(sets);
    CHECK(sets->train->size() == 60'000);
    CHECK(sets->val->size() == 10'000);
    CHECK(sets->train->classes() == 10);
    const PassResult pass = evaluate(*sets->val, 28, 1);
    CHECK(pass.images == 10'000);
    CHECK(std::abs(pass.mean) < 0.02);  // the constants are those of this set
  }

  TEST_CASE("tar shards of photographs decode without a bad image") {
    const auto folder = test_data("imagenette224");
    if (!folder) return;
    const auto sets = open_text(folder->string());

    REQUIRE(sets);
    REQUIRE(sets->val);
    CHECK(sets->train->size() == 3'000);
    CHECK(sets->val->size() == 1'000);
    CHECK(sets->train->classes() == 10);
    CHECK(sets->train->class_names()[0] == "n01440764");
    const PassResult pass = evaluate(*sets->val, 64, 3);
    CHECK(pass.images == 1'000);
    CHECK(pass.bad == 0);
    CHECK(std::abs(pass.mean) < 0.3);
  }

  TEST_CASE("photographs of any shape get random crops") {
    const auto folder = test_data("hymenoptera");
    if (!folder) return;
    const auto sets = open_text((*folder / "hymenoptera_sample60.tar").string());
    REQUIRE(sets);
    CHECK(sets->train->class_names() == std::vector<std::string>{"ants", "bees"});
    NullLog log;
    LoaderOptions options = loader_options_for(*sets->train, Pass::training, 96, 3);
    options.batch = 20;
    Loader loader(*sets->train, options, log);

    for (int b = 0; b < 3; ++b) {
      const auto batch = loader.next();
      REQUIRE(batch);
      CHECK((*batch)->size == 20);
      CHECK((*batch)->bad == 0);
    }
  }

  TEST_CASE("CIFAR-10 records and MNIST digits open with their official split") {
    const auto cifar = test_data("cifar10-mini");
    if (cifar) {
      const auto sets = open_text("cifar10:" + cifar->string());
      REQUIRE(sets);
      CHECK(sets->train->size() == 2'000);
      CHECK(sets->val->size() == 500);
      CHECK(evaluate(*sets->val, 32, 3).images == 500);
    }
    const auto mnist = test_data("mnist");
    if (mnist) {
      const auto sets = open_text("idx:" + mnist->string());
      REQUIRE(sets);
      CHECK(sets->train->size() == 60'000);
      CHECK(sets->val->size() == 10'000);
    }
  }
}
