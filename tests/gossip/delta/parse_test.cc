// What parse_delta() refuses. Buffers are exact heap copies, so that the sanitizers see every read
// behind the end.
#include "gossip/delta/codec.h"
#include "gossip/delta/exchange.h"
#include "gossip/delta/sparse_stream.h"
#include "tests/gossip/delta/models.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

namespace starling::gossip {

using testing::kLevels;
using testing::make_layout;
using testing::plain_layout;
using testing::Shape;
using testing::uneven_layout;
using testing::values;

namespace {

Bytes encoded_bytes(const Layout& layout, Level level, std::uint64_t seed) {
  Rng rng(seed);
  Carry carry;
  auto encoded = encode(layout, {values(layout, Shape::mixed, rng), {}}, {.level = level}, carry);
  REQUIRE(encoded.has_value());
  return std::move(encoded->bytes);
}

Bytes message(std::initializer_list<unsigned> raw) {
  Bytes bytes;
  for (const unsigned byte : raw) bytes.push_back(static_cast<std::byte>(byte));
  return bytes;
}

// Decodes what was accepted and looks at every value.
void use(const Layout& layout, const DeltaView& view) {
  std::array<float, kBlock> q{};
  for (std::size_t block = 0; block < layout.blocks(); ++block) {
    decode_block(view, block, q, detected_isa());
    for (std::size_t i = 0; i < layout.width(block); ++i) {
      REQUIRE(std::isfinite(q[i]));
      if (!layout.is_real(block, i)) REQUIRE(q[i] == 0.0F);
    }
  }
}

std::string reason(const Layout& layout, Level level, const Bytes& bytes) {
  const auto view = parse_delta(layout, level, bytes);
  if (view) return "accepted";
  CHECK(view.error().code == Errc::bad_message);
  return view.error().detail;
}

bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("gossip/delta/parse") {
  TEST_CASE("a delta that is cut off anywhere is refused") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      const Bytes whole = encoded_bytes(layout, level, 3);
      Rng rng(1);
      for (int i = 0; i < 300; ++i) {
        const std::size_t size = rng.below(whole.size());
        CAPTURE(size);
        const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
        CHECK_FALSE(parse_delta(layout, level, part));
      }
      CHECK_FALSE(parse_delta(layout, level, {}));
    }
  }

