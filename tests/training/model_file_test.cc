#include "training/model_file.h"

#include "node/base/random.h"
#include "tests/support/temp_folder.h"
#include "training/genesis.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

using namespace starling;
using namespace starling::training;

namespace {

const ModelSpec kSpec{"small", 10, 3, 32};

Model colour_model() {
  auto model = make_model(kSpec);
  REQUIRE(model.has_value());
  return *std::move(model);
}

Replica some_replica(const Model& model) {
  Replica replica = make_genesis(model, 5).replica;
  Rng rng(2);
  for (float& x : replica.bn_mean) x = static_cast<float>(rng.unit() - 0.5);
  for (float& x : replica.bn_variance) x = static_cast<float>(rng.unit());
  replica.batches_tracked = 77;
  return replica;
}

// The tensors of a file, so that a test can write it again with one change.
struct Tensors {
  std::vector<TensorEntry> entries;
  std::vector<Bytes> data;
};

Tensors tensors_of(const std::filesystem::path& path) {
  const auto file = SafetensorsFile::read(path, 1 << 24);
  REQUIRE(file.has_value());
  Tensors tensors;
  for (const TensorEntry& entry : file->tensors()) {
    tensors.entries.push_back(entry);
    tensors.data.push_back(to_bytes(file->data(entry)));
  }
  return tensors;
}

void write(const std::filesystem::path& path, const Tensors& tensors) {
  auto writer = SafetensorsWriter::create(path, tensors.entries, {});
  REQUIRE(writer.has_value());
  for (const Bytes& data : tensors.data) REQUIRE(writer->append(data).has_value());
  REQUIRE(writer->finish().has_value());
}

std::size_t index_of(const Tensors& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors.entries, name, &TensorEntry::name);
  REQUIRE(found != tensors.entries.end());
  return static_cast<std::size_t>(found - tensors.entries.begin());
}

// A file as published weights are, without metadata; of its values there is nothing but room.
void write_header_of(const std::filesystem::path& path, const Model& model) {
  std::vector<TensorEntry> entries;
  std::uint64_t values = 0;
  for (const gossip::TensorPlace& place : model.layout.tensors()) {
    entries.push_back({place.name, DType::f32, place.dims, 0, 0});
    values += place.count;
  }
  REQUIRE(SafetensorsWriter::create(path, entries, {}).has_value());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + sizeof(float) * values);
}

}  // namespace

