// The codec of a GPU, run here crew by crew, against gossip/delta: the same bytes from the same
// values, the same values from the same bytes.
#include "gossip/delta/exchange.h"
#include "tests/gossip/delta/models.h"
#include "tests/training/cuda/aligned.h"
#include "tests/training/cuda/codec_twin.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

using namespace starling;
using namespace starling::gossip;
using namespace starling::gossip::testing;
namespace cuda = starling::training::cuda;
using cuda::same_bytes;

namespace {

// One after the other, in either order.
auto one_by_one(cuda::ItemOrder order) {
  return [order](auto body) {
    cuda::SerialCrew crew(order);
    body(crew);
  };
}

void check_encode(const Layout& layout, const Difference& difference, Level level, Carry& carry) {
  Carry next = carry;
  const auto expected = encode(layout, difference, {.level = level, .isa = Isa::scalar}, next);
  REQUIRE(expected.has_value());
  for (const auto order : {cuda::ItemOrder::rising, cuda::ItemOrder::falling}) {
    const auto twin = cuda::twin_encode(layout, difference, level, carry, one_by_one(order));
    CHECK(twin.figures.first_bad == layout.blocks());
    CHECK(same_bytes(twin.bytes, expected->bytes));
    CHECK(same_bytes(twin.thresholds, next.thresholds));
    // Sums of as many doubles as the model has values, in another order.
    const auto about = [](double value) { return doctest::Approx(value).epsilon(1e-12); };
    CHECK(twin.figures.energy == about(expected->figures.difference_energy));
    CHECK(twin.figures.sent == about(expected->figures.sent_energy));
    for (std::size_t i = 0; i < 7; ++i) {
      if (twin.figures.sampled_energy == 0) continue;
      const double unsent = 1 - twin.figures.sampled_sent[i] / twin.figures.sampled_energy;
      CHECK(std::abs(std::clamp(unsent, 0.0, 1.0) -
                     static_cast<double>(expected->figures.unsent_share[i])) < 1e-6);
    }
  }
  carry = next;
}

void check_layout(const Layout& layout) {
  for (const Shape shape : kShapes) {
    CAPTURE(static_cast<int>(shape));
    Rng rng(3 + static_cast<std::uint64_t>(shape));
    const auto x = values(layout, shape, rng);
    auto r = values(layout, shape == Shape::huge ? Shape::gaussian : shape, rng);
    for (const Level level : testing::kLevels) {
      CAPTURE(name_of(level));
      Carry carry;
      // Exact at first, then by carried thresholds, from which some drift out of range.
      for (int round = 0; round < 3; ++round) {
        check_encode(layout, {x, r}, level, carry);
        for (std::size_t i = 0; i < r.size(); i += 3) r[i] = r[i] + (x[i] - r[i]) * 0.25F;
      }
      check_encode(layout, {x, {}}, level, carry);
    }
  }
}

Bytes encoded(const Layout& layout, const Difference& difference, Level level) {
  Carry carry;
  auto done = encode(layout, difference, {.level = level}, carry);
  REQUIRE(done.has_value());
  return std::move(done->bytes);
}

// Both ends' deltas of one exchange, at different levels.
void check_exchange(const Layout& layout, Shape shape, Level own_level, Level their_level) {
  Rng rng(17);
  const auto x = values(layout, shape, rng);
  const auto r = values(layout, Shape::gaussian, rng);
  const Bytes own = encoded(layout, {x, r}, own_level);
  const Bytes theirs = encoded(layout, {values(layout, shape, rng), r}, their_level);
  const auto own_view = parse_delta(layout, own_level, own);
  const auto their_view = parse_delta(layout, their_level, theirs);
  REQUIRE(own_view.has_value());
  REQUIRE(their_view.has_value());
  std::vector<float> cpu_x = x;
  std::vector<float> cpu_r = r;
  const double norm =
      apply_exchange({*own_view, *their_view, Side::lower}, 0.375F, {cpu_x, cpu_r}, Isa::scalar);

  const cuda::ShapeTables tables(layout);
  const cuda::TwinBytes lower(*own_view);
  const cuda::TwinBytes higher(*their_view);
  for (const auto order : {cuda::ItemOrder::rising, cuda::ItemOrder::falling}) {
    std::vector<float> gpu_x = x;
    std::vector<float> gpu_r = r;
    std::vector<double> distances(layout.blocks());
    cuda::ExchangeMemory memory;
    cuda::SparseMemory sparse_memory;
    const cuda::ExchangeArgs args{tables.shapes(), lower.delta(), higher.delta(),  0.375F,
                                  gpu_x.data(),    gpu_r.data(),  distances.data()};
    cuda::SerialCrew crew(order);
    const bool sparse = is_sparse(own_level) && is_sparse(their_level);
    for (std::uint32_t block = 0; block < layout.blocks(); ++block) {
      if (sparse && block < args.shapes.first_small) {
        cuda::exchange_sparse_block(crew, sparse_memory, args, block);
      } else {
        cuda::exchange_block(crew, memory, args, block);
      }
    }
    double all = 0;
    cuda::sum_distances(crew, distances.data(), static_cast<std::uint32_t>(distances.size()), &all);
    // Where no list names a value, the CPU makes +0 of -0.
    if (sparse)
      for (float& value : gpu_x) value += 0.0F;
    CHECK(same_bytes(gpu_x, cpu_x));
    CHECK(same_bytes(gpu_r, cpu_r));
    // Huge values are apart by more than a float can say: infinite on both.
    CHECK((std::sqrt(all) == norm || std::sqrt(all) == doctest::Approx(norm).epsilon(1e-12)));

    std::vector<float> decoded(layout.size());
    std::vector<float> expected(layout.size());
    for (std::uint32_t block = 0; block < layout.blocks(); ++block) {
      cuda::install_block(crew, memory, {tables.shapes(), lower.delta(), decoded.data()}, block);
      decode_block(*own_view, block, std::span(expected).subspan(block * kBlock, kBlock),
                   Isa::scalar);
    }
    CHECK(same_bytes(decoded, expected));
  }
}

}  // namespace

