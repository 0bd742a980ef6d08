#include "training/data/packed.h"

#include "tests/support/temp_folder.h"
#include "tests/training/data/fixtures.h"
#include "training/data/augment.h"
#include "training/data/pack.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace starling;
using namespace starling::training;
using namespace std::string_view_literals;

namespace {

// Two classes of photographs with a validation part.
void write_photographs(const TempFolder& folder, ImageSize size = {400, 600}) {
  for (const std::string part : {"train", "val"}) {
    for (const auto* name : {"cat", "dog"}) {
      for (int i = 0; i < 3; ++i) {
        const auto shade = static_cast<std::uint8_t>(40 * i + (name[0] == 'd' ? 120 : 0));
        folder.write("images/" + part + "/" + name + "/" + std::to_string(i) + ".jpg",
                     encode_jpeg(smooth_image(size, shade)));
      }
    }
  }
}

Result<PackReport> packed(const TempFolder& folder, const std::string& text, PackOptions options) {
  const auto sets = open_sets(text);
  REQUIRE(sets);
  return pack(*sets, text, options, folder.path() / "set.packed", [](const PackProgress&) {});
}

std::string packed_spec(const TempFolder& folder) {
  return "packed:" + (folder.path() / "set.packed").string();
}

Bytes file_bytes(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return to_bytes(as_bytes(text));
}

Image decoded(const Dataset& set, std::uint32_t index) {
  Sample sample;
  REQUIRE(set.read(index, sample));
  if (sample.raw) {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(sample.bytes.data());
    return {.pixels = {begin, begin + sample.bytes.size()},
            .size = sample.raw->size,
            .channels = sample.raw->channels};
  }
  Decoder decoder;
  Image image;
  REQUIRE(decoder.decode(sample.bytes, 1, image));
  return image;
}

double mean_of(const Image& image) {
  double sum = 0;
  for (const std::uint8_t value : image.pixels) sum += value;
  return sum / static_cast<double>(image.pixels.size());
}

// A header, and zeros up to any size, as in a sparse file.
class HollowFile final : public ByteSource {
 public:
  explicit HollowFile(const PackedHeader& header)
      : size_(header.index_at + header.index_bytes), header_(encode_header(header)) {}
  std::uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  Result<void> read_at(std::uint64_t at, std::span<std::byte> out) const override {
    most_ = std::max(most_, out.size());
    std::ranges::fill(out, std::byte{0});
    if (at == 0) std::ranges::copy(header_, out.begin());
    return {};
  }
  // Bytes that were asked for at once.
  std::size_t most() const { return most_; }

 private:
  std::string name_ = "hollow";
  std::uint64_t size_;
  Bytes header_;
  mutable std::size_t most_ = 0;
};

// A packed file in memory, to be damaged.
Result<DataSets> reopened(Bytes bytes) {
  return open_packed(std::make_unique<MemorySource>("memory", std::move(bytes)), "memory");
}

}  // namespace

