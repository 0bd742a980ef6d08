// ThresholdCoder: one crew makes the bytes of a sparse block in one look at x and r, by a carried
// threshold.
//
// Nearly every block of a delta, and what an encode should cost: as much as reading x and r. It
// keeps a bit of each value instead of the value, and reads those that are selected again, so a
// warp is enough of a crew, and a GPU has room for many. Where the threshold selects too few or too
// many values BlockCoder selects exactly.
#pragma once

#include "training/cuda/block_shape.h"
#include "training/cuda/difference.h"
#include "training/cuda/sparse_writer.h"

#include <bit>
#include <cstdint>

namespace starling::training::cuda {

// What the crew shares: some 4 KB.
struct ThresholdMemory {
  SelectedMemory selected;
  std::uint32_t reached[gossip::kBlock / 32];  // a bit for each value: |d| reaches the threshold
};

// What a look found.
struct ThresholdFacts {
  DifferenceFacts difference;
  std::uint32_t selected = 0;  // how many |d| reach the threshold
};

// Lives in a kernel, a copy in every thread: all members have the same values in all of them.
template <class Crew>
class ThresholdCoder {
 public:
  STARLING_DEVICE ThresholdCoder(Crew& crew, ThresholdMemory& memory, const BlockShape& shape,
                                 const BlockValues& values)
      : crew_(crew), m_(memory), shape_(shape), values_(values) {}

  // Lists the values whose |d| reaches the threshold, as many as can be selected; threshold > 0.
  STARLING_DEVICE ThresholdFacts look(float threshold) {
    const auto least = std::bit_cast<std::uint32_t>(threshold);
    crew_.each(kWords, [&](std::uint32_t i) { m_.reached[i] = 0; });
    ThresholdFacts facts;
    facts.difference =
        take_difference(crew_, shape_, values_, [&](std::uint32_t four, const FourValues& d) {
          std::uint32_t reached = 0;
          STARLING_UNROLL
          for (std::uint32_t k = 0; k < 4; ++k)
            reached |= magnitude_of(d.at[k]) >= least ? 1U << k : 0;
          if (reached != 0) crew_.set_bits(m_.reached[four / 8], reached << (four % 8 * 4));
        });
    facts.selected = list();
    return facts;
  }

  // Writes what look() listed, where it found no more than can be selected. `out`: SparseWriter.
  STARLING_DEVICE CoderBytes write(gossip::Level level, const ThresholdFacts& facts,
                                   std::uint8_t* out) {
    SelectedMemory& selected = m_.selected;
    // Four at once, because they come from far away.
    crew_.each((facts.selected + 3) / 4, [&](std::uint32_t four) {
      STARLING_UNROLL
      for (std::uint32_t i = 4 * four; i < 4 * four + 4; ++i)
        if (i < facts.selected) selected.values[i] = values_.difference(selected.indices[i]);
    });
    SparseWriter<Crew> writer(crew_, selected);
    return writer.write(level, facts.selected, facts.difference.largest, out);
  }

 private:
  static constexpr std::uint32_t kWords = gossip::kBlock / 32;

  // Indices of the values whose bits are set, as many as there is room for; returns how many are.
  STARLING_DEVICE std::uint32_t list() {
    return crew_.running_sum(
        kWords,
        [&](std::uint32_t i) { return static_cast<std::uint32_t>(std::popcount(m_.reached[i])); },
        [&](std::uint32_t i, std::uint32_t before, std::uint32_t) {
          for (std::uint32_t rest = m_.reached[i]; rest != 0 && before < gossip::kMaxSelected;
               rest &= rest - 1) {
            // Of the lowest bit: std::countr_zero() is 32 in whatever nvcc 13 makes for a GPU.
            const auto place = static_cast<std::uint32_t>(std::popcount(~rest & (rest - 1)));
            m_.selected.indices[before++] = static_cast<std::uint16_t>(i * 32 + place);
          }
        });
  }

  Crew& crew_;
  ThresholdMemory& m_;
  BlockShape shape_;
  BlockValues values_;
};

}  // namespace starling::training::cuda
