// The passes of the codec over all blocks of a model, one crew a block: encode into slots, gather
// what lies in them, apply an exchange, install a reference.
//
// Launched by launch_codec.h; what one crew does with one block is in block_coder.h and
// block_decoder.h. Pointers are device memory on a GPU.
#pragma once

#include "training/cuda/block_coder.h"
#include "training/cuda/block_decoder.h"
#include "training/cuda/block_shape.h"
#include "training/cuda/threshold_coder.h"

#include <cstddef>
#include <cstdint>

namespace starling::training::cuda {

inline constexpr std::uint32_t kLevels = 7;
inline constexpr std::uint32_t kInfinity = 0x7f80'0000U;
// The longest block of all levels: scales and codes of L6.
inline constexpr std::uint32_t kMostBlockBytes =
    static_cast<std::uint32_t>(2 * gossip::kBlock / gossip::kGroup + gossip::kBlock);
static_assert(kMostBlockBytes % 4 == 0, "slots are written and read in words");

// What an encode found in one block.
struct BlockFigures {
  double energy;  // |x - r|^2
  double sent;    // |q|^2
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
  std::uint32_t* sizes;   // of what lies in each slot; 0: the difference is not finite
  BlockFigures* figures;  // one a block
  SampledBlocks sampled;
  double* sampled_sent;   // kLevels for each sampled block
  float* drifts;          // one a sampled block; of sparse levels
  float* drift;           // of all blocks; of sparse levels
  std::uint32_t* looked;  // how many of the sampled blocks' crews are done; 0 before and after
};

STARLING_DEVICE inline BlockValues values_of(const EncodeArgs& args, std::uint32_t block) {
  const std::size_t first = std::size_t{block} * gossip::kBlock;
  return {args.x + first, args.r == nullptr ? nullptr : args.r + first};
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
    const DifferenceFacts facts = coder.load(values_of(args, block));
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
  crew.count_each(
      samples,
      [&](std::uint32_t i, std::uint32_t j) {
        return drifts[j] > 0 && (drifts[j] < drifts[i] || (drifts[j] == drifts[i] && j < i));
      },
      [&](std::uint32_t i, std::uint32_t below) {
        if (drifts[i] > 0 && below == (known - 1) / 2) *args.drift = drifts[i];
      });
  const float median = *args.drift;
  const auto shares = crew.template sum<std::uint64_t>(samples, [&](std::uint32_t i) {
    return drifts[i] > 0 ? gossip::count_share(drifts[i], median) : 0;
  });
  crew.once([&] { *args.drift = gossip::common_drift(median, shares, known); });
}

// The carried threshold of a block, moved by the common drift; 0: it has none.
STARLING_DEVICE inline float threshold_of(const EncodeArgs& args, std::uint32_t block) {
  if (!gossip::is_sparse(args.level) || block >= args.shapes.first_small) return 0;
  const float carried = args.thresholds[block];
  return carried > 0 ? carried * *args.drift : carried;
}

// How many trials there are: each sampled block at each level.
STARLING_BOTH inline std::uint32_t trials(const SampledBlocks& sampled) {
  return sampled.count() * kLevels;
}
// What a crew does with one block: encode it for the delta, or try what a level would send of it.
// Trials have crews of their own, because all levels of a block take as long as seven blocks.
struct BlockJob {
  std::uint32_t block;
  gossip::Level level;
  bool is_trial;
  std::uint32_t number;  // of a trial, among all
};
STARLING_DEVICE inline BlockJob job_of_block(const EncodeArgs& args, std::uint32_t block) {
  return {block, args.level, false, 0};
}
STARLING_DEVICE inline BlockJob job_of_trial(const EncodeArgs& args, std::uint32_t trial) {
  return {args.sampled.phase + trial / kLevels * args.sampled.stride,
          static_cast<gossip::Level>(trial % kLevels), true, trial};
}

// What became of one block; `threshold` is carried on by sparse levels.
struct CodedBlock {
  CoderBytes bytes;
  double energy;  // |x - r|^2
  float threshold;
};
template <class Crew>
STARLING_DEVICE void note_block(Crew& crew, const EncodeArgs& args, std::uint32_t block,
                                const CodedBlock& coded) {
  crew.once([&] {
    args.sizes[block] = coded.bytes.size;
    args.figures[block] = {coded.energy, coded.bytes.sent_energy, 1};
    if (gossip::is_sparse(args.level) && block < args.shapes.first_small)
      args.next_thresholds[block] = coded.threshold;
  });
}

// What became of a block whose difference is not finite.
template <class Crew>
STARLING_DEVICE void note_bad_block(Crew& crew, const EncodeArgs& args, std::uint32_t block,
                                    double energy) {
  const float* const x = values_of(args, block).x;
  const std::uint32_t bad = crew.largest(
      args.shapes.at(block).width, [&](std::uint32_t i) { return is_finite(x[i]) ? 0U : 1U; });
  crew.once([&] {
    args.sizes[block] = 0;
    args.figures[block] = {energy, 0, 1 - bad};
  });
}

// Does a job of any kind; a trial of a block that is not finite sends nothing. One function, so
// that a kernel holds the code of BlockCoder once.
template <class Crew>
STARLING_DEVICE void do_job(Crew& crew, CoderMemory& memory, const EncodeArgs& args,
                            const BlockJob& job) {
  BlockCoder<Crew> coder(crew, memory, args.shapes.at(job.block));
  const DifferenceFacts facts = coder.load(values_of(args, job.block));
  CoderBytes done;
  float threshold = job.is_trial ? 0.0F : threshold_of(args, job.block);
  if (facts.largest < kInfinity)
    done = coder.encode(
        job.level, threshold,
        job.is_trial ? nullptr : args.slots + std::size_t{job.block} * args.slot_bytes);
  if (job.is_trial) {
    crew.once([&] { args.sampled_sent[job.number] = done.sent_energy; });
  } else if (facts.largest < kInfinity) {
    note_block(crew, args, job.block, {done, facts.energy, threshold});
  } else {
    note_bad_block(crew, args, job.block, facts.energy);
  }
}

// Encodes one block of a sparse level by its carried threshold; says whether that selects a valid
// number of values. If not, do_job() does the block.
template <class Crew>
STARLING_DEVICE bool encode_by_threshold(Crew& crew, ThresholdMemory& memory,
                                         const EncodeArgs& args, std::uint32_t block) {
  const float threshold = threshold_of(args, block);
  if (!(threshold > 0)) return false;
  const BlockShape shape = args.shapes.at(block);
  ThresholdCoder<Crew> coder(crew, memory, shape, values_of(args, block));
  const ThresholdFacts facts = coder.look(threshold);
  const std::uint32_t nominal = gossip::nominal_count(args.level);
  if (facts.difference.largest == 0 || facts.difference.largest >= kInfinity ||
      facts.selected < shape.at_most_all(nominal / 2) ||
      facts.selected > shape.at_most_all(2 * nominal))
    return false;
  const CoderBytes done =
      coder.write(args.level, facts, args.slots + std::size_t{block} * args.slot_bytes);
  note_block(
      crew, args, block,
      {done, facts.difference.energy, gossip::next_threshold(threshold, facts.selected, nominal)});
  return true;
}

// What crew number i of all does: one of the trials, or one of the other tasks. Trials take longest
// and wait for memory least, so they are spread over the first half.
struct CrewTask {
  bool is_trial;
  std::uint32_t number;
};
STARLING_BOTH inline CrewTask task_of(std::uint32_t i, std::uint32_t trials, std::uint32_t others) {
  const std::uint32_t all = trials + others;
  const std::uint32_t wide = trials == 0 ? 1 : all / trials / 2;
  const std::uint32_t every = 2 * trials > all ? 1 : wide < 2 ? 2 : wide;
  if (i % every == 0 && i / every < trials) return {true, i / every};
  const std::uint32_t before = i / every + 1;
  return {false, i - (before < trials ? before : trials)};
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

// The sum of value(i) for i in [0, n): each thread has four of them on their way.
template <class T, class Crew, class Value>
STARLING_DEVICE T sum_of_many(Crew& crew, std::uint32_t n, Value value) {
  return crew.template sum<T>((n + 3) / 4, [&](std::uint32_t four) {
    T all{};
    STARLING_UNROLL
    for (std::uint32_t i = 0; i < 4; ++i)
      if (4 * four + i < n) all += value(4 * four + i);
    return all;
  });
}

// The figures of all blocks: kFigureParts crews, each with its part.
inline constexpr std::uint32_t kFigureParts = 4 + kLevels;
template <class Crew>
STARLING_DEVICE void add_figures(Crew& crew, const EncodeArgs& args, std::uint32_t part,
                                 DeltaFigures* out) {
  const std::uint32_t blocks = args.shapes.blocks;
  const BlockFigures* const figures = args.figures;
  const SampledBlocks& sampled = args.sampled;
  if (part == 0) {
    const auto bytes =
        sum_of_many<std::uint32_t>(crew, blocks, [&](std::uint32_t b) { return args.sizes[b]; });
    const std::uint32_t bad_from_end =
        crew.largest(blocks, [&](std::uint32_t b) { return args.sizes[b] == 0 ? blocks - b : 0; });
    crew.once([&] {
      out->bytes = bytes;
      out->first_bad = blocks - bad_from_end;
      out->x_is_finite = bad_from_end == 0 ? 1 : figures[blocks - bad_from_end].x_is_finite;
    });
  } else if (part == 1) {
    const auto energy =
        sum_of_many<double>(crew, blocks, [&](std::uint32_t b) { return figures[b].energy; });
    crew.once([&] { out->energy = energy; });
  } else if (part == 2) {
    const auto sent =
        sum_of_many<double>(crew, blocks, [&](std::uint32_t b) { return figures[b].sent; });
    crew.once([&] { out->sent = sent; });
  } else if (part == 3) {
    const auto energy = crew.template sum<double>(sampled.count(), [&](std::uint32_t s) {
      return figures[sampled.phase + s * sampled.stride].energy;
    });
    crew.once([&] { out->sampled_energy = energy; });
  } else {
    const std::uint32_t level = part - 4;
    const auto sent = crew.template sum<double>(
        sampled.count(), [&](std::uint32_t s) { return args.sampled_sent[s * kLevels + level]; });
    crew.once([&] { out->sampled_sent[level] = sent; });
  }
}

// Blocks whose places in the delta one crew works out.
inline constexpr std::uint32_t kStretch = 32;
struct StretchPlaces {
  std::uint32_t offsets[kStretch];
};

// Where the bytes of a stretch of blocks belong. Every crew adds up the sizes of all blocks before
// its own: they lie in the cache, and a pass that does so for all would be another launch.
template <class Crew>
STARLING_DEVICE void place_stretch(Crew& crew, StretchPlaces& places, const EncodeArgs& args,
                                   std::uint32_t stretch) {
  const std::uint32_t first = stretch * kStretch;
  const std::uint32_t left = args.shapes.blocks - first;
  const auto begin =
      sum_of_many<std::uint32_t>(crew, first, [&](std::uint32_t b) { return args.sizes[b]; });
  crew.running_sum(
      left < kStretch ? left : kStretch, [&](std::uint32_t i) { return args.sizes[first + i]; },
      [&](std::uint32_t i, std::uint32_t before, std::uint32_t) {
        places.offsets[i] = begin + before;
      });
}

// Copies one block's bytes to their place: whole words of it, and what is before and behind them.
template <class Crew>
STARLING_DEVICE void gather_block(Crew& crew, const StretchPlaces& places, const EncodeArgs& args,
                                  std::uint32_t block, std::uint8_t* delta) {
  const std::uint8_t* const from = args.slots + std::size_t{block} * args.slot_bytes;
  std::uint8_t* const to = delta + places.offsets[block % kStretch];
  const std::uint32_t size = args.sizes[block];
  const auto to_word = static_cast<std::uint32_t>(-reinterpret_cast<std::uintptr_t>(to) % 4);
  const std::uint32_t before = to_word < size ? to_word : size;
  const std::uint32_t words = (size - before) / 4;
  const auto* const from_words = reinterpret_cast<const std::uint32_t*>(from);
  auto* const to_words = reinterpret_cast<std::uint32_t*>(to + before);
  crew.each(words + (size - 4 * words), [&](std::uint32_t i) {
    if (i < words) {
      const std::uint32_t low = from_words[i];
      to_words[i] =
          before == 0 ? low : low >> (8 * before) | from_words[i + 1] << (32 - 8 * before);
    } else {
      const std::uint32_t at = i - words < before ? i - words : i - words + 4 * words;
      to[at] = from[at];
    }
  });
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
      sum_of_many<double>(crew, blocks, [&](std::uint32_t b) { return distances[b]; });
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
