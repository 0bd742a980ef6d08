#include "training/data/loader.h"

#include "tests/support/counting_log.h"
#include "tests/training/data/fixtures.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <latch>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

// Images of one pixel that know their index; those in `bad` cannot be decoded.
class NumberedImages final : public Dataset {
 public:
  NumberedImages(std::uint32_t size, std::vector<std::uint32_t> bad)
      : size_(size), bad_(std::move(bad)), classes_(1'000, "c") {}

  std::uint32_t size() const override { return size_; }
  std::uint32_t channels() const override { return 1; }
  std::optional<ImageSize> uniform_size() const override { return ImageSize{1, 1}; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return "numbers"; }
  Hash id() const override { return {}; }
  std::string sample_name(std::uint32_t index) const override {
    return "number " + std::to_string(index);
  }
  // On a disk that hangs nothing is read before this.
  std::latch reads{1};
  void hang() { hangs_ = true; }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    if (hangs_) reads.wait();
    out.label = index;
    out.raw.reset();
    out.bytes = to_bytes(as_bytes("no image"));
    if (std::find(bad_.begin(), bad_.end(), index) != bad_.end()) return {};
    out.raw = Sample::Raw{{1, 1}, 1};
    out.bytes = Bytes{static_cast<std::byte>(index)};
    return {};
  }

 private:
  std::uint32_t size_;
  std::vector<std::uint32_t> bad_;
  std::vector<std::string> classes_;
  bool hangs_ = false;
};

LoaderOptions options_for(Pass pass, std::size_t batch, std::size_t threads) {
  LoaderOptions options;
  options.pass = pass;
  options.batch = batch;
  options.target = 1;
  options.channels = 1;
  options.augment.crop = CropPolicy::whole;
  options.normalisation = {.mean = {0, 0, 0}, .deviation = {1.0F / 255, 1, 1}};
  options.threads = threads;
  return options;
}

const NodeId kOther{{std::byte{1}}};  // a member beside this node

LoaderOptions shared_options() {
  LoaderOptions options = options_for(Pass::training, 10, 1);
  options.sampler.partition = Partition::members;
  options.prefetch = 1;
  return options;
}

Batch take(Loader& loader) {
  auto batch = loader.next();
  REQUIRE(batch);
  REQUIRE(*batch);
  return std::move(**batch);
}

// Labels of a whole evaluation pass, checking that each image stands beside its label.
std::vector<std::int64_t> all_labels(Loader& loader) {
  std::vector<std::int64_t> labels;
  while (true) {
    auto batch = loader.next();
    REQUIRE(batch);
    if (!*batch) return labels;
    for (std::size_t i = 0; i < (*batch)->size; ++i) {
      CHECK(std::lround((*batch)->images.data()[i]) == (*batch)->labels[i] % 256);
      labels.push_back((*batch)->labels[i]);
    }
    loader.recycle(std::move(**batch));
  }
}

}  // namespace

