#include "training/data/dataset.h"

#include "node/base/hash.h"
#include "tests/training/data/fixtures.h"
#include "training/data/idx.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

Bytes counting(std::size_t count) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

// An IDX folder of 4 training and 2 test images of 3 x 2 pixels.
void write_idx(const TempFolder& folder, bool packed) {
  const std::string end = packed ? ".gz" : "";
  const auto write = [&](const std::string& name, const Bytes& bytes) {
    folder.write(name + end, packed ? gzip(bytes) : bytes);
  };
  write("train-images-idx3-ubyte", idx_file({4, 3, 2}, counting(24)));
  write("train-labels-idx1-ubyte",
        idx_file({4}, Bytes{std::byte{0}, std::byte{2}, std::byte{1}, std::byte{2}}));
  write("t10k-images-idx3-ubyte", idx_file({2, 3, 2}, counting(12)));
  write("t10k-labels-idx1-ubyte", idx_file({2}, Bytes{std::byte{1}, std::byte{0}}));
}

Bytes cifar_record(std::uint8_t label, std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  Bytes record{static_cast<std::byte>(label)};
  for (const std::uint8_t value : {red, green, blue}) {
    record.insert(record.end(), 1'024, static_cast<std::byte>(value));
  }
  return record;
}

// Class folders `classes` below `part`, `count` images each.
void write_folder(const TempFolder& folder, const std::string& part,
                  const std::vector<std::string>& classes, int count) {
  for (const std::string& name : classes) {
    for (int i = 0; i < count; ++i) {
      folder.write(part + "/" + name + "/" + std::to_string(i) + ".jpg",
                   encode_jpeg(smooth_image({20, 30}, static_cast<std::uint8_t>(i))));
    }
  }
}

// What data.found said: set, images, seconds.
class FoundLog final : public Log {
 public:
  void write(LogLevel level, std::string_view event,
             std::initializer_list<LogField> fields) override {
    CHECK(level == LogLevel::info);
    CHECK(event == "data.found");
    std::string line;
    for (const LogField& field : fields) line += (line.empty() ? "" : " ") + field.value;
    lines.push_back(line);
  }

  std::vector<std::string> lines;
};

std::string refusal_of_sets(const std::string& text, const std::string& val = "") {
  const auto sets = open_sets(text, val);
  if (sets) return "accepted";
  CHECK(sets.error().code == Errc::data_failed);
  return sets.error().detail;
}

}  // namespace