TEST_SUITE("training/data/packed") {
  TEST_CASE("photographs come back smaller, in order, with their labels, classes and parts") {
    const TempFolder folder;
    write_photographs(folder);
    const auto text = (folder.path() / "images").string();
    for (const auto form : {PackedForm::jpeg, PackedForm::raw}) {
      CAPTURE(static_cast<int>(form));
      const auto report = packed(folder, text, {.form = form, .side = 64, .threads = 3});
      REQUIRE(report);
      CHECK(report->train == 6);
      CHECK(report->val == 6);
      CHECK(report->left_out.empty());
      CHECK(report->bytes == std::filesystem::file_size(folder.path() / "set.packed"));

      const auto sets = open_sets(packed_spec(folder));
      REQUIRE(sets);
      const auto source = open_sets(text);
      REQUIRE(source);
      CHECK(sets->train->class_names() == source->train->class_names());
      REQUIRE(sets->train->size() == 6);
      REQUIRE(sets->val);
      CHECK(sets->train->channels() == 3);
      CHECK(sets->train->id() == open_sets(packed_spec(folder))->train->id());
      for (std::uint32_t i = 0; i < 6; ++i) {
        CAPTURE(i);
        Sample before;
        Sample after;
        REQUIRE(source->train->read(i, before));
        REQUIRE(sets->train->read(i, after));
        CHECK(after.label == before.label);
        const Image image = decoded(*sets->train, i);
        CHECK(image.size == ImageSize{64, 96});
        CHECK(std::abs(mean_of(image) - mean_of(decoded(*source->train, i))) < 2);
      }
    }
  }

  TEST_CASE("no more bytes wait to be written than may, however many samples there are") {
    const TempFolder folder;
    const auto sets = open_sets("synthetic:size=16,channels=3,train=100,val=10");
    REQUIRE(sets);
    const auto file = folder.path() / "set.packed";
    constexpr std::uint64_t kSample = 16 * 16 * 3;
    for (const unsigned threads : {1U, 3U}) {
      for (const std::uint64_t waiting : {std::uint64_t{0}, 4 * kSample, 1'000 * kSample}) {
        CAPTURE(threads);
        CAPTURE(waiting);
        std::uint64_t most = 0;
        PackProgress last;
        const auto report =
            pack(*sets, "synthetic",
                 {.form = PackedForm::raw, .threads = threads, .waiting_bytes = waiting}, file,
                 [&](const PackProgress& now) {
                   most = std::max(most, now.done - last.done);
                   last = now;
                 });
        REQUIRE(report);
        CHECK(report->train == 100);
        CHECK(last.done == 110);
        CHECK(most <= std::max<std::uint64_t>(1, waiting / kSample) + threads - 1);
        const auto again = open_sets(packed_spec(folder));
        REQUIRE(again);
        for (const std::uint32_t i : {0U, 57U, 99U})
          CHECK(decoded(*again->train, i).pixels == decoded(*sets->train, i).pixels);
      }
    }
  }

  TEST_CASE("a JPEG that is small enough is stored as it is, byte for byte") {
    const TempFolder folder;
    write_photographs(folder, {40, 50});
    const auto text = (folder.path() / "images").string();
    REQUIRE(packed(folder, text, {.side = 64}));
    const auto sets = open_sets(packed_spec(folder));
    REQUIRE(sets);
    Sample sample;
    REQUIRE(sets->val->read(5, sample));
    CHECK(sample.bytes == file_bytes(folder.path() / "images/val/dog/2.jpg"));
  }

  TEST_CASE("small sets that are stored as pixels stay the same pixels") {
    const TempFolder folder;
    for (const std::string text : {"synthetic:size=12,channels=1,train=40,val=7",
                                   "synthetic:size=16,channels=3,train=40,val=0"}) {
      CAPTURE(text);
      REQUIRE(packed(folder, text, {.side = 0, .threads = 2}));
      const auto source = open_sets(text);
      const auto sets = open_sets(packed_spec(folder));
      REQUIRE(sets);
      CHECK(sets->train->uniform_size() == source->train->uniform_size());
      CHECK(sets->train->channels() == source->train->channels());
      CHECK(static_cast<bool>(sets->val) == static_cast<bool>(source->val));
      for (const std::uint32_t i : {0U, 17U, 39U}) {
        Sample before;
        Sample after;
        REQUIRE(source->train->read(i, before));
        REQUIRE(sets->train->read(i, after));
        CHECK(after.bytes == before.bytes);
        CHECK(after.label == before.label);
      }
    }
  }

  TEST_CASE("photographs that are stored as pixels become JPEG where that is asked for") {
    const TempFolder folder;
    write_photographs(folder, {80, 100});
    REQUIRE(packed(folder, (folder.path() / "images").string(), {.form = PackedForm::raw}));
    const auto pixels = folder.path() / "pixels.packed";
    std::filesystem::rename(folder.path() / "set.packed", pixels);

    REQUIRE(packed(folder, "packed:" + pixels.string(), {.form = PackedForm::jpeg}));

    CHECK(std::filesystem::file_size(folder.path() / "set.packed") <
          std::filesystem::file_size(pixels) / 4);
    const auto before = open_sets("packed:" + pixels.string());
    const auto after = open_sets(packed_spec(folder));
    REQUIRE(after);
    Sample sample;
    REQUIRE(after->train->read(3, sample));
    CHECK(!sample.raw);
    CHECK(std::abs(mean_of(decoded(*after->train, 3)) - mean_of(decoded(*before->train, 3))) < 2);
  }

  TEST_CASE("an unreadable image is left out and named, and too many end it without a file") {
    const TempFolder folder;
    write_photographs(folder);
    folder.write("images/train/cat/1.jpg", "not an image at all");
    const auto text = (folder.path() / "images").string();
    const auto report = packed(folder, text, {.side = 64});
    REQUIRE(report);
    CHECK(report->train == 5);
    REQUIRE(report->left_out.size() == 1);
    CHECK(report->left_out[0].contains("cat/1.jpg"));

    std::filesystem::remove(folder.path() / "set.packed");
    const auto sets = open_sets(text);
    const auto refused = pack(*sets, text, {.side = 64, .max_bad = 0}, folder.path() / "set.packed",
                              [](const PackProgress&) {});
    REQUIRE_FALSE(refused);
    CHECK(refused.error().detail.contains("cat/1.jpg"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "set.packed"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "set.packed.partial"));
  }

  TEST_CASE("gray images with a validation part in colour are refused before a file is made") {
    const TempFolder folder;
    folder.write("idx/train-images-idx3-ubyte", idx_file({2, 8, 8}, Bytes(128)));
    folder.write("idx/train-labels-idx1-ubyte", idx_file({2}, to_bytes(as_bytes("\0\1"sv))));
    for (const auto* label : {"0", "1"})
      folder.write("val/" + std::string(label) + "/a.jpg", encode_jpeg(smooth_image({8, 8}, 9)));
    const auto sets =
        open_sets("idx:" + (folder.path() / "idx").string(), (folder.path() / "val").string());
    REQUIRE_MESSAGE(sets, (sets ? "" : sets.error().detail));
    const auto file = folder.path() / "set.packed";

    const auto report = pack(*sets, "both", {}, file, [](const PackProgress&) {});

    REQUIRE(!report);
    CHECK(report.error().code == Errc::data_failed);
    CHECK(mentions(report.error().detail, "1 channel"));
    CHECK(!std::filesystem::exists(file));
  }

  TEST_CASE("what cannot be written or asked for is an error that says so") {
    const TempFolder folder;
    const auto sets = open_sets("synthetic:train=3,val=0");
    const auto at = [&](const std::filesystem::path& file, PackOptions options) {
      return pack(*sets, "synthetic", options, file, [](const PackProgress&) {});
    };
    CHECK(at(folder.path() / "missing" / "x", {}).error().code == Errc::not_found);
    CHECK(at(folder.path() / "x", {.side = 3}).error().code == Errc::bad_argument);
    CHECK(at(folder.path() / "x", {.quality = 0}).error().code == Errc::bad_argument);
  }

  TEST_CASE("a damaged sample is one bad sample, a damaged index no data set") {
    const TempFolder folder;
    REQUIRE(packed(folder, "synthetic:size=8,train=20,val=4", {.side = 0}));
    const Bytes whole = file_bytes(folder.path() / "set.packed");
    const auto index = read_packed_index(MemorySource("memory", whole));
    REQUIRE(index);

    Bytes damaged = whole;
    damaged[index->entries[5].at + 3] ^= std::byte{1};
    const auto sets = reopened(damaged);
    REQUIRE(sets);
    Sample sample;
    CHECK(sets->train->read(4, sample));
    const auto bad = sets->train->read(5, sample);
    REQUIRE_FALSE(bad);
    CHECK(bad.error().detail.contains("sample 5"));
    CHECK(bad.error().detail.contains("checksum"));

    for (std::size_t at = 0; at < whole.size(); ++at) {
      if (at >= kPackedHeaderBytes - 8 && at < index->header.index_at) continue;
      CAPTURE(at);
      damaged = whole;
      damaged[at] ^= std::byte{0x10};
      CHECK_FALSE(reopened(damaged));
    }
    for (std::size_t size = 0; size < whole.size(); size += 7)
      CHECK_FALSE(
          reopened(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))));
  }

  TEST_CASE("nothing is packed through a symbolic link, which is named") {
    const TempFolder folder;
    const auto kept = folder.write("kept", "as it was"sv);
    const auto link = folder.path() / "set.packed.partial";
    std::filesystem::create_symlink(kept, link);

    const auto report = packed(folder, "synthetic:size=8,train=4,val=0", {.side = 0});

    REQUIRE_FALSE(report);
    CHECK(report.error().code == Errc::permission);
    CHECK(report.error().detail.starts_with(link.string() + ": a symbolic link"));
    CHECK(std::filesystem::file_size(kept) == 9);
    CHECK(std::filesystem::is_symlink(link));
  }

  TEST_CASE("no memory is taken for an index whose length nothing vouches for") {
    PackedHeader header;
    header.classes = 2;
    header.train = 1;
    header.index_at = kPackedHeaderBytes + 1;
    header.index_bytes = std::uint64_t{1} << 40;
    const HollowFile index(header);
    header.train = header.val = 0xffffffffU;
    header.index_bytes = std::uint64_t{2} * header.train * kPackedEntryBytes + 6;
    const HollowFile samples(header);
    for (const HollowFile* file : {&index, &samples}) {
      const auto read = read_packed_index(*file);

      REQUIRE(!read);
      CHECK(read.error().code == Errc::data_failed);
      CHECK(mentions(read.error().detail, "hollow: an index too long for its"));
      CHECK(file->most() == kPackedHeaderBytes);
    }
  }

  TEST_CASE("a long index is read in pieces, and has its hash before memory is taken for it") {
    PackedHeader header;
    header.classes = 2;
    header.train = 4'000'000;
    header.index_at = kPackedHeaderBytes + 4'000'000;
    header.index_bytes = std::uint64_t{4'000'000} * kPackedEntryBytes + 6;
    const HollowFile file(header);

    const auto read = read_packed_index(file);

    REQUIRE(!read);
    CHECK(mentions(read.error().detail, "do not have their hash"));
    CHECK(file.most() <= std::size_t{1} << 20);
  }

  TEST_CASE("an index that lies about places, labels or sizes is refused, hash or not") {
    const TempFolder folder;
    REQUIRE(packed(folder, "synthetic:size=8,train=4,val=0", {.side = 0}));
    const Bytes whole = file_bytes(folder.path() / "set.packed");
    const auto good = read_packed_index(MemorySource("memory", whole));
    REQUIRE(good);
    const auto with = [&](auto change) {
      PackedIndex index = *good;
      change(index);
      const Bytes encoded = encode_index(index);
      index.header.index_bytes = encoded.size();
      index.header.hash = hash_of(index.header, encoded);
      Bytes file(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(good->header.index_at));
      const Bytes header = encode_header(index.header);
      std::ranges::copy(header, file.begin());
      file.insert(file.end(), encoded.begin(), encoded.end());
      return reopened(std::move(file)).has_value();
    };
    CHECK(with([](PackedIndex&) {}));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries[1].at = i.header.index_at - 1; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries[1].at = 3; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries[1].at = ~std::uint64_t{0}; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries[1].bytes = 0xffffffffU; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries[1].label = i.header.classes; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries[1].height = 9; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries[1].width = 0; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.entries.pop_back(); }));
    CHECK_FALSE(with([](PackedIndex& i) { i.header.train = 0xffffffffU; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.header.classes = 70'000; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.header.channels = 2; }));
    CHECK_FALSE(with([](PackedIndex& i) { i.header.version = 2; }));
  }
}