TEST_SUITE("training/cuda/codec") {
  TEST_CASE("the encoder of a GPU makes the CPU's bytes, of every level and shape") {
    check_layout(uneven_layout());
    check_layout(plain_layout(2));
  }

  TEST_CASE("the encoder of a GPU sees the drift of all thresholds that the CPU sees") {
    const Layout layout = plain_layout(64 * kFewestDrifts);
    Rng rng(31);
    Carry carry;
    check_encode(layout, {values(layout, Shape::gaussian, rng), {}}, Level::l1, carry);
    auto x = values(layout, Shape::gaussian, rng);
    for (float& value : x) value *= 0.5F;
    x[3] = x[4] = 0;
    check_encode(layout, {x, {}}, Level::l1, carry);
  }

  TEST_CASE("what lies at padding is not sent, whatever it is") {
    const Layout layout = uneven_layout();
    Rng rng(41);
    auto x = values(layout, Shape::gaussian, rng);
    for (std::size_t block = 0; block < layout.blocks(); ++block) {
      const auto real = layout.real_mask(block);
      for (std::size_t i = 0; i < real.size() * 64; ++i)
        if ((real[i / 64] >> (i % 64) & 1U) == 0) x[block * kBlock + i] = 3;
    }
    for (const Level level : testing::kLevels) {
      CAPTURE(name_of(level));
      Carry carry;
      for (int round = 0; round < 2; ++round) check_encode(layout, {x, {}}, level, carry);
    }
  }

  TEST_CASE("nearly all blocks of a steady run are encoded in one look, by their thresholds") {
    const Layout layout = plain_layout(200);
    Rng rng(37);
    Carry carry;
    for (int round = 0; round < 3; ++round) {
      const auto x = values(layout, Shape::gaussian, rng);
      const auto twin =
          cuda::twin_encode(layout, {x, {}}, Level::l1, carry, one_by_one(cuda::ItemOrder::rising));
      CHECK(twin.by_threshold >= (round == 0 ? 0U : layout.first_small_block() * 9 / 10));
      if (round == 0) CHECK(twin.by_threshold == 0);
      check_encode(layout, {x, {}}, Level::l1, carry);
    }
  }

  TEST_CASE("every trial and every other task has its crew, and trials come early") {
    const auto check_tasks = [](std::uint32_t trials, std::uint32_t others) {
      CAPTURE(trials);
      CAPTURE(others);
      std::vector<int> tried(trials);
      std::vector<int> done(others);
      std::uint32_t last = 0;
      for (std::uint32_t i = 0; i < trials + others; ++i) {
        const cuda::CrewTask task = cuda::task_of(i, trials, others);
        REQUIRE(task.number < (task.is_trial ? trials : others));
        ++(task.is_trial ? tried : done)[task.number];
        if (task.is_trial) last = i;
      }
      CHECK(tried == std::vector<int>(trials, 1));
      CHECK(done == std::vector<int>(others, 1));
      if (4 * trials <= others) CHECK(last <= (trials + others) / 2);
    };
    for (const std::uint32_t trials : {0U, 7U, 14U, 686U})
      for (const std::uint32_t others : {1U, 6U, 7U, 8U, 29U, 782U, 6'250U})
        check_tasks(trials, others);
  }

  TEST_CASE("the decoder of a GPU gives the CPU's replica and reference, to the bit") {
    const Layout layout = uneven_layout();
    for (const Shape shape : kShapes)
      for (const Level own : testing::kLevels) {
        CAPTURE(static_cast<int>(shape));
        CAPTURE(name_of(own));
        const auto number = static_cast<std::size_t>(own);
        check_exchange(layout, shape, own, testing::kLevels[(number + 3) % 7]);
        check_exchange(layout, shape, own, testing::kLevels[(number + 1) % 3]);
      }
  }

  TEST_CASE("real threads with barriers make the bytes that one thread makes") {
    const Layout layout = uneven_layout();
    Rng rng(29);
    const auto x = values(layout, Shape::ties, rng);
    Carry carry;
    for (const Level level : {Level::l2, Level::l3, Level::l4, Level::l5}) {
      const auto alone =
          cuda::twin_encode(layout, {x, {}}, level, carry, one_by_one(cuda::ItemOrder::rising));
      const auto together = cuda::twin_encode(layout, {x, {}}, level, carry, [](auto body) {
        cuda::run_emulated(64, [&](cuda::EmulatedCrew& crew) { body(crew); });
      });
      CHECK(together.bytes == alone.bytes);
      CHECK(same_bytes(together.thresholds, alone.thresholds));
    }
  }

  TEST_CASE("the first block that cannot be sent is named, and whose fault it is") {
    const Layout layout = plain_layout(3);
    std::vector<float> x(layout.size());
    std::vector<float> r(layout.size());
    Carry carry;
    const auto look = [&] {
      return cuda::twin_encode(layout, {x, r}, Level::l2, carry,
                               one_by_one(cuda::ItemOrder::rising))
          .figures;
    };
    x[kBlock + 5] = 3e38F;
    r[kBlock + 5] = -3e38F;
    x[2 * kBlock] = std::numeric_limits<float>::infinity();
    CHECK(look().first_bad == 1);
    CHECK(look().x_is_finite == 1);
    r[kBlock + 5] = 0;
    CHECK(look().first_bad == 2);
    CHECK(look().x_is_finite == 0);
  }
}
