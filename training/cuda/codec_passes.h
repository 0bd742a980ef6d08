// The passes of the codec over all blocks of a model, one crew a block: encode into slots, close up
// the slots, apply an exchange, install a reference.
//
// Launched by launch_codec.h; what one crew does with one block is in block_coder.h and
// block_decoder.h. Pointers are device memory on a GPU.
#pragma once

#include "training/cuda/block_coder.h"
#include "training/cuda/block_decoder.h"
#include "training/cuda/block_shape.h"

#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

inline constexpr std::uint32_t kLevels = 7;
inline constexpr std::uint32_t kInfinity = 0x7f80'0000U;
// The longest block of all levels: scales and codes of L6.
inline constexpr std::uint32_t kMostBlockBytes =
    static_cast<std::uint32_t>(2 * gossip::kBlock / gossip::kGroup + gossip::kBlock);

// What an encode found in one block.
struct BlockFigures {
  double energy;         // |x - r|^2
  double sent;           // |q|^2
  std::uint32_t bytes;   // 0: the difference is not finite
  std::uint32_t offset;  // of its bytes in the delta; set by close_up()
  std::uint32_t x_is_finite;
};

// Which blocks are encoded at every level, to estimate what each would leave unsent: those below
// `end` whose number is `phase` modulo `stride`.
struct SampledBlocks {
  std::uint32_t end;
  std::uint32_t stride;
  std::uint32_t phase;

  STARLING_BOTH std::uint32_t count() const {
    return phase < end ? (end - phase + stride - 1) / stride : 0;
  }
};

struct EncodeArgs {
  const float* x;
  const float* r;  // null: zero
  BlockShapes shapes;
  gossip::Level level;
  const float* thresholds;  // carried, one a block of the big part; read by sparse levels
  float* next_thresholds;   // what they become if the delta is used; written by sparse levels
  std::uint8_t* slots;      // slot_bytes for each block
  std::uint32_t slot_bytes;
  BlockFigures* figures;  // one a block
  SampledBlocks sampled;
  double* sampled_sent;         // kLevels for each sampled block
  float* drifts;                // one a sampled block; of sparse levels
  float* drift;                 // of all blocks; of sparse levels
  std::uint8_t* sampled_bytes;  // kMostBlockBytes for each sampled block and level
};

// Takes the difference of one block.
template <class Crew>
STARLING_DEVICE CoderFacts load_block(BlockCoder<Crew>& coder, const EncodeArgs& args,
                                      std::uint32_t block) {
  const std::size_t first = std::size_t{block} * gossip::kBlock;
  return coder.load(args.x + first, args.r == nullptr ? nullptr : args.r + first);
}

// By how much the threshold of a sampled block has drifted; 0: unknown. For sparse levels.
template <class Crew>
STARLING_DEVICE void look_at_drift(Crew& crew, CoderMemory& memory, const EncodeArgs& args,
                                   std::uint32_t sample) {
  const std::uint32_t block = args.sampled.phase + sample * args.sampled.stride;
  const BlockShape shape = args.shapes.at(block);
  const float carried = shape.is_small ? 0.0F : args.thresholds[block];
  float drift = 0;
  if (carried > 0) {
    BlockCoder<Crew> coder(crew, memory, shape);
    const CoderFacts facts = load_block(coder, args, block);
    if (facts.largest < kInfinity) drift = coder.exact_threshold(args.level) / carried;
  }
  crew.once([&] { args.drifts[sample] = drift; });
}

// By how much all have, or 1 where few are known: one crew.
template <class Crew>
STARLING_DEVICE void find_drift(Crew& crew, const EncodeArgs& args) {
  const float* const drifts = args.drifts;
  const std::uint32_t samples = args.sampled.count();
  const std::uint32_t known = crew.template sum<std::uint32_t>(
      samples, [&](std::uint32_t i) { return drifts[i] > 0 ? 1U : 0U; });
  if (known < gossip::kFewestDrifts) return crew.once([&] { *args.drift = 1; });
  crew.each(samples, [&](std::uint32_t i) {
    if (!(drifts[i] > 0)) return;
    std::uint32_t below = 0;
    for (std::uint32_t j = 0; j < samples; ++j)
      if (drifts[j] > 0 && (drifts[j] < drifts[i] || (drifts[j] == drifts[i] && j < i))) ++below;
    if (below == (known - 1) / 2) *args.drift = drifts[i];
  });
  const float median = *args.drift;
  const auto shares = crew.template sum<std::uint64_t>(samples, [&](std::uint32_t i) {
    return drifts[i] > 0 ? gossip::count_share(drifts[i], median) : 0;
  });
  crew.once([&] { *args.drift = gossip::common_drift(median, shares, known); });
}