TEST_SUITE("training/model_file") {
  TEST_CASE("a replica comes back from its file bit for bit") {
    const TempFolder folder;
    const Model model = colour_model();
    const Replica replica = some_replica(model);

    REQUIRE(write_model(folder.path() / "m", model, replica, {}).has_value());
    const auto read = read_model(folder.path() / "m", model);

    REQUIRE(read.has_value());
    CHECK(*read == replica);
  }

  TEST_CASE("files hold torchvision's names, O,I,H,W weights and counts as I64") {
    const TempFolder folder;
    const Model model = colour_model();
    const Replica replica = some_replica(model);
    REQUIRE(write_model(folder.path() / "m", model, replica, {}).has_value());
    const auto file = SafetensorsFile::read(folder.path() / "m", 1 << 24);
    REQUIRE(file.has_value());

    const TensorEntry* conv = file->find("layer2.0.conv1.weight");
    REQUIRE(conv != nullptr);
    CHECK(conv->shape == std::vector<std::int64_t>{64, 32, 3, 3});
    // Element (o=1, i=2, h=0, w=1) in both orders.
    const gossip::TensorPlace* place = model.layout.find("layer2.0.conv1.weight");
    REQUIRE(place != nullptr);
    float in_file = 0;
    std::memcpy(&in_file, file->data(*conv).data() + 4 * (((1 * 32 + 2) * 3 + 0) * 3 + 1), 4);
    CHECK(in_file == replica.parameters[place->offset + ((1 * 3 + 0) * 3 + 1) * 32 + 2]);
    const TensorEntry* tracked = file->find("layer2.0.downsample.1.num_batches_tracked");
    REQUIRE(tracked != nullptr);
    CHECK(tracked->dtype == DType::i64);
    CHECK(tracked->shape.empty());
    CHECK(file->metadata().at("format") == "pt");
  }

  TEST_CASE("the model of a file is found from the file alone") {
    const TempFolder folder;
    const Model model = colour_model();
    REQUIRE(write_model(folder.path() / "m", model, some_replica(model), {}).has_value());

    const auto spec = model_of_file(folder.path() / "m");

    REQUIRE(spec.has_value());
    CHECK(*spec == kSpec);
  }

  TEST_CASE(
      "of models that are parts of one another, a file's is the one that has all its tensors") {
    const TempFolder folder;
    for (const std::string_view name : model_names()) {
      CAPTURE(std::string(name));
      const auto model = make_model({std::string(name), 7, 3, 224});
      REQUIRE(model.has_value());
      const auto path = folder.path() / std::string(name);
      write_header_of(path, *model);

      const auto spec = model_of_file(path);

      REQUIRE(spec.has_value());
      CHECK(*spec == model->plan.spec);
    }
  }

  TEST_CASE("a file says which classes its outputs are, or what it says is refused") {
    const TempFolder folder;
    Model model = colour_model();
    model.plan.spec.class_names = hash_of(as_bytes("ant, bee"));
    REQUIRE(write_model(folder.path() / "m", model, some_replica(model), {}).has_value());
    const auto spec = model_of_file(folder.path() / "m");
    REQUIRE(spec.has_value());
    CHECK(*spec == model.plan.spec);

    model.plan.spec.class_names.reset();
    REQUIRE(write_model(folder.path() / "m", model, some_replica(model), {{"class_names", "ant"}})
                .has_value());
    const auto refused = model_of_file(folder.path() / "m");
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Errc::corrupt);
    CHECK(refused.error().detail.find("class_names") != std::string::npos);
  }

  TEST_CASE("a file with a tensor missing, added, reshaped or not finite is refused by name") {
    const TempFolder folder;
    const Model model = colour_model();
    const auto path = folder.path() / "m";
    REQUIRE(write_model(path, model, some_replica(model), {}).has_value());
    const Tensors good = tensors_of(path);
    const std::size_t conv = index_of(good, "layer3.0.conv2.weight");
    const std::size_t variance = index_of(good, "bn1.running_var");

    Tensors missing = good;
    missing.entries.erase(missing.entries.begin() + static_cast<std::ptrdiff_t>(conv));
    missing.data.erase(missing.data.begin() + static_cast<std::ptrdiff_t>(conv));
    Tensors added = good;
    added.entries.push_back({"surprise", DType::u8, {1}, 0, 0});
    added.data.push_back(Bytes(1));
    Tensors reshaped = good;
    std::swap(reshaped.entries[conv].shape[0], reshaped.entries[conv].shape[3]);
    Tensors infinite = good;
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(infinite.data[conv].data() + 400, &infinity, 4);
    Tensors negative = good;
    const float below_zero = -1.0F;
    std::memcpy(negative.data[variance].data(), &below_zero, 4);

    struct Case {
      const Tensors& tensors;
      std::string name;
    };
    for (const Case& one :
         {Case{missing, "layer3.0.conv2.weight"}, Case{added, "surprise"},
          Case{reshaped, "layer3.0.conv2.weight"}, Case{infinite, "layer3.0.conv2.weight"},
          Case{negative, "bn1.running_var"}}) {
      CAPTURE(one.name);
      write(path, one.tensors);
      const auto read = read_model(path, model);
      REQUIRE_FALSE(read.has_value());
      CHECK(read.error().code == Errc::corrupt);
      CAPTURE(read.error().detail);
      CHECK((read.error().detail.find(one.name) != std::string::npos ||
             read.error().detail.find("tensors, expected") != std::string::npos));
    }
  }

  TEST_CASE("a count of batches that no run reaches is refused, and never written") {
    const TempFolder folder;
    const Model model = colour_model();
    const auto path = folder.path() / "m";
    Replica replica = some_replica(model);
    for (const std::int64_t batches :
         {kMaxBatchesTracked, kMaxBatchesTracked + 1, std::numeric_limits<std::int64_t>::max()}) {
      CAPTURE(batches);
      replica.batches_tracked = batches;
      REQUIRE(write_model(path, model, replica, {}).has_value());
      const auto read = read_model(path, model);
      REQUIRE(read.has_value());
      CHECK(read->batches_tracked == kMaxBatchesTracked);
    }

    Tensors tensors = tensors_of(path);
    const std::size_t tracked = index_of(tensors, "bn1.num_batches_tracked");
    tensors.data[tracked].clear();
    ByteWriter(tensors.data[tracked]).write(kMaxBatchesTracked + 1);
    write(path, tensors);
    const auto read = read_model(path, model);
    REQUIRE_FALSE(read.has_value());
    CHECK(read.error().code == Errc::corrupt);
    CHECK(read.error().detail.contains("bn1.num_batches_tracked"));
  }

  TEST_CASE("weights in F16 and BF16 are read as the numbers they are") {
    const TempFolder folder;
    const Model model = colour_model();
    const auto path = folder.path() / "m";
    REQUIRE(write_model(path, model, some_replica(model), {}).has_value());
    Tensors tensors = tensors_of(path);
    const std::size_t bias = index_of(tensors, "fc.bias");
    const auto set = [&](DType dtype, std::uint16_t bits) {
      tensors.entries[bias].dtype = dtype;
      tensors.data[bias].clear();
      for (int i = 0; i < 10; ++i) ByteWriter(tensors.data[bias]).write(bits);
      write(path, tensors);
      const auto read = read_model(path, model);
      REQUIRE(read.has_value());
      return read->parameters[model.layout.find("fc.bias")->offset];
    };

    CHECK(set(DType::f16, 0x3e00) == 1.5F);
    CHECK(set(DType::f16, 0xc000) == -2.0F);
    CHECK(set(DType::f16, 0x0001) == 0x1p-24F);  // the smallest subnormal
    CHECK(set(DType::bf16, 0xbfc0) == -1.5F);
  }
}
