// What a loader does while its storage is away, and that nobody waits for a deal without need.
#include "node/base/mutex.h"
#include "tests/support/counting_log.h"
#include "tests/training/data/fixtures.h"
#include "training/data/loader.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <latch>
#include <string>
#include <string_view>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

// Images of one pixel on storage that can be away, or hold something else.
class StoredImages final : public Dataset {
 public:
  explicit StoredImages(std::uint32_t size) : size_(size), classes_(2, "c") {}

  // So many reads fail from now on.
  void lose(std::int64_t reads) { away_ = reads; }
  // One sample in so many is never there.
  void leave_out_each(std::uint32_t one_in) { missing_each_ = one_in; }
  // All samples from this one on hold no image.
  void spoil_from(std::uint32_t index) { spoiled_from_ = index; }
  // Who asks for the size from now on says so in `asked`, and waits for `answer`.
  void hold_size() { holds_size_ = true; }
  mutable std::latch asked{1};
  mutable std::latch answer{1};

  std::uint32_t size() const override {
    if (holds_size_.exchange(false)) {
      asked.count_down();
      answer.wait();
    }
    return size_;
  }
  std::uint32_t channels() const override { return 1; }
  std::optional<ImageSize> uniform_size() const override { return ImageSize{1, 1}; }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return "stored"; }
  Hash id() const override { return {}; }
  std::string sample_name(std::uint32_t index) const override {
    return "number " + std::to_string(index);
  }

  int reads() const { return reads_; }
  // Waits until so many samples have been read.
  void await_reads(int count) const {
    for (int reads = reads_; reads < count; reads = reads_) reads_.wait(reads);
  }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    ++reads_;
    reads_.notify_all();
    if (away_ > 0) {
      --away_;
      return fail(Errc::data_failed, Doing::loading_data, "no such file or directory");
    }
    if (missing_each_ != 0 && index % missing_each_ == 0)
      return fail(Errc::data_failed, Doing::loading_data, "no such file or directory");
    out.label = 1;
    out.raw.reset();
    out.bytes = to_bytes(as_bytes("no image"));
    if (index >= spoiled_from_) return {};
    out.raw = Sample::Raw{{1, 1}, 1};
    out.bytes = Bytes{std::byte{7}};
    return {};
  }

 private:
  const std::uint32_t size_;
  std::vector<std::string> classes_;
  mutable std::atomic<std::int64_t> away_ = 0;
  std::uint32_t missing_each_ = 0;
  std::uint32_t spoiled_from_ = ~0U;
  mutable std::atomic<bool> holds_size_ = false;
  mutable std::atomic<int> reads_ = 0;
};

constexpr std::int64_t kForGood = 1'000'000'000;

LoaderOptions options_with(std::size_t threads, std::chrono::microseconds first_wait) {
  LoaderOptions options;
  options.batch = 5;
  options.target = 1;
  options.channels = 1;
  options.augment.crop = CropPolicy::whole;
  options.threads = threads;
  options.first_wait = first_wait;
  return options;
}

std::size_t size_of_next(Loader& loader) {
  const auto batch = loader.next();
  REQUIRE(batch);
  REQUIRE(*batch);
  return (*batch)->size;
}

LoaderOptions evaluation_with(std::size_t threads) {
  LoaderOptions options = options_with(threads, std::chrono::microseconds(1));
  options.pass = Pass::evaluation;
  return options;
}

// How many images an evaluation counts until its end.
std::size_t images_of(Loader& loader) {
  std::size_t images = 0;
  auto batch = loader.next();
  for (; batch && *batch; batch = loader.next()) images += (*batch)->size;
  CHECK(batch);
  return images;
}

struct Ended {
  Error error;
  std::size_t bad = 0;
};

// How a loader ends that may leave out 30 samples, and waits for none of these.
Ended end_beyond_30_bad(const Dataset& data, std::size_t threads) {
  NullLog log;
  LoaderOptions options = options_with(threads, std::chrono::hours(1));
  options.max_bad = 30;
  Loader loader(data, options, log);
  auto batch = loader.next();
  for (int b = 0; b < 2'000 && batch; ++b) batch = loader.next();
  REQUIRE(!batch);
  return {batch.error(), loader.bad_samples()};
}

// Opens a latch with the first line of an event.
class LatchLog final : public Log {
 public:
  explicit LatchLog(std::string_view event) : event_(event) {}

  void write(LogLevel, std::string_view event, std::initializer_list<LogField>) override {
    if (event == event_ && !written_.exchange(true)) line.count_down();
  }
  std::latch line{1};

 private:
  const std::string event_;
  std::atomic<bool> written_ = false;
};

}  // namespace