// Encodes one block.
template <class Crew>
STARLING_DEVICE void encode_block(Crew& crew, CoderMemory& memory, const EncodeArgs& args,
                                  std::uint32_t block) {
  const BlockShape shape = args.shapes.at(block);
  BlockCoder<Crew> coder(crew, memory, shape);
  const CoderFacts facts = load_block(coder, args, block);
  if (facts.largest >= kInfinity) {
    const float* const x = args.x + std::size_t{block} * gossip::kBlock;
    const std::uint32_t bad =
        crew.largest(shape.width, [&](std::uint32_t i) { return is_finite(x[i]) ? 0U : 1U; });
    crew.once([&] { args.figures[block] = {facts.energy, 0, 0, 0, 1 - bad}; });
    return;
  }
  const bool carries = gossip::is_sparse(args.level) && !shape.is_small;
  float threshold = carries ? args.thresholds[block] : 0.0F;
  if (threshold > 0) threshold *= *args.drift;
  const CoderBytes done =
      coder.encode(args.level, threshold, args.slots + std::size_t{block} * args.slot_bytes);
  crew.once([&] {
    args.figures[block] = {facts.energy, done.sent_energy, done.size, 0, 1};
    if (carries) args.next_thresholds[block] = threshold;
  });
}

// How many trials there are: each sampled block at each level.
STARLING_BOTH inline std::uint32_t trials(const SampledBlocks& sampled) {
  return sampled.count() * kLevels;
}
// What one level would send of one sampled block; of a block that is not finite, nothing. Crews of
// their own, because all levels of a block take as long as seven blocks.
template <class Crew>
STARLING_DEVICE void try_level(Crew& crew, CoderMemory& memory, const EncodeArgs& args,
                               std::uint32_t trial) {
  const std::uint32_t block = args.sampled.phase + trial / kLevels * args.sampled.stride;
  BlockCoder<Crew> coder(crew, memory, args.shapes.at(block));
  const CoderFacts facts = load_block(coder, args, block);
  double sent = 0;
  if (facts.largest < kInfinity) {
    float exact = 0;
    const auto level = static_cast<gossip::Level>(trial % kLevels);
    sent = coder.encode(level, exact, args.sampled_bytes + std::size_t{trial} * kMostBlockBytes)
               .sent_energy;
  }
  crew.once([&] { args.sampled_sent[trial] = sent; });
}

// What an encode found in all blocks.
struct DeltaFigures {
  std::uint32_t bytes = 0;
  std::uint32_t first_bad = 0;  // block whose difference is not finite; the number of blocks: none
  std::uint32_t x_is_finite = 1;  // there
  double energy = 0;
  double sent = 0;
  double sampled_energy = 0;
  double sampled_sent[kLevels]{};
};

// Where each block's bytes go, and the figures of all: kCloseParts crews, each with its part.
inline constexpr std::uint32_t kCloseParts = 2 + kLevels;
template <class Crew>
STARLING_DEVICE void close_up(Crew& crew, const EncodeArgs& args, std::uint32_t part,
                              DeltaFigures* out) {
  const std::uint32_t blocks = args.shapes.blocks;
  BlockFigures* const figures = args.figures;
  const SampledBlocks& sampled = args.sampled;
  if (part == 0) {
    const std::uint32_t bytes = crew.running_sum(
        blocks, [&](std::uint32_t b) { return figures[b].bytes; },
        [&](std::uint32_t b, std::uint32_t before, std::uint32_t) { figures[b].offset = before; });
    const std::uint32_t bad_from_end = crew.largest(
        blocks, [&](std::uint32_t b) { return figures[b].bytes == 0 ? blocks - b : 0; });
    crew.once([&] {
      out->bytes = bytes;
      out->first_bad = blocks - bad_from_end;
      out->x_is_finite = bad_from_end == 0 ? 1 : figures[blocks - bad_from_end].x_is_finite;
    });
  } else if (part == 1) {
    const auto energy =
        crew.template sum<double>(blocks, [&](std::uint32_t b) { return figures[b].energy; });
    const auto sent =
        crew.template sum<double>(blocks, [&](std::uint32_t b) { return figures[b].sent; });
    const auto of_samples = crew.template sum<double>(sampled.count(), [&](std::uint32_t s) {
      return figures[sampled.phase + s * sampled.stride].energy;
    });
    crew.once([&] {
      out->energy = energy;
      out->sent = sent;
      out->sampled_energy = of_samples;
    });
  } else {
    const std::uint32_t level = part - 2;
    const auto sent = crew.template sum<double>(
        sampled.count(), [&](std::uint32_t s) { return args.sampled_sent[s * kLevels + level]; });
    crew.once([&] { out->sampled_sent[level] = sent; });
  }
}

