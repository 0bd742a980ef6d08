// Which level an edge uses, and every how many steps the node offers (algorithm 6.3).
//
// Bytes are spent where they buy agreement: the cheapest level that leaves no more than three
// quarters of the energy unsent, if the line carries it, otherwise a longer period. A fast line
// alone is no reason for a higher level. The period is also long enough for the codec to leave
// training its processors (node/decisions/0021). Both functions are pure and give their reason,
// which `starling status --json` shows.
#pragma once

#include "gossip/delta/jobs.h"
#include "gossip/delta/level.h"
#include "node/base/clock.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace starling::gossip {

inline constexpr std::size_t kLevels = 7;
using PerLevel = std::array<double, kLevels>;

struct LevelOptions {
  // The period pinned for studies and tests; nothing: controlled, 1 to max_tau.
  std::optional<std::uint32_t> fixed_tau;
  // The level pinned (`--codec Lk`); nothing: controlled, L2 to L5. Leave pushes ignore it.
  std::optional<Level> fixed_level;
  // First period. At 2 a node takes part in one exchange a step on average, own or answered.
  std::uint32_t start_tau = 2;
  // Longest period. Raising it lets slower lines take part, with replicas further apart.
  std::uint32_t max_tau = 64;
  // Largest share of the energy that may stay unsent. Lowering it buys agreement with bytes.
  double unsent_max = 0.75;
  // The same in the last tenth of the budget, where the line carries it.
  double unsent_max_late = 0.5;
  double late_progress = 0.9;
  // Share of the measured goodput that exchanges may use.
  double line_share = 0.7;
  // Share of the trainer's time that codec jobs may take. Raising it buys agreement with steps.
  double codec_share = 0.06;
  // Longest period for the codec's sake: beyond it replicas lose more by parting than steps gain.
  std::uint32_t codec_max_tau = 16;
  // Exchanges over which the unsent share is averaged, and for which the wanted level must fit at
  // half the period before the period is halved.
  std::uint32_t window = 20;
  // Exchanges for which a level or period that was left is not tried again.
  std::uint32_t memory = 100;
};

// What the encodes of one edge measured, and which levels it left when. A value owned by the
// mixer's neighbour; io thread; this node's measurements only.
class LevelHistory {
 public:
  explicit LevelHistory(const LevelOptions& options) : window_(options.window) {}

  // Learns from one encode.
  void on_encode(const EncodeFigures& figures);
  // Counts one exchange on the edge.
  void on_exchange() { ++exchanges_; }
  void on_left(Level level) { left_at_[static_cast<std::size_t>(level)] = exchanges_; }

  // Average unsent share of every level; nothing before the first encode that measured something.
  [[nodiscard]] const std::optional<PerLevel>& unsent() const { return unsent_; }
  [[nodiscard]] bool left_within(Level level, std::uint32_t exchanges) const;

 private:
  std::uint32_t window_;
  std::uint32_t encodes_ = 0;
  std::optional<PerLevel> unsent_;
  std::uint64_t exchanges_ = 0;
  std::array<std::optional<std::uint64_t>, kLevels> left_at_{};
};

// What the line of an edge can carry. Without a measured goodput everything fits, and so it does
// before this node's first step: there is no time yet that a share could be taken of.
struct Line {
  std::optional<double> bytes_per_second;
  Duration step_time{};
  PerLevel message_bytes{};
};

// Whether an exchange at `level` every `tau` steps stays within the line's share.
[[nodiscard]] bool fits(const Line& line, const LevelOptions& options, Level level,
                        std::uint32_t tau);

enum class LevelReason : std::uint8_t {
  pinned,         // the options say so
  unmeasured,     // no encode has measured anything yet
  enough,         // the cheapest level that leaves little enough unsent
  late_phase,     // the same with the stricter bound of the last tenth
  line_too_slow,  // the wanted level does not fit: the dearest cheaper one that does
  nothing_fits,   // not even L2 fits at this period
  left_before,    // the wanted level was left too recently: no change
};
[[nodiscard]] std::string_view name_of(LevelReason reason);

struct LevelDecision {
  Level level = Level::l2;
  Level wanted = Level::l2;
  LevelReason reason = LevelReason::unmeasured;
  friend bool operator==(const LevelDecision&, const LevelDecision&) = default;
};

struct LevelInputs {
  Level present = Level::l2;
  std::uint32_t tau = 2;
  double progress = 0;  // share of the swarm's budget, 0 to 1
  Line line;
};

// The level of one edge for its next message.
//
// Rule:    algorithm 6.3; the memory holds back wishes, never a step down that the line demands.
// Thread:  any; pure.
[[nodiscard]] LevelDecision decide_level(const LevelInputs& inputs, const LevelHistory& history,
                                         const LevelOptions& options);

enum class PeriodReason : std::uint8_t {
  pinned,
  fits,           // nothing to change
  nothing_fits,   // most edges cannot carry L2 at this period: twice as long
  codec_time,     // codec jobs take their share of the trainer's time: twice as long, or not halved
  room_for_half,  // half of the edges carry their level at half the period, and did for a while
  waiting,        // the same, not yet for long enough
  left_before,    // half the period was left too recently
  longest,        // nothing fits and the period is at its maximum
};
[[nodiscard]] std::string_view name_of(PeriodReason reason);

struct PeriodDecision {
  std::uint32_t tau = 2;
  PeriodReason reason = PeriodReason::fits;
  friend bool operator==(const PeriodDecision&, const PeriodDecision&) = default;
};

struct PeriodInputs {
  std::uint32_t tau = 2;
  Duration job_cost{};        // of an exchange's codec job, in the trainer's time; 0: not known
  Duration step_time{};       // 0: no step yet
  bool nothing_fits = false;  // not even L2, on most edges
  std::uint32_t exchanges_with_room = 0;  // in a row, with room at tau / 2 on half of the edges
  std::optional<std::uint64_t> exchanges_since_left_half;  // since the node left tau / 2
};

// Every how many steps the node offers.
//
// Rule:    algorithm 6.3; for the codec, three jobs (an offer and its application, an answer)
//          within codec_share of tau steps, up to codec_max_tau, and within three quarters of that
//          share before a halving.
// Thread:  any; pure.
[[nodiscard]] PeriodDecision decide_period(const PeriodInputs& inputs, const LevelOptions& options);

// Typical message sizes of a model of `blocks` blocks of 4,096 parameters (design section 5).
[[nodiscard]] PerLevel typical_bytes(std::uint32_t blocks);

// The highest level up to L5 whose message `line` carries within `time`; L0 when none does.
[[nodiscard]] Level level_for_leave(const Line& line, Duration time);

}  // namespace starling::gossip