TEST_SUITE("training/data/loader") {
  TEST_CASE("an evaluation sees every sample once and in order, the last batch included") {
    const NumberedImages data(107, {});
    NullLog log;
    for (const std::size_t threads : {1U, 3U}) {
      CAPTURE(threads);
      Loader loader(data, options_for(Pass::evaluation, 10, threads), log);

      const auto labels = all_labels(loader);

      REQUIRE(labels.size() == 107);
      for (std::size_t i = 0; i < labels.size(); ++i) {
        CHECK(labels[i] == static_cast<std::int64_t>(i));
      }
      CHECK(!*loader.next());  // and stays at the end
    }
  }

  TEST_CASE("batches are the same whatever the number of threads") {
    NullLog log;
    const auto sets = open_data("synthetic:classes=3,size=24,train=100", "", log);
    REQUIRE(sets);
    std::vector<std::vector<float>> expected;
    for (const std::size_t threads : {1U, 2U, 5U}) {
      CAPTURE(threads);
      LoaderOptions options = loader_options_for(*sets->train, Pass::training, 16, 3);
      options.augment.crop = CropPolicy::random_resized;
      options.batch = 7;
      options.threads = threads;
      options.sampler.seed = 11;
      Loader loader(*sets->train, options, log);
      for (std::size_t b = 0; b < 30; ++b) {
        Batch batch = take(loader);
        const auto values = batch.images.span();
        std::vector<float> copy(values.begin(), values.end());
        for (const std::int64_t label : batch.labels) copy.push_back(static_cast<float>(label));
        if (threads == 1) {
          expected.push_back(std::move(copy));
        } else {
          CHECK(copy == expected[b]);
        }
        loader.recycle(std::move(batch));
      }
    }
  }

  TEST_CASE("batches that are begun after a new side have images of that side") {
    NullLog log;
    const auto sets = open_data("synthetic:classes=3,size=24,train=100", "", log);
    REQUIRE(sets);
    LoaderOptions options = loader_options_for(*sets->train, Pass::training, 16, 3);
    options.batch = 5;
    options.prefetch = 2;
    Loader loader(*sets->train, options, log);
    CHECK(take(loader).side == 16);

    loader.set_side(8);
    Batch batch = take(loader);
    for (std::size_t prepared = 0; batch.side == 16; ++prepared) {
      REQUIRE(prepared < options.prefetch);
      loader.recycle(std::move(batch));
      batch = take(loader);
    }
    REQUIRE(batch.side == 8);

    // What a loader of that side alone makes of the same samples.
    options.target = 8;
    options.start = {.epoch = batch.end.epoch, .position = batch.end.position - options.batch};
    Loader small(*sets->train, options, log);
    const Batch same = take(small);
    CHECK(same.labels == batch.labels);
    const std::size_t floats = 5 * 8 * 8 * 3;
    CHECK(std::ranges::equal(same.images.span().first(floats), batch.images.span().first(floats)));

    loader.set_side(16);
    do {
      batch = take(loader);
    } while (batch.side != 16);
    CHECK(batch.images.size() == 5 * 16 * 16 * 3);
  }

  TEST_CASE("batches that are begun after a smaller number have so many images, none left out") {
    const NumberedImages data(60, {});
    NullLog log;
    LoaderOptions options = options_for(Pass::training, 8, 2);
    options.prefetch = 2;
    Loader loader(data, options, log);
    std::vector<int> seen(60);
    const auto take_one = [&] {
      Batch batch = take(loader);
      for (const std::int64_t label : batch.labels) ++seen[static_cast<std::size_t>(label)];
      CHECK(batch.labels.size() == batch.size);
      const std::size_t size = batch.size;
      loader.recycle(std::move(batch));
      return size;
    };
    CHECK(take_one() == 8);

    loader.set_batch(4);

    std::size_t taken = 8;
    std::size_t size = take_one();
    for (std::size_t prepared = 0; size == 8; ++prepared, size = take_one()) {
      REQUIRE(prepared < options.prefetch);
      taken += 8;
    }
    for (taken += size; taken < 60; taken += 4) CHECK(take_one() == 4);
    CHECK(std::ranges::count(seen, 1) == 60);
  }

  TEST_CASE("batches that are prepared before anybody says a side have the first one") {
    NullLog log;
    const auto sets = open_data("synthetic:classes=3,size=24,train=100", "", log);
    REQUIRE(sets);
    LoaderOptions options = loader_options_for(*sets->train, Pass::training, 16, 3);
    options.batch = 5;
    options.first_side = 8;
    Loader loader(*sets->train, options, log);

    CHECK(take(loader).side == 8);

    loader.set_side(16);
    Batch batch = take(loader);
    for (std::size_t prepared = 0; batch.side == 8; ++prepared) {
      REQUIRE(prepared < options.prefetch);
      batch = take(loader);
    }
    CHECK(batch.side == 16);
  }

  TEST_CASE(
      "training goes on over the ends of epochs with full batches, each sample once an epoch") {
    const NumberedImages data(10, {});
    NullLog log;
    Loader loader(data, options_for(Pass::training, 4, 2), log);
    std::vector<int> seen(10);

    for (int b = 0; b < 15; ++b) {  // 60 samples are six epochs
      const Batch batch = take(loader);
      CHECK(batch.size == 4);
      for (const std::int64_t label : batch.labels) ++seen[static_cast<std::size_t>(label)];
    }

    for (const int count : seen) CHECK(count == 6);
  }

  TEST_CASE("a batch larger than the data set is filled from the next epochs") {
    const NumberedImages data(3, {});
    NullLog log;
    Loader loader(data, options_for(Pass::training, 8, 2), log);

    CHECK(take(loader).size == 8);
  }

  TEST_CASE("a restart at a cursor goes on where the stream stood") {
    const NumberedImages data(23, {});
    NullLog log;
    LoaderOptions options = options_for(Pass::training, 5, 2);
    Loader first(data, options, log);
    for (int b = 0; b < 6; ++b) (void)take(first);
    const DataCursor cursor = [&] { return take(first).end; }();

    options.start = cursor;
    Loader second(data, options, log);

    for (int b = 0; b < 10; ++b) CHECK(take(second).labels == take(first).labels);
  }

  TEST_CASE("bad images are counted, named once each and replaced by others") {
    const NumberedImages data(20, {3, 7});
    CountingLog log("data.bad_image");
    Loader loader(data, options_for(Pass::training, 5, 3), log);
    std::size_t bad = 0;

    for (int b = 0; b < 40; ++b) {  // ten epochs
      const Batch batch = take(loader);
      CHECK(batch.size == 5);
      bad += batch.bad;
      for (const std::int64_t label : batch.labels) {
        CHECK(label != 3);
        CHECK(label != 7);
      }
    }

    CHECK(bad == 20);
    CHECK(loader.bad_samples() == 2);
    CHECK(log.count() == 2);
  }

  TEST_CASE("an evaluation leaves bad images out, and nothing else") {
    const NumberedImages data(12, {0, 4, 5, 6, 7, 11});
    NullLog log;
    Loader loader(data, options_for(Pass::evaluation, 4, 2), log);

    CHECK(all_labels(loader) == std::vector<std::int64_t>{1, 2, 3, 8, 9, 10});
    CHECK(loader.bad_samples() == 6);
  }

  TEST_CASE("an evaluation without one good image fails with the set, an image and the reason") {
    const NumberedImages data(6, {0, 1, 2, 3, 4, 5});
    NullLog log;
    Loader loader(data, options_for(Pass::evaluation, 4, 1), log);

    const auto batch = loader.next();

    REQUIRE(!batch);
    CHECK(batch.error().code == Errc::data_failed);
    CHECK(mentions(batch.error().detail, "numbers: "));
    CHECK(mentions(batch.error().detail, "number 0: neither JPEG, PNG nor WebP"));
    CHECK(!loader.next());
  }

  TEST_CASE("more bad images than max_bad end the run with the name of one") {
    const NumberedImages data(100, {1, 2, 3, 4, 5, 6});
    NullLog log;
    LoaderOptions options = options_for(Pass::evaluation, 10, 1);
    options.max_bad = 5;
    Loader loader(data, options, log);

    Result<std::optional<Batch>> batch = loader.next();
    while (batch && *batch) batch = loader.next();

    REQUIRE(!batch);
    CHECK(batch.error().code == Errc::data_failed);
    CHECK(batch.error().detail.find("number 6") != std::string::npos);
    CHECK(!loader.next());
  }

  TEST_CASE("a data set without one good image ends instead of searching for ever") {
    const NumberedImages data(2, {0, 1});
    NullLog log;
    Loader loader(data, options_for(Pass::training, 4, 2), log);

    const auto batch = loader.next();

    REQUIRE(!batch);
    CHECK(batch.error().code == Errc::data_failed);
  }

  TEST_CASE("a stopped loader ends at once, also with batches waiting or wanted") {
    const NumberedImages data(1'000, {});
    NullLog log;
    for (int round = 0; round < 20; ++round) {
      CAPTURE(round);
      Loader loader(data, options_for(Pass::training, 4, 3), log);
      if (round % 2 == 0) (void)take(loader);

      loader.stop();

      const auto batch = loader.next();
      REQUIRE(!batch);
      CHECK(batch.error().code == Errc::cancelled);
    }
  }

  TEST_CASE("members that are there at the start share out the first epoch") {
    const NumberedImages data(60, {});
    NullLog log;
    LoaderOptions options = shared_options();
    options.members = {kOther, options.sampler.node};
    Loader loader(data, options, log);

    std::size_t samples = 0;
    for (Batch batch = take(loader); batch.end.epoch == 0; batch = take(loader))
      samples += batch.size;

    CHECK(samples < 50);
  }

  TEST_CASE("whoever waits for a batch is woken for other work, and gets it later") {
    NumberedImages data(100, {});
    data.hang();
    NullLog log;
    Loader loader(data, options_for(Pass::evaluation, 10, 2), log);
    for (int round = 0; round < 3; ++round) {
      loader.wake();
      const auto nothing = loader.next();
      REQUIRE(!nothing);
      CHECK(nothing.error().code == Errc::cancelled);
    }

    data.reads.count_down();

    CHECK(all_labels(loader).size() == 100);
  }

  TEST_CASE("members that come and go deal out what is left of the epoch, which goes on") {
    const NumberedImages data(250, {});
    NullLog log;
    Loader loader(data, shared_options(), log);
    std::vector<int> seen(250);
    const auto count = [&seen](const Batch& batch) {
      for (const std::int64_t label : batch.labels) ++seen[static_cast<std::size_t>(label)];
    };

    // One that flaps: without going on, no node would ever come past the start of an epoch.
    for (int i = 0; i < 10; ++i) {
      const Batch batch = take(loader);
      CHECK(batch.end.epoch == 0);
      count(batch);
      loader.set_members(i % 2 == 0 ? std::vector<NodeId>{kOther} : std::vector<NodeId>{});
    }
    for (Batch batch = take(loader); batch.end.epoch == 0; batch = take(loader)) count(batch);

    // Alone at the end, so that every sample but those of the last, mixed batch was drawn, once.
    CHECK(std::ranges::max(seen) == 1);
    CHECK(std::ranges::count(seen, 1) > 250 - 10);
  }

  TEST_CASE("where a member comes, this node keeps a part of the rest") {
    const NumberedImages data(2'000, {});
    NullLog log;
    Loader loader(data, shared_options(), log);
    CHECK(take(loader).end.epoch == 0);
    loader.set_members({kOther});

    std::size_t samples = 0;
    for (Batch batch = take(loader); batch.end.epoch == 0; batch = take(loader))
      samples += batch.size;

    CHECK(samples > 700);
    CHECK(samples < 1'300);
  }

  TEST_CASE("a restart in a shared epoch draws nothing of it twice, whoever is there by then") {
    const NumberedImages data(400, {});
    NullLog log;
    LoaderOptions options = shared_options();
    options.members = {kOther};
    std::vector<int> seen(400);
    for (int start = 0; start < 4; ++start) {
      Loader loader(data, options, log);
      for (int b = 0; b < 3; ++b) {
        const Batch batch = take(loader);
        for (const std::int64_t label : batch.labels) ++seen[static_cast<std::size_t>(label)];
        options.start = batch.end;
      }
      options.members.clear();  // a node that starts knows nobody
    }

    CHECK(std::ranges::count(seen, 1) == 120);
  }

  TEST_CASE("without a partition members change nothing") {
    const NumberedImages data(60, {});
    NullLog log;
    Loader loader(data, options_for(Pass::training, 10, 1), log);
    loader.set_members({kOther});
    for (int i = 0; i < 6; ++i) CHECK(take(loader).end.epoch == 0);
  }

  TEST_CASE("a member's share is a part of every later epoch") {
    const NumberedImages data(60, {});
    NullLog log;
    Loader loader(data, shared_options(), log);
    loader.set_members({kOther});
    std::vector<bool> seen(60);

    while (take(loader).end.epoch < 2) continue;
    std::size_t samples = 0;
    for (Batch batch = take(loader); batch.end.epoch == 2; batch = take(loader)) {
      for (const std::int64_t label : batch.labels) seen[static_cast<std::size_t>(label)] = true;
      samples += batch.size;
    }

    CHECK(samples < 50);
    CHECK(std::count(seen.begin(), seen.end(), true) < 50);
  }

  TEST_CASE("encoded images arrive decoded, cropped and normalised") {
    const TempFolder folder;
    for (const char* name : {"dark", "light"}) {
      for (int i = 0; i < 3; ++i) {
        Image image{.pixels = std::vector<std::uint8_t>(600 * 500 * 3, name[0] == 'd' ? 51 : 204),
                    .size = {500, 600},
                    .channels = 3};
        folder.write(std::string(name) + "/" + std::to_string(i) + ".jpg", encode_jpeg(image));
      }
    }
    NullLog log;
    const auto sets = open_data(*parse_data_spec(folder.path().string()), nullptr, log);
    REQUIRE(sets);
    LoaderOptions options = loader_options_for(*sets->train, Pass::training, 32, 3);
    options.batch = 6;
    options.normalisation = {.mean = {0, 0, 0}, .deviation = {1, 1, 1}};
    Loader loader(*sets->train, options, log);

    const Batch batch = take(loader);

    CHECK(reinterpret_cast<std::uintptr_t>(batch.images.data()) % 64 == 0);
    for (std::size_t i = 0; i < batch.size; ++i) {
      const float expected = batch.labels[i] == 0 ? 0.2F : 0.8F;
      for (std::size_t k = 0; k < 32 * 32 * 3; ++k) {
        // JPEG may move a plain area by one of 255 levels.
        CHECK(std::abs(batch.images.data()[i * 32 * 32 * 3 + k] - expected) < 1.5F / 255);
      }
    }
  }
}
