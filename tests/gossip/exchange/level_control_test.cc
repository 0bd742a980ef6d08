#include "gossip/exchange/level_control.h"

#include <doctest/doctest.h>

TEST_SUITE_BEGIN("gossip/exchange/level_control");

namespace starling::gossip {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kBlocks = 6241;  // ResNet-50

EncodeFigures unsent(std::array<float, 7> shares) {
  EncodeFigures figures;
  figures.difference_energy = 1;
  figures.unsent_share = shares;
  return figures;
}

// Drift whose scales are alike: a sixteenth of the values holds a good part of the energy.
const std::array<float, 7> kEven{0.97F, 0.9F, 0.7F, 0.36F, 0.12F, 0.01F, 0};
// Drift with scales that differ by decades inside a block: only four bits and more help.
const std::array<float, 7> kUneven{0.99F, 0.98F, 0.9F, 0.85F, 0.8F, 0.02F, 0};

LevelHistory measured(const std::array<float, 7>& shares) {
  LevelHistory history{LevelOptions{}};
  history.on_encode(unsent(shares));
  return history;
}

LevelInputs inputs_with(std::optional<double> bytes_per_second, std::uint32_t tau = 2) {
  LevelInputs inputs;
  inputs.tau = tau;
  inputs.line = {bytes_per_second, 250ms, typical_bytes(kBlocks)};
  return inputs;
}

TEST_CASE("without a measurement the level stays as it starts") {
  const auto decision = decide_level(inputs_with({}), LevelHistory{LevelOptions{}}, {});

  CHECK(decision == LevelDecision{Level::l2, Level::l2, LevelReason::unmeasured});
}

TEST_CASE("a pinned level stays whatever was measured") {
  LevelOptions options;
  options.fixed_level = Level::l4;

  const auto decision = decide_level(inputs_with(1.0), measured(kEven), options);

  CHECK(decision == LevelDecision{Level::l4, Level::l4, LevelReason::pinned});
}

TEST_CASE("the cheapest level that leaves three quarters unsent is enough") {
  CHECK(decide_level(inputs_with({}), measured(kEven), {}) ==
        LevelDecision{Level::l2, Level::l2, LevelReason::enough});
}

TEST_CASE("drift of uneven scales asks for the dense levels") {
  CHECK(decide_level(inputs_with({}), measured(kUneven), {}) ==
        LevelDecision{Level::l5, Level::l5, LevelReason::enough});
}

TEST_CASE("a fast line alone is no reason for a higher level") {
  CHECK(decide_level(inputs_with(1.25e9), measured(kEven), {}).level == Level::l2);
}

TEST_CASE("the last tenth of the budget asks for more where the line carries it") {
  auto inputs = inputs_with({});
  inputs.progress = 0.95;
  CHECK(decide_level(inputs, measured(kEven), {}) ==
        LevelDecision{Level::l3, Level::l3, LevelReason::late_phase});

  // 2 x 1.57 MB fit into 0.7 x 10 MB/s x 0.5 s, 2 x 3.26 MB do not.
  inputs = inputs_with(10e6);
  inputs.progress = 0.95;
  CHECK(decide_level(inputs, measured(kEven), {}) ==
        LevelDecision{Level::l2, Level::l2, LevelReason::enough});
}

TEST_CASE("a line that cannot carry the wanted level gets the dearest one that fits") {
  // 0.7 x 40 MB/s x 0.5 s = 14 MB: L4 needs 12.9, L5 26.
  CHECK(decide_level(inputs_with(40e6), measured(kUneven), {}) ==
        LevelDecision{Level::l4, Level::l5, LevelReason::line_too_slow});
}

TEST_CASE("a line that cannot carry L2 asks for a longer period") {
  const auto decision = decide_level(inputs_with(1e6), measured(kEven), {});

  CHECK(decision == LevelDecision{Level::l2, Level::l2, LevelReason::nothing_fits});
}

TEST_CASE("a level that was left is not wished for again within a hundred exchanges") {
  auto history = measured(kUneven);
  history.on_left(Level::l5);
  auto inputs = inputs_with({});
  for (int i = 0; i < 99; ++i) history.on_exchange();
  CHECK(decide_level(inputs, history, {}) ==
        LevelDecision{Level::l2, Level::l5, LevelReason::left_before});

  history.on_exchange();

  CHECK(decide_level(inputs, history, {}).reason == LevelReason::enough);
}

TEST_CASE("the memory never holds back a step down that the line demands") {
  auto history = measured(kUneven);
  history.on_left(Level::l4);
  auto inputs = inputs_with(40e6);
  inputs.present = Level::l5;

  CHECK(decide_level(inputs, history, {}) ==
        LevelDecision{Level::l4, Level::l5, LevelReason::line_too_slow});
}

TEST_CASE("the unsent share is an average over twenty encodes") {
  LevelHistory history{LevelOptions{}};
  for (int i = 0; i < 20; ++i) history.on_encode(unsent(kEven));
  history.on_encode(unsent(kUneven));

  // 0.7 + (0.9 - 0.7) / 20
  CHECK((*history.unsent())[2] == doctest::Approx(0.71));
}

TEST_CASE("an encode of equal vectors teaches nothing") {
  LevelHistory history{LevelOptions{}};

  history.on_encode(EncodeFigures{});

  CHECK_FALSE(history.unsent().has_value());
}

TEST_CASE("a pinned period stays") {
  LevelOptions options;
  options.fixed_tau = 7;

  CHECK(decide_period({.tau = 7, .nothing_fits = true, .exchanges_since_left_half = {}}, options) ==
        PeriodDecision{7, PeriodReason::pinned});
}

TEST_CASE("the period doubles while nothing fits, up to its maximum") {
  CHECK(decide_period({.tau = 2, .nothing_fits = true, .exchanges_since_left_half = {}}, {}) ==
        PeriodDecision{4, PeriodReason::nothing_fits});
  CHECK(decide_period({.tau = 64, .nothing_fits = true, .exchanges_since_left_half = {}}, {}) ==
        PeriodDecision{64, PeriodReason::longest});
}

TEST_CASE("the period halves after twenty exchanges with room, and not below its start") {
  PeriodInputs inputs{.tau = 8, .exchanges_with_room = 19, .exchanges_since_left_half = {}};
  CHECK(decide_period(inputs, {}) == PeriodDecision{8, PeriodReason::waiting});
  inputs.exchanges_with_room = 20;
  CHECK(decide_period(inputs, {}) == PeriodDecision{4, PeriodReason::room_for_half});
  inputs.exchanges_since_left_half = 99;
  CHECK(decide_period(inputs, {}) == PeriodDecision{8, PeriodReason::left_before});
  inputs.exchanges_since_left_half = 100;
  CHECK(decide_period(inputs, {}).tau == 4);

  inputs.tau = 2;
  CHECK(decide_period(inputs, {}) == PeriodDecision{2, PeriodReason::fits});
}

TEST_CASE("the period doubles while the codec takes more than its share of training's time") {
  using std::chrono::milliseconds;
  // Three jobs of 12 ms every two steps of 100 ms: 18 %.
  PeriodInputs inputs{.tau = 2,
                      .job_cost = milliseconds(12),
                      .step_time = milliseconds(100),
                      .exchanges_since_left_half = {}};
  CHECK(decide_period(inputs, {}) == PeriodDecision{4, PeriodReason::codec_time});
  inputs.tau = 4;
  CHECK(decide_period(inputs, {}) == PeriodDecision{8, PeriodReason::codec_time});
  inputs.tau = 8;
  CHECK(decide_period(inputs, {}) == PeriodDecision{8, PeriodReason::fits});
  // However much it takes: replicas that part further lose more than the steps gain.
  inputs.job_cost = milliseconds(100);
  CHECK(decide_period(inputs, {}) == PeriodDecision{16, PeriodReason::codec_time});
  inputs.tau = 16;
  CHECK(decide_period(inputs, {}).tau == 16);
}

TEST_CASE("room on the line does not halve a period that the codec needs") {
  using std::chrono::milliseconds;
  PeriodInputs inputs{.tau = 8,
                      .job_cost = milliseconds(7),
                      .step_time = milliseconds(100),
                      .exchanges_with_room = 20,
                      .exchanges_since_left_half = {}};
  // Half would take 5.25 % of 6 %: within the share, but not clearly.
  CHECK(decide_period(inputs, {}) == PeriodDecision{8, PeriodReason::codec_time});
  inputs.job_cost = milliseconds(5);
  CHECK(decide_period(inputs, {}) == PeriodDecision{4, PeriodReason::room_for_half});
}

TEST_CASE("typical sizes are those of the table for ResNet-50") {
  const PerLevel bytes = typical_bytes(kBlocks);

  CHECK(bytes[2] == doctest::Approx(1.54e6).epsilon(0.03));
  CHECK(bytes[5] == doctest::Approx(12.98e6).epsilon(0.03));
}

TEST_CASE("a leave push takes the highest level up to L5 that fits its time") {
  Line line{.bytes_per_second = {}, .step_time = 250ms, .message_bytes = typical_bytes(kBlocks)};
  CHECK(level_for_leave(line, 4s) == Level::l5);
  line.bytes_per_second = 1e6;
  CHECK(level_for_leave(line, 4s) == Level::l3);
  line.bytes_per_second = 1;
  CHECK(level_for_leave(line, 4s) == Level::l0);
}

}  // namespace
}  // namespace starling::gossip

TEST_SUITE_END();
