// Codec jobs: what a state machine asks to be done with the master and a reference, and what came
// of it.
//
// The state machines of an exchange never touch a model-sized vector. They return jobs; the shell
// runs them on the codec lane of the pool, one after the other in the order in which they were
// returned, through Replica::run(), and hands each outcome back.
#pragma once

#include "gossip/delta/level.h"
#include "node/base/bytes.h"
#include "node/base/clock.h"
#include "node/base/ids.h"
#include "node/base/result.h"

#include <array>
#include <cstdint>
#include <optional>
#include <variant>

namespace starling::gossip {

// The weight of an exchange in units of 1/128, 1 to 64 (rulings 6).
struct Weight {
  std::uint8_t of_128 = 64;
  [[nodiscard]] float value() const { return static_cast<float>(of_128) / 128.0F; }
  friend auto operator<=>(const Weight&, const Weight&) = default;
};

// Which end of the edge this node is; fixes the order of the two additions to the reference.
enum class Side : std::uint8_t { lower, higher };

// Whether a payload carries BatchNorm statistics behind the delta (every 16th exchange).
enum class Statistics : std::uint8_t { without, with };

// One block of the reference, by which two ends notice that theirs differ.
struct Spot {
  std::uint32_t block = 0;
  Hash hash;
};

// A payload is the bytes of one delta at `level`, followed by mean and variance (fp32, one pair of
// arrays over all channels) when it carries statistics.
struct Payload {
  Level level = Level::l2;
  Statistics statistics = Statistics::without;
  SharedBytes bytes;
};

// q_own = C(x - r), nothing is changed.
struct OfferJob {
  EdgeEnds edge;
  Level level = Level::l2;
  Statistics statistics = Statistics::without;
  std::uint32_t spot_block = 0;
};

// What both kinds of applying need.
struct ExchangeTerms {
  EdgeEnds edge;
  Side own_side = Side::lower;
  Weight weight;
  // The increment is clipped to this norm before weighting, under Aggregator::clip below it the
  // larger it is; 0: not clipped.
  float max_norm = 0;
  Hash chain;  // hash chain over all payloads before this exchange
};

// Encodes an own payload, applies the exchange with theirs: x += clip(w (q_their - q_own)), r +=
// (q_own + q_their) / 2. Their spot is compared first: where it differs nothing changes and the
// outcome is Errc::corrupt.
struct AnswerJob {
  ExchangeTerms terms;
  Level own_level = Level::l2;
  Payload theirs;
  std::optional<Spot> their_spot;
};

// Applies an exchange whose own payload was sent before (an answer came, or an offer that crossed
// ours).
struct ApplyJob {
  ExchangeTerms terms;
  Payload own;
  Payload theirs;
  std::optional<Spot> their_spot;
};

// r := genesis.
struct GenesisJob {
  EdgeEnds edge;
};
// Encodes x at L6 against zero, sets r to the decoded value, returns the bytes.
struct SnapshotJob {
  EdgeEnds edge;
};
// r := decoded bytes of a SnapshotJob elsewhere, valid only if its hash is the expected one.
struct InstallJob {
  EdgeEnds edge;
  SharedBytes bytes;
  Hash expected;
};
// Forgets r.
struct DropJob {
  EdgeEnds edge;
};

using CodecJob =
    std::variant<OfferJob, AnswerJob, ApplyJob, GenesisJob, SnapshotJob, InstallJob, DropJob>;

// The edge whose reference a job works on.
[[nodiscard]] inline const EdgeEnds& edge_of(const CodecJob& job) {
  return std::visit(
      [](const auto& one) -> const EdgeEnds& {
        if constexpr (requires { one.terms; })
          return one.terms.edge;
        else
          return one.edge;
      },
      job);
}

// What an encode measured, for the level controller (algorithm 6.3).
struct EncodeFigures {
  double difference_energy = 0;  // |x - r|^2
  double sent_energy = 0;        // |q|^2
  std::array<float, 7>
      unsent_share{};  // 1 - |q|^2 / |d|^2 of each level, estimated on 1/64 of the blocks
};

struct OfferDone {
  Payload payload;
  Spot spot;
  EncodeFigures figures;
};
struct ExchangeDone {
  Payload answer;         // empty bytes after an ApplyJob
  Hash chain;             // the edge's next: see next_chain() in replica.h
  float norm = 0;         // |q_their - q_own| before clipping
  float scale = 1;        // factor by which the increment was clipped, 1 if it was not
  EncodeFigures figures;  // zero after an ApplyJob
  // BatchNorm channels of theirs that were out of reason and counted in part.
  std::size_t channels_clipped = 0;
};
struct ReferenceSet {
  Hash reference;     // hash of r: the start of the hash chain
  SharedBytes bytes;  // of a SnapshotJob, else null
};
struct ReferenceDropped {};

using CodecDone = std::variant<OfferDone, ExchangeDone, ReferenceSet, ReferenceDropped>;

struct CodecOutcome {
  EdgeEnds edge;
  Result<CodecDone> result;
  // By how much the job held training up: its processor time over the trainer's threads, as often
  // as the trainer waits for its cores; 0: not measured, or on processors that training does not
  // use.
  Duration cost{};
};

}  // namespace starling::gossip