// Copies one block's bytes to their place.
template <class Crew>
STARLING_DEVICE void gather_block(Crew& crew, const EncodeArgs& args, std::uint32_t block,
                                  std::uint8_t* delta) {
  const std::uint8_t* from = args.slots + std::size_t{block} * args.slot_bytes;
  const BlockFigures figures = args.figures[block];
  crew.each(figures.bytes, [&](std::uint32_t i) { delta[figures.offset + i] = from[i]; });
}

// A delta that parse_delta() has checked.
struct CheckedDelta {
  gossip::Level level;
  const std::uint8_t* bytes;     // kDecoderSlack bytes behind the last may be read
  const std::uint32_t* offsets;  // of each block's first byte
};

struct ExchangeArgs {
  BlockShapes shapes;
  CheckedDelta lower;
  CheckedDelta higher;
  float to_higher;  // x += to_higher (q_higher - q_lower)
  float* x;
  float* r;
  double* distances;  // |q_higher - q_lower|^2, one a block
};

template <class Crew>
STARLING_DEVICE void exchange_block(Crew& crew, ExchangeMemory& memory, const ExchangeArgs& args,
                                    std::uint32_t block) {
  const BlockShape shape = args.shapes.at(block);
  const std::size_t first = std::size_t{block} * gossip::kBlock;
  BlockDecoder<Crew> decoder(crew, memory.decoder, shape);
  const auto decode = [&](const CheckedDelta& delta, float* q) {
    decoder.decode(delta.level, delta.bytes + delta.offsets[block], q);
  };
  decode(args.lower, memory.lower);
  decode(args.higher, memory.higher);
  const double distance =
      apply_block(crew, memory, shape.width, args.to_higher, {args.x + first, args.r + first});
  crew.once([&] { args.distances[block] = distance; });
}

// The same for a block below shapes.first_small, both levels being sparse.
template <class Crew>
STARLING_DEVICE void exchange_sparse_block(Crew& crew, SparseMemory& memory,
                                           const ExchangeArgs& args, std::uint32_t block) {
  const std::size_t first = std::size_t{block} * gossip::kBlock;
  const auto list = [&](const CheckedDelta& delta, SparseList& to) {
    return list_sparse(crew, delta.level, delta.bytes + delta.offsets[block], memory.ones, to);
  };
  ListSizes sizes{};
  sizes.lower = list(args.lower, memory.lower);
  sizes.higher = list(args.higher, memory.higher);
  const double distance =
      apply_lists(crew, memory, sizes, args.to_higher, {args.x + first, args.r + first});
  crew.once([&] { args.distances[block] = distance; });
}

// The sum of the distances: one crew.
template <class Crew>
STARLING_DEVICE void sum_distances(Crew& crew, const double* distances, std::uint32_t blocks,
                                   double* out) {
  const double all =
      crew.template sum<double>(blocks, [&](std::uint32_t b) { return distances[b]; });
  crew.once([&] { *out = all; });
}

struct InstallArgs {
  BlockShapes shapes;
  CheckedDelta delta;
  float* r;
};

// r of one block := q.
template <class Crew>
STARLING_DEVICE void install_block(Crew& crew, ExchangeMemory& memory, const InstallArgs& args,
                                   std::uint32_t block) {
  const BlockShape shape = args.shapes.at(block);
  BlockDecoder<Crew> decoder(crew, memory.decoder, shape);
  decoder.decode(args.delta.level, args.delta.bytes + args.delta.offsets[block], memory.lower);
  float* r = args.r + std::size_t{block} * gossip::kBlock;
  crew.each(shape.width, [&](std::uint32_t i) { r[i] = memory.lower[i]; });
}

}  // namespace starling::training::cuda
