#include "training/safetensors.h"

#include "node/base/random.h"
#include "tests/support/temp_folder.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

// A file of this header (padded by nothing) and that many bytes of data.
Bytes file_of(std::string_view header, std::size_t data_bytes) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.write(static_cast<std::uint64_t>(header.size()));
  writer.append(as_bytes(header));
  bytes.resize(bytes.size() + data_bytes);
  return bytes;
}

Errc refusal(std::string_view header, std::size_t data_bytes) {
  const auto file = SafetensorsFile::parse(file_of(header, data_bytes));
  return file ? Errc::internal : file.error().code;
}

constexpr std::string_view kTwo = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                                  R"("b":{"dtype":"I64","shape":[],"data_offsets":[24,32]}})";

}  // namespace

TEST_SUITE("training/safetensors") {
  TEST_CASE("what was written comes back, names, shapes, metadata and bytes") {
    const TempFolder folder;
    const auto path = folder.path() / "x.safetensors";
    const std::vector<float> values{1.0F, -2.5F, 3e-30F, 4.0F, 5.0F, 6.0F};
    const std::int64_t count = 12'345;

    Hasher hasher;
    auto writer = SafetensorsWriter::create(
        path,
        {{"layer.\"odd\"\\name\n", DType::f32, {2, 3}, 0, 0}, {"count", DType::i64, {}, 0, 0}},
        {{"format", "pt"}, {"step", "8412"}}, &hasher);
    REQUIRE(writer.has_value());
    REQUIRE(writer->append(std::as_bytes(std::span(values))).has_value());
    REQUIRE(writer->append(std::as_bytes(std::span(&count, 1))).has_value());
    REQUIRE(writer->finish().has_value());

    const auto file = SafetensorsFile::read(path, 1 << 20);
    REQUIRE(file.has_value());
    CHECK(file->hash() == hasher.finish());
    CHECK(file->metadata().at("step") == "8412");
    const TensorEntry* tensor = file->find("layer.\"odd\"\\name\n");
    REQUIRE(tensor != nullptr);
    CHECK(tensor->shape == std::vector<std::int64_t>{2, 3});
    CHECK(std::ranges::equal(file->data(*tensor), std::as_bytes(std::span(values))));
    CHECK(file->find("nothing") == nullptr);
  }

  TEST_CASE("a good header is accepted with spaces, in any order of keys") {
    CHECK(SafetensorsFile::parse(file_of(kTwo, 32)).has_value());
    CHECK(SafetensorsFile::parse(
              file_of(R"( { "a" : {"data_offsets":[ 0 , 4 ], "shape":[4],"dtype":"U8"} }   )", 4))
              .has_value());
    CHECK(SafetensorsFile::parse(file_of("{}", 0)).has_value());
    CHECK(SafetensorsFile::parse(
              file_of(R"({"\u00e9\u4e2d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0))
              ->find("\xc3\xa9\xe4\xb8\xad") != nullptr);
  }

  TEST_CASE("holes, overlaps, doubles and wrong sizes are refused") {
    for (const std::string_view header :
         {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",  // a hole before
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",   // bytes behind
          R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})",  // another shape
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})",
          R"({"a":{"dtype":"F9","shape":[4],"data_offsets":[0,16]}})",
          R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})",
          R"({"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}})",
          R"({"a":{"dtype":"F32","shape":[04],"data_offsets":[0,16]}})",
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16,16]}})",
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0]}})",
          R"({"a":{"dtype":"F32","shape":[4]}})",
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}})",
          R"({"a":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}x)",
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},})",
          R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})",
          R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
          R"("a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}})",
          R"({"a":{"dtype":"U8","shape":[10],"data_offsets":[0,10]},)"
          R"("b":{"dtype":"U8","shape":[10],"data_offsets":[6,16]}})",
          R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}})",
          R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]}})",
          R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,16]}})",
          R"({"__metadata__":{"a":1},"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})",
          R"({"__metadata__":{"a":"1","a":"2"}})",
          R"({"__metadata__":{},"__metadata__":{}})",
          R"({"\ud800":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})",
          R"({"a)",
          "",
          "[]",
          "null",
          "{"}) {
      CAPTURE(header);
      CHECK(refusal(header, 16) == Errc::corrupt);
    }
  }

  TEST_CASE("a length field beyond the file or the limit reserves nothing and is refused") {
    for (const std::uint64_t length :
         {std::uint64_t{33}, kMaxSafetensorsHeader + 1, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
      CAPTURE(length);
      Bytes bytes;
      ByteWriter(bytes).write(length);
      bytes.resize(40);
      const auto file = SafetensorsFile::parse(std::move(bytes));
      REQUIRE_FALSE(file.has_value());
      CHECK(file.error().code == Errc::corrupt);
    }
    for (std::size_t size = 0; size < 8; ++size) {
      CHECK_FALSE(SafetensorsFile::parse(Bytes(size)).has_value());
    }
  }

  TEST_CASE("a file cut off anywhere is refused") {
    const Bytes whole = file_of(kTwo, 32);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      const auto end = whole.begin() + static_cast<std::ptrdiff_t>(size);
      CHECK_FALSE(SafetensorsFile::parse(Bytes(whole.begin(), end)).has_value());
    }
  }

  TEST_CASE("whatever bits flip, what is accepted still tiles the file") {
    const Bytes good = file_of(kTwo, 32);
    Rng rng(1);
    for (int round = 0; round < 20'000; ++round) {
      CAPTURE(round);
      Bytes bytes = good;
      const std::uint64_t flips = 1 + rng.below(3);
      for (std::uint64_t i = 0; i < flips; ++i) {
        bytes[static_cast<std::size_t>(rng.below(bytes.size()))] ^=
            static_cast<std::byte>(1U << rng.below(8));
      }
      const auto header = parse_safetensors_header(bytes, bytes.size());
      if (!header) continue;
      std::uint64_t at = 0;
      for (const TensorEntry& tensor : header->tensors) {
        REQUIRE(tensor.begin == at);
        at = tensor.end;
      }
      REQUIRE(header->data_start + at == bytes.size());
    }
  }

  TEST_CASE("a file larger than the caller allows is not read") {
    const TempFolder folder;
    const auto path = folder.path() / "x.safetensors";
    auto writer = SafetensorsWriter::create(path, {{"a", DType::u8, {1'000}, 0, 0}}, {});
    REQUIRE(writer.has_value());
    REQUIRE(writer->append(Bytes(1'000)).has_value());
    REQUIRE(writer->finish().has_value());

    const auto file = SafetensorsFile::read(path, 1'000);
    REQUIRE_FALSE(file.has_value());
    CHECK(file.error().code == Errc::too_large);
    const auto missing = SafetensorsFile::read(folder.path() / "none", 1'000);
    REQUIRE_FALSE(missing.has_value());
    CHECK(missing.error().code == Errc::not_found);
  }
}