  TEST_CASE("a byte more than a delta has is refused") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      Bytes bytes = encoded_bytes(layout, level, 3);
      bytes.push_back(std::byte{0});
      CHECK_FALSE(parse_delta(layout, level, bytes));
      bytes.resize(max_bytes(layout, level) + 1);
      CHECK(says(reason(layout, level, bytes), "at most"));
    }
  }

  TEST_CASE("a delta with flipped bits is refused or decodes to finite values") {
    const Layout layout = uneven_layout();
    for (const Level level : kLevels) {
      CAPTURE(name_of(level));
      const Bytes whole = encoded_bytes(layout, level, 5);
      Rng rng(2);
      int refused = 0;
      for (int i = 0; i < 300; ++i) {
        Bytes bytes = whole;
        for (std::uint64_t flips = 1 + rng.below(3); flips > 0; --flips)
          bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1U << rng.below(8));
        const auto view = parse_delta(layout, level, bytes);
        refused += view ? 0 : 1;
        if (view) use(layout, *view);
      }
      CHECK(refused > 0);
    }
  }

  TEST_CASE("random bytes are refused or decode to finite values") {
    const Layout layout = make_layout({{{"w", {40, 16}}, {"b", {30}}}, 0});
    Rng rng(4);
    for (int i = 0; i < 20'000; ++i) {
      const Level level = kLevels[rng.below(7)];
      Bytes bytes(rng.below(max_bytes(layout, level) + 1));
      // mostly zeros: zero scales get further than random ones
      for (std::byte& byte : bytes)
        if (rng.chance(0.3)) byte = static_cast<std::byte>(rng());
      if (const auto view = parse_delta(layout, level, bytes)) use(layout, *view);
    }
  }

  TEST_CASE("centroids and scales are finite, have no sign and are in order") {
    const Layout layout = plain_layout(1);
    const Layout small = make_layout({{{"b", {16}}}, 0});

    CHECK(says(reason(layout, Level::l3, message({0x80, 0x7f})), "not finite"));
    CHECK(says(reason(layout, Level::l3, message({0x00, 0x80})), "negative"));
    CHECK(says(reason(layout, Level::l4, message({0x80, 0x3f, 0x81, 0x3f})), "above the high"));
    CHECK(says(reason(layout, Level::l2, message({0x80, 0x3f, 0x81, 0x3f})), "above the high"));
    CHECK(reason(layout, Level::l2, message({0x00, 0x00})) == "accepted");
    CHECK(says(reason(small, Level::l2, message({0x80, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0})), "scale"));
    CHECK(says(reason(small, Level::l2, message({0x13, 0x7e, 0, 0, 0, 0, 0, 0, 0, 0})), "scale") ==
          (from_bf16(0x7e13) * 7 > std::numeric_limits<float>::max()));
    CHECK(reason(small, Level::l2, message({0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0})) == "accepted");
    CHECK(reason(small, Level::l2, message({0x00, 0x00})) == "accepted");
  }

  TEST_CASE("the largest scale times the largest code is finite, the next scale is not") {
    CHECK(std::isfinite(from_bf16(kMaxScale4) * 7));
    CHECK(std::isfinite(from_bf16(kMaxScale8) * 127));
    CHECK(std::isinf(from_bf16(kMaxScale4 + 1) * 7));
    CHECK(std::isinf(from_bf16(kMaxScale8 + 1) * 127));
  }

  TEST_CASE("codes that no encoder makes are refused") {
    const Layout small = make_layout({{{"b", {16}}}, 0});

    CHECK(says(reason(small, Level::l0, message({0x80, 0x3f, 8, 0, 0, 0, 0, 0, 0, 0})), "code"));
    CHECK(says(reason(small, Level::l0, message({0x80, 0x3f, 0x80, 0, 0, 0, 0, 0, 0, 0})), "code"));
    Bytes eight = message({0x80, 0x3f});
    eight.resize(18);
    CHECK(reason(small, Level::l6, eight) == "accepted");
    eight[17] = std::byte{0x80};
    CHECK(says(reason(small, Level::l6, eight), "code"));
  }

  TEST_CASE("nothing may stand in padding") {
    const Layout layout = make_layout({{{"b", {30}}}, 0});  // 30 and 31 are padding
    Bytes four = message({0x80, 0x3f});
    four.resize(18);
    CHECK(reason(layout, Level::l0, four) == "accepted");
    four[17] = std::byte{0x01};
    CHECK(says(reason(layout, Level::l0, four), "padding"));

    const Layout big = make_layout({{{"w", {15, 2}}}, 0});
    Bytes signs = message({0x80, 0x3f, 0, 0, 0, 0});
    CHECK(reason(big, Level::l3, signs) == "accepted");
    signs[5] = std::byte{0x80};
    CHECK(says(reason(big, Level::l3, signs), "padding"));
    Bytes both = message({0x80, 0x3f, 0x80, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0});
    CHECK(reason(big, Level::l4, both) == "accepted");
    both[11] = std::byte{0x40};
    CHECK(says(reason(big, Level::l4, both), "padding"));
  }

  TEST_CASE("a sparse index into padding is refused") {
    // 30 real values, so a stream of 30 must name them all; the last index may not be 31
    const Layout layout = make_layout({{{"w", {15, 2}}}, 0});
    const std::array<std::uint8_t, 16> none{};
    std::array<std::uint8_t, 16> all{};
    all.fill(0xff);
    std::vector<std::uint16_t> indices(30);
    for (std::uint16_t i = 0; i < 30; ++i) indices[i] = i;
    for (const std::uint16_t last : {std::uint16_t{29}, std::uint16_t{30}, std::uint16_t{31}}) {
      indices.back() = last;
      std::array<std::uint8_t, 128> stream{};
      const std::size_t size = write_stream(
          kernels_of(detected_isa()), Level::l1,
          {.indices = indices, .signs = none.data(), .sizes = all.data()}, stream.data());
      Bytes bytes = message({0x80, 0x3f, 0x80, 0x3f});
      for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(stream[i]));

      const std::string answer = reason(layout, Level::l1, bytes);

      CHECK(says(answer, last == 29 ? "accepted" : "padding"));
    }
  }

  TEST_CASE("streams keep any rising indices, signs and sizes") {
    Rng rng(6);
    for (int i = 0; i < 2'000; ++i) {
      const Level level = kLevels[rng.below(3)];
      const std::uint32_t nominal = nominal_count(level);
      const auto k = static_cast<std::uint32_t>(nominal / 2 + rng.below(nominal * 3 / 2 + 1));
      const std::uint64_t first = rng.below(kBlock - k + 1);  // crowds the indices at the end
      std::vector<bool> chosen(kBlock);
      for (std::uint32_t left = k; left > 0;) {
        const std::size_t index = first + rng.below(kBlock - first);
        if (!chosen[index]) --left;
        chosen[index] = true;
      }
      std::vector<std::uint16_t> indices;
      for (std::uint16_t index = 0; index < kBlock; ++index)
        if (chosen[index]) indices.push_back(index);
      std::array<std::uint8_t, kMaxSelected / 8 + 8> signs{};
      std::array<std::uint8_t, kMaxSelected / 8 + 8> sizes{};
      for (std::uint8_t& byte : signs) byte = static_cast<std::uint8_t>(rng());
      for (std::uint8_t& byte : sizes) byte = static_cast<std::uint8_t>(rng());
      std::array<std::uint8_t, 1'024> stream{};

      const std::size_t size = write_stream(
          kernels_of(detected_isa()), level,
          {.indices = indices, .signs = signs.data(), .sizes = sizes.data()}, stream.data());
      SparseStream out;
      const char* wrong =
          read_stream(kernels_of(detected_isa()), std::as_bytes(std::span(stream)).first(size),
                      {level, kBlock, kBlock}, out);

      REQUIRE(wrong == nullptr);
      CHECK(out.bytes == size);
      CHECK(size <= (max_stream_bits(level, k) + 7) / 8);
      REQUIRE(out.count == k);
      for (std::uint32_t at = 0; at < k; ++at) {
        REQUIRE(out.index[at] == indices[at]);
        REQUIRE((out.signs[at / 64] >> at % 64 & 1) == (signs[at / 8] >> at % 8 & 1U));
        REQUIRE((out.sizes[at / 64] >> at % 64 & 1) == (sizes[at / 8] >> at % 8 & 1U));
      }
    }
  }

  TEST_CASE("streams of a few values, whose remainders are wide, are read by every path") {
    const std::array<std::uint8_t, 16> bits{0x5};
    for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512}) {
      if (!is_available(isa)) continue;
      const Kernels& kernels = kernels_of(isa);
      Rng rng(8);
      for (std::uint32_t k = 1; k <= 40; ++k) {
        CAPTURE(name_of(isa));
        CAPTURE(k);
        std::vector<std::uint16_t> indices;
        for (std::uint32_t i = 0; i < k; ++i)
          indices.push_back(static_cast<std::uint16_t>(i * (kBlock / k) + rng.below(kBlock / k)));
        std::array<std::uint8_t, 512> stream{};
        const std::size_t size = write_stream(
            kernels, Level::l2, {.indices = indices, .signs = bits.data(), .sizes = bits.data()},
            stream.data());
        SparseStream out;

        // A block with no more values than that.
        const char* wrong = read_stream(kernels, std::as_bytes(std::span(stream)).first(size),
                                        {Level::l2, kBlock, k}, out);

        REQUIRE(wrong == nullptr);
        REQUIRE(out.count == k);
        for (std::uint32_t i = 0; i < k; ++i) CHECK(out.index[i] == indices[i]);
      }
    }
  }

  TEST_CASE("a stream that is only checked is judged as one that is read") {
    Rng rng(7);
    std::map<std::string, int> verdicts;
    for (int i = 0; i < 20'000; ++i) {
      const Level level = kLevels[rng.below(3)];
      const std::uint32_t nominal = nominal_count(level);
      std::vector<std::uint16_t> indices;
      const auto width = static_cast<std::uint32_t>(16 * (1 + rng.below(kBlock / 16)));
      for (std::uint16_t index = 0; index < width && indices.size() < kMaxSelected; ++index)
        if (rng.below(width) < nominal) indices.push_back(index);
      if (indices.empty()) continue;
      std::array<std::uint8_t, kMaxSelected / 8 + 8> bits{};
      for (std::uint8_t& byte : bits) byte = static_cast<std::uint8_t>(rng());
      std::array<std::uint8_t, 1'024> stream{};
      std::size_t size = write_stream(
          kernels_of(detected_isa()), level,
          {.indices = indices, .signs = bits.data(), .sizes = bits.data()}, stream.data());
      if (rng.below(2) == 0)
        stream[rng.below(size)] ^= static_cast<std::uint8_t>(1 + rng.below(255));
      if (rng.below(8) == 0) size -= rng.below(size);
      const ByteView bytes = std::as_bytes(std::span(stream)).first(size);
      const StreamBounds bounds{level, width,
                                static_cast<std::uint32_t>(width - rng.below(width / 8 + 1))};
      SparseStream read;
      std::size_t length = 0;

      const char* wrong = read_stream(kernels_of(detected_isa()), bytes, bounds, read);
      const char* found = check_stream(bytes, bounds, length);

      REQUIRE(std::string(found == nullptr ? "valid" : found) ==
              (wrong == nullptr ? "valid" : wrong));
      if (wrong == nullptr) REQUIRE(length == read.bytes);
      ++verdicts[wrong == nullptr ? "valid" : wrong];
    }
    CHECK(verdicts.size() == 5);
    for (const auto& [verdict, count] : verdicts) CHECK_MESSAGE(count > 100, verdict);
  }

  TEST_CASE("counts outside of half to twice the nominal one are refused") {
    const std::array<std::uint8_t, kMaxSelected / 2> none{};
    const auto answer = [&](Level level, std::uint16_t k, StreamBounds bounds) {
      std::vector<std::uint16_t> indices(k);
      for (std::uint16_t i = 0; i < k; ++i) indices[i] = i;
      std::array<std::uint8_t, 1'024> stream{};
      const std::size_t size = write_stream(
          kernels_of(detected_isa()), level,
          {.indices = indices, .signs = none.data(), .sizes = none.data()}, stream.data());
      SparseStream out;
      return read_stream(kernels_of(detected_isa()), std::as_bytes(std::span(stream)).first(size),
                         bounds, out) == nullptr;
    };

    CHECK(answer(Level::l0, 8, {Level::l0, kBlock, kBlock}));
    CHECK(answer(Level::l0, 32, {Level::l0, kBlock, kBlock}));
    CHECK_FALSE(answer(Level::l0, 7, {Level::l0, kBlock, kBlock}));
    CHECK(answer(Level::l2, 512, {Level::l2, kBlock, kBlock}));
    CHECK_FALSE(answer(Level::l2, 127, {Level::l2, kBlock, kBlock}));
    CHECK(answer(Level::l2, 20, {Level::l2, 32, 20}));
    CHECK_FALSE(answer(Level::l2, 19, {Level::l2, 32, 20}));
    CHECK_FALSE(answer(Level::l2, 21, {Level::l2, 32, 20}));
  }

  TEST_CASE("statistics that are not finite, negative or missing are refused") {
    const Layout layout = make_layout({{{"b", {16}}}, 2});
    const auto payload = [&](std::vector<float> statistics) {
      Bytes bytes = message({0, 0});
      ByteWriter(bytes).append(std::as_bytes(std::span(statistics)));
      return Payload{Level::l2, Statistics::with, share(std::move(bytes))};
    };
    const float inf = std::numeric_limits<float>::infinity();

    CHECK(parse_payload(layout, payload({1, -2, 3, 0})).has_value());
    CHECK_FALSE(parse_payload(layout, payload({1, -2, 3, -4})));
    CHECK_FALSE(parse_payload(layout, payload({1, inf, 3, 4})));
    CHECK_FALSE(parse_payload(layout, payload({1, -2, std::nanf(""), 4})));
    CHECK_FALSE(parse_payload(layout, payload({1, -2, 3})));
    CHECK_FALSE(parse_payload(layout, payload({1, -2, 3, 4, 5})));
    CHECK_FALSE(parse_payload(layout, payload({})));
    CHECK_FALSE(parse_payload(layout, {Level::l2, Statistics::without, nullptr}));
  }
}

}  // namespace starling::gossip