TEST_SUITE("training/data/loader_waits") {
  TEST_CASE("storage that comes back costs time, and no image counts as bad for it") {
    StoredImages data(10'000);
    data.lose(100);
    CountingLog log("data.readable_again");
    Loader loader(data, options_with(1, std::chrono::microseconds(1)), log);

    for (int b = 0; b < 10; ++b) REQUIRE(size_of_next(loader) == 5);

    CHECK(loader.bad_samples() == 0);
    CHECK(log.count() == 1);
  }

  TEST_CASE("storage that stays away ends the run above max_bad, with the name of an image") {
    StoredImages data(10'000);
    data.lose(kForGood);
    NullLog log;
    LoaderOptions options = options_with(2, std::chrono::microseconds(1));
    options.max_bad = 50;
    Loader loader(data, options, log);

    const auto batch = loader.next();

    REQUIRE(!batch);
    CHECK(batch.error().code == Errc::data_failed);
    CHECK(mentions(batch.error().detail, "more than 50 bad images (data.max_bad)"));
    CHECK(mentions(batch.error().detail, "no such file or directory"));
    CHECK(loader.bad_samples() > 50);
  }

  TEST_CASE("it ends after eight waits, whether or not the last sample was tried before") {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      CAPTURE(seed);
      StoredImages data(40);
      data.lose(kForGood);
      NullLog log;
      LoaderOptions options = options_with(1, std::chrono::microseconds(1));
      options.max_bad = 3;
      options.sampler.seed = seed;
      Loader loader(data, options, log);

      const auto batch = loader.next();

      REQUIRE(!batch);
      CHECK(mentions(batch.error().detail, "more than 3 bad images (data.max_bad)"));
      CHECK(data.reads() == 25);  // 17 in a row, and one behind each of eight waits
    }
  }

  TEST_CASE("a few samples that all stay away end the run, too") {
    StoredImages data(3);
    data.lose(kForGood);
    NullLog log;
    Loader loader(data, options_with(2, std::chrono::microseconds(1)), log);

    const auto batch = loader.next();

    REQUIRE(!batch);
    CHECK(batch.error().code == Errc::data_failed);
    CHECK(mentions(batch.error().detail, "stored: no image of it can be read"));
  }

  TEST_CASE("an evaluation counts every image though its storage was away for a moment") {
    for (const std::size_t threads : {1U, 3U}) {
      CAPTURE(threads);
      StoredImages data(60);
      data.lose(6);
      CountingLog log("data.bad_image");
      Loader loader(data, evaluation_with(threads), log);

      CHECK(images_of(loader) == 60);

      CHECK(loader.bad_samples() == 0);
      CHECK(log.count() == 0);
    }
  }

  TEST_CASE("an evaluation waits for one missing image and leaves out all that are") {
    StoredImages data(60);
    data.leave_out_each(10);
    NullLog log;
    Loader loader(data, evaluation_with(1), log);

    CHECK(images_of(loader) == 54);

    CHECK(loader.bad_samples() == 6);
    CHECK(data.reads() == 66);  // six waits for the first
  }

  TEST_CASE("an evaluation whose storage stays away ends soon, with the name of an image") {
    StoredImages data(60);
    data.lose(kForGood);
    NullLog log;
    Loader loader(data, evaluation_with(1), log);

    const auto batch = loader.next();

    REQUIRE(!batch);
    CHECK(batch.error().code == Errc::data_failed);
    CHECK(mentions(batch.error().detail, "stored: no image of it can be read"));
    CHECK(data.reads() == 66);
  }

  TEST_CASE("a loader that waits for its storage stops at once") {
    StoredImages data(10'000);
    data.lose(kForGood);
    LatchLog log("data.unreadable");
    Loader loader(data, options_with(2, std::chrono::hours(1)), log);
    log.line.wait();

    loader.stop();

    CHECK(loader.next().error().code == Errc::cancelled);
  }

  TEST_CASE("samples that are no images are replaced up to max_bad, however many in a row") {
    StoredImages data(400);
    data.spoil_from(20);  // 95 of 100
    NullLog log;
    // Nobody waits for a file that is there.
    Loader loader(data, options_with(2, std::chrono::hours(1)), log);

    for (int b = 0; b < 50; ++b) REQUIRE(size_of_next(loader) == 5);

    CHECK(loader.bad_samples() > 200);
  }

  TEST_CASE("more missing files than max_bad end the run, though none is waited for") {
    StoredImages data(10'000);
    data.leave_out_each(20);
    for (const std::size_t threads : {1U, 2U}) {
      CAPTURE(threads);
      const auto [error, bad] = end_beyond_30_bad(data, threads);

      CHECK(error.code == Errc::data_failed);
      CHECK(mentions(error.detail, "more than 30 bad images (data.max_bad)"));
      CHECK(mentions(error.detail, "no such file or directory"));
      CHECK(bad > 30);
      if (threads == 1) CHECK(bad <= 32);  // the last ones may be two in a row
    }
  }

  TEST_CASE("more samples than max_bad that are no images end the run") {
    StoredImages data(10'000);
    data.spoil_from(5'000);
    const auto [error, bad] = end_beyond_30_bad(data, 2);

    CHECK(mentions(error.detail, "more than 30 bad images (data.max_bad)"));
    CHECK(bad > 30);
  }

  TEST_CASE("who has a finished batch to take does not wait while a share is dealt") {
    StoredImages data(400);
    NullLog log;
    LoaderOptions options = options_with(1, std::chrono::hours(1));
    options.sampler.partition = Partition::members;
    Loader loader(data, options, log);
    data.await_reads(15);  // three batches: there is no room for another
    data.hold_size();
    NodeId other;
    other.bytes[0] = std::byte{1};
    loader.set_members({other});

    // Where the first one was, the one thread begins another, for which the rest of the epoch is
    // dealt; by then it has finished those before.
    REQUIRE(size_of_next(loader) == 5);
    data.asked.wait();
    CHECK(size_of_next(loader) == 5);

    data.answer.count_down();
    REQUIRE(size_of_next(loader) == 5);
  }
}