TEST_SUITE("training/data/dataset") {
  TEST_CASE("while a large set is opened the log says every ten seconds how far that is") {
    const TempFolder folder;
    write_folder(folder, "train", {"a", "b"}, 4);
    write_folder(folder, "val", {"a", "b"}, 1);
    const auto spec = parse_data_spec(folder.path().string());
    REQUIRE(spec);
    FoundLog log;
    const SlowClock clock;

    REQUIRE(open_data(*spec, nullptr, log, clock));

    const std::string name = folder.path().string() + " train";
    CHECK(log.lines == std::vector<std::string>{name + " 3 12", name + " 6 24"});
  }

  TEST_CASE("a set that opens at once says nothing of it") {
    const TempFolder folder;
    write_folder(folder, ".", {"a", "b"}, 4);
    const auto spec = parse_data_spec(folder.path().string());
    REQUIRE(spec);
    FoundLog log;
    REQUIRE(open_data(*spec, nullptr, log));
    CHECK(log.lines.empty());
  }

  TEST_CASE("an IDX folder opens plain and packed, with its official test set") {
    for (const bool packed : {false, true}) {
      CAPTURE(packed);
      const TempFolder folder;
      write_idx(folder, packed);

      const auto sets = open_sets("idx:" + folder.path().string());

      REQUIRE(sets);
      CHECK(sets->train->size() == 4);
      CHECK(sets->train->classes() == 3);
      CHECK(sets->train->channels() == 1);
      CHECK(sets->train->uniform_size() == ImageSize{3, 2});
      REQUIRE(sets->val);
      CHECK(sets->val->size() == 2);
      CHECK(sets->val->classes() == 3);
      Sample sample;
      REQUIRE(sets->train->read(1, sample));
      CHECK(sample.label == 2);
      REQUIRE(sample.raw);
      CHECK(sample.bytes == to_bytes(ByteView(counting(24)).subspan(6, 6)));
    }
  }

  TEST_CASE("an IDX header that lies is refused, naming the file") {
    const auto error = [](const Bytes& file) {
      const auto array = parse_idx("f", file);
      return array ? std::string("accepted") : array.error().detail;
    };

    CHECK(mentions(error(idx_file({4, 3, 2}, counting(23))), "holds 23 bytes"));
    CHECK(mentions(error(idx_file({0xffffffff, 0xffffffff, 0xffffffff}, {})), "too large"));
    CHECK(mentions(error(to_bytes(as_bytes("hello"))), "not an IDX file"));
    Bytes floats = idx_file({1}, counting(1));
    floats[2] = std::byte{0x0d};
    CHECK(mentions(error(floats), "something else than bytes"));
    Bytes cut = gzip(idx_file({4, 3, 2}, counting(24)));
    cut.resize(cut.size() - 9);
    CHECK(mentions(error(cut), "truncated gzip"));
    CHECK(mentions(error(Bytes{std::byte{0}, std::byte{0}, std::byte{8}, std::byte{3}}),
                   "truncated header"));
    CHECK(mentions(error(Bytes{std::byte{0}, std::byte{0}, std::byte{8}, std::byte{200}}),
                   "200 dimensions"));
  }

  TEST_CASE("a packed IDX file cannot unpack beyond its limit") {
    const Bytes bomb = gzip(Bytes(8 << 20));

    const auto array = parse_idx("bomb", bomb, 1 << 20);

    REQUIRE(!array);
    CHECK(mentions(array.error().detail, "unpacks to more than 1048576 bytes"));
  }

  TEST_CASE("a packed IDX file of several members is read to its end") {
    const Bytes whole = idx_file({4, 3, 2}, counting(24));
    Bytes packed;
    // Members that are empty, that end within the header, and that end within the images.
    std::size_t from = 0;
    for (const std::size_t to : {0U, 5U, 20U, 20U, 40U}) {
      const Bytes member = gzip(ByteView(whole).subspan(from, to - from));
      packed.insert(packed.end(), member.begin(), member.end());
      from = to;
    }

    const auto array = parse_idx("members", packed);

    REQUIRE(array);
    CHECK(array->shape == std::vector<std::uint32_t>{4, 3, 2});
    CHECK(array->bytes == counting(24));
    // gzip(1) passes over zeros behind the last member, as tapes leave them.
    packed.resize(packed.size() + 7);
    CHECK(parse_idx("padded", packed));
    packed.resize(packed.size() - 7 - 9);
    CHECK(mentions(parse_idx("cut", packed).error().detail, "truncated gzip"));
    const Bytes bomb = gzip(Bytes(600 << 10));
    Bytes bombs = bomb;
    bombs.insert(bombs.end(), bomb.begin(), bomb.end());
    CHECK(mentions(parse_idx("bombs", bombs, 1 << 20).error().detail, "unpacks to more than"));
  }

  TEST_CASE("an IDX folder without labels, or with too few of them, is refused") {
    const TempFolder folder;
    folder.write("train-images-idx3-ubyte", idx_file({2, 1, 1}, counting(2)));
    CHECK(mentions(refusal_of_sets("idx:" + folder.path().string()), "train-images-idx3-ubyte"));

    folder.write("train-labels-idx1-ubyte", idx_file({1}, counting(1)));
    CHECK(mentions(refusal_of_sets("idx:" + folder.path().string()), "1 labels for 2 images"));
    CHECK(mentions(refusal_of_sets("idx:/nowhere"), "/nowhere"));
  }

  TEST_CASE("CIFAR-10 records become interleaved pixels over all files in order") {
    const TempFolder folder;
    Bytes two = cifar_record(3, 10, 20, 30);
    const Bytes second = cifar_record(9, 1, 2, 3);
    two.insert(two.end(), second.begin(), second.end());
    folder.write("data_batch_1.bin", two);
    folder.write("data_batch_2.bin", cifar_record(0, 7, 8, 9));
    folder.write("test_batch.bin", cifar_record(5, 4, 5, 6));

    const auto sets = open_sets("cifar10:" + folder.path().string());

    REQUIRE(sets);
    CHECK(sets->train->size() == 3);
    CHECK(sets->train->class_names()[3] == "cat");
    REQUIRE(sets->val);
    CHECK(sets->val->size() == 1);
    Sample sample;
    REQUIRE(sets->train->read(2, sample));
    CHECK(sample.label == 0);
    CHECK(sample.bytes[0] == std::byte{7});
    CHECK(sample.bytes[1] == std::byte{8});
    CHECK(sample.bytes[5] == std::byte{9});
    CHECK(mentions(sets->train->sample_name(2), "data_batch_2.bin: record 0"));
  }

  TEST_CASE("damaged CIFAR-10 files are refused by name") {
    const TempFolder folder;
    const std::string spec = "cifar10:" + folder.path().string();
    CHECK(mentions(refusal_of_sets(spec), "data_batch_1.bin"));

    Bytes cut = cifar_record(1, 0, 0, 0);
    cut.pop_back();
    folder.write("data_batch_1.bin", cut);
    CHECK(mentions(refusal_of_sets(spec), "no multiple of 3,073"));
    folder.write("data_batch_1.bin", cifar_record(10, 0, 0, 0));
    CHECK(mentions(refusal_of_sets(spec), "label 10"));
  }

  TEST_CASE("class folders are labelled in bytewise order, and other files are passed over") {
    const TempFolder folder;
    write_folder(folder, ".", {"zebra", "Ant", "ant"}, 2);
    folder.write("ant/sub/deep.PNG", encode_png(smooth_image({8, 8}, 1)));
    folder.write("ant/notes.txt", as_bytes("no image"));
    folder.write(".cache/x.jpg", as_bytes("hidden"));

    const auto sets = open_sets(folder.path().string());

    REQUIRE(sets);
    CHECK(sets->train->class_names() == std::vector<std::string>{"Ant", "ant", "zebra"});
    CHECK(sets->train->size() == 7);
    CHECK(!sets->val);
    Sample sample;
    REQUIRE(sets->train->read(4, sample));
    CHECK(sample.label == 1);
    CHECK(mentions(sets->train->sample_name(4), "ant/sub/deep.PNG"));
    CHECK(!sample.raw);
  }

  TEST_CASE("train and val folders split the data, with the labels of the training classes") {
    const TempFolder folder;
    write_folder(folder, "train", {"a", "b", "c"}, 2);
    write_folder(folder, "val", {"a", "c"}, 1);

    const auto sets = open_sets(folder.path().string());

    REQUIRE(sets);
    REQUIRE(sets->val);
    CHECK(sets->train->size() == 6);
    CHECK(sets->val->size() == 2);
    CHECK(sets->val->classes() == 3);
    Sample sample;
    REQUIRE(sets->val->read(1, sample));
    CHECK(sample.label == 2);
  }

  TEST_CASE("an explicit validation set overrides the data's own, and must know its classes") {
    const TempFolder folder;
    const TempFolder other;
    write_folder(folder, "train", {"a", "b"}, 2);
    write_folder(folder, "val", {"a", "b"}, 1);
    write_folder(other, ".", {"a", "b"}, 3);

    const auto sets = open_sets(folder.path().string(), other.path().string());

    REQUIRE(sets);
    REQUIRE(sets->val);
    CHECK(sets->val->size() == 6);
    write_folder(other, ".", {"stranger"}, 1);
    CHECK(mentions(refusal_of_sets(folder.path().string(), other.path().string()), "'stranger'"));
  }

  TEST_CASE("a folder that holds no data set says what one looks like") {
    const TempFolder folder;
    CHECK(mentions(refusal_of_sets(folder.path().string()), "0 class folders"));
    std::filesystem::create_directories(folder.path() / "a");
    std::filesystem::create_directories(folder.path() / "b");
    CHECK(mentions(refusal_of_sets(folder.path().string()), "hold no image"));
    CHECK(mentions(refusal_of_sets((folder.path() / "missing").string()), "missing"));
    CHECK(mentions(refusal_of_sets((folder.path() / "x.tar").string()), "x.tar"));
  }

  TEST_CASE("a loop of links does not multiply the samples") {
    const TempFolder folder;
    write_folder(folder, ".", {"a", "b"}, 1);
    std::filesystem::create_directory_symlink("..", folder.path() / "a" / "loop");

    const auto sets = open_sets(folder.path().string());

    REQUIRE(sets);
    CHECK(sets->train->size() == 2);
  }

  TEST_CASE("the id of a data set follows its content, not its place") {
    const TempFolder one;
    const TempFolder two;
    write_folder(one, ".", {"a", "b"}, 2);
    write_folder(two, ".", {"a", "b"}, 2);

    const auto first = open_sets(one.path().string());
    const auto second = open_sets(two.path().string());
    REQUIRE(first);
    REQUIRE(second);
    CHECK(first->train->id() == second->train->id());

    write_folder(two, ".", {"b"}, 3);
    const auto third = open_sets(two.path().string());
    REQUIRE(third);
    CHECK(first->train->id() != third->train->id());
  }

  TEST_CASE("the names of classes tell two data sets apart, and numbers tell nothing") {
    const auto names = [](const std::vector<std::string>& classes) {
      const TempFolder folder;
      write_folder(folder, ".", classes, 1);
      const auto sets = open_sets(folder.path().string());
      REQUIRE(sets);
      return names_of_classes(*sets->train);
    };
    CHECK(names({"ant", "bee", "cat"}) == names({"cat", "bee", "ant"}));
    CHECK(names({"ant", "bee", "cat"}).has_value());
    CHECK(names({"ant", "bee", "cat"}) != names({"ant", "cat"}));
    CHECK(names({"ant", "bee"}) != names({"an", "tbee"}));
    CHECK_FALSE(names({"0", "1", "2"}).has_value());
    // Where one is missing, the labels are no longer what the names say.
    CHECK(names({"0", "2"}).has_value());
    CHECK_FALSE(names_of_classes(*open_sets("synthetic")->train).has_value());
  }

  TEST_CASE("a file that disappeared makes its sample bad, by name") {
    const TempFolder folder;
    write_folder(folder, ".", {"a", "b"}, 1);
    const auto sets = open_sets(folder.path().string());
    REQUIRE(sets);
    std::filesystem::remove(folder.path() / "a" / "0.jpg");
    Sample sample;

    const auto done = sets->train->read(0, sample);

    REQUIRE(!done);
    CHECK(mentions(done.error().detail, "a/0.jpg"));
  }

  TEST_CASE("the synthetic set is the same for everybody, balanced and split") {
    const auto sets = open_sets("synthetic:classes=5,size=16,train=1000,val=10");
    REQUIRE(sets);
    REQUIRE(sets->val);
    CHECK(sets->train->size() == 1'000);
    std::vector<int> counts(5);
    Sample sample;
    for (std::uint32_t i = 0; i < 1'000; ++i) {
      REQUIRE(sets->train->read(i, sample));
      ++counts[static_cast<std::size_t>(sample.label)];
    }
    for (const int count : counts) CHECK(std::abs(count - 200) < 60);  // deviation 12.6

    REQUIRE(sets->train->read(7, sample));
    const Bytes again = sample.bytes;
    const std::int64_t label = sample.label;
    REQUIRE(sets->train->read(7, sample));
    CHECK(sample.bytes == again);
    CHECK(hash_of(sample.bytes) == hash_of(again));
    REQUIRE(sets->val->read(7, sample));
    CHECK(sample.bytes != again);
    CHECK(label >= 0);
  }

  TEST_CASE("a synthetic class can be told from the others by its pixels") {
    const auto sets = open_sets("synthetic:classes=10,size=32,train=2000,val=400");
    REQUIRE(sets);
    // Mean colour over the image is the same for all classes; its spread per channel is not. The
    // nearest class mean of {spread across, spread down} per channel recognises most samples.
    const auto features = [](const Sample& sample) {
      std::vector<double> f;
      for (std::size_t c = 0; c < 3; ++c) {
        double across = 0;
        double down = 0;
        for (std::size_t y = 0; y + 1 < 32; ++y) {
          for (std::size_t x = 0; x + 1 < 32; ++x) {
            const auto at = [&](std::size_t yy, std::size_t xx) {
              return std::to_integer<int>(sample.bytes[(yy * 32 + xx) * 3 + c]);
            };
            across += std::abs(at(y, x) - at(y, x + 1));
            down += std::abs(at(y, x) - at(y + 1, x));
          }
        }
        f.push_back(across / 961);
        f.push_back(down / 961);
      }
      return f;
    };
    std::vector<std::vector<double>> means(10, std::vector<double>(6));
    std::vector<int> counts(10);
    Sample sample;
    for (std::uint32_t i = 0; i < 2'000; ++i) {
      REQUIRE(sets->train->read(i, sample));
      const auto f = features(sample);
      const auto label = static_cast<std::size_t>(sample.label);
      for (std::size_t k = 0; k < 6; ++k) means[label][k] += f[k];
      ++counts[label];
    }
    for (std::size_t c = 0; c < 10; ++c) {
      for (double& value : means[c]) value /= counts[c];
    }
    int right = 0;
    for (std::uint32_t i = 0; i < 400; ++i) {
      REQUIRE(sets->val->read(i, sample));
      const auto f = features(sample);
      std::size_t best = 0;
      double best_distance = 1e300;
      for (std::size_t c = 0; c < 10; ++c) {
        double distance = 0;
        for (std::size_t k = 0; k < 6; ++k) distance += (f[k] - means[c][k]) * (f[k] - means[c][k]);
        if (distance < best_distance) {
          best = c;
          best_distance = distance;
        }
      }
      if (static_cast<std::int64_t>(best) == sample.label) ++right;
    }
    CHECK(right > 300);
  }

  TEST_CASE("evaluation takes the validation part where there is one, else everything") {
    NullLog log;
    const TempFolder folder;
    write_folder(folder, "train", {"a", "b"}, 2);
    write_folder(folder, "test", {"a", "b"}, 1);
    const auto spec = parse_data_spec(folder.path().string());
    const auto inner = parse_data_spec((folder.path() / "train").string());
    REQUIRE(spec);
    REQUIRE(inner);

    CHECK((*open_evaluation_data(*spec, log))->size() == 2);
    CHECK((*open_evaluation_data(*inner, log))->size() == 4);
  }
}
