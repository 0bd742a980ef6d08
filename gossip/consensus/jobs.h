// Jobs: what the consensus asks to be done with model-sized data, and what came of it.
//
// The state machines never walk a model. They return jobs; the shell runs them on the pool with
// run_job() (contribution.h), *one after the other in the order in which they were returned*, and
// hands each outcome back to on_job_done(). Outcomes of an epoch that is over are ignored there.
#pragma once

#include "gossip/consensus/messages.h"
#include "node/base/bytes.h"
#include "node/base/ids.h"
#include "node/base/result.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace starling::gossip::consensus {

// Values with one exponent, and blocks that make one chunk (design section 8).
inline constexpr std::size_t kBlockValues = 4096;
inline constexpr std::size_t kChunkBlocks = 64;

// How much there is to agree on.
struct ModelShape {
  std::uint64_t parameters = 0;               // values of the padded flat vector, Layout::size()
  std::uint32_t channels = 0;                 // BatchNorm channels
  std::uint32_t counters = 0;                 // num_batches_tracked, one a BatchNorm layer
  std::uint32_t chunk_blocks = kChunkBlocks;  // tests cut small models into many chunks
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

enum class ChunkKind : std::uint8_t {
  parameters,  // 64 blocks of 4,096 values; the last one may be shorter
  mean,        // all BatchNorm means, one exponent a channel
  variance,    // all second moments about the common mean; needs the result of `mean`
  counters,    // all num_batches_tracked, summed as integers, no exponents
};

// Which part of the model a chunk is: parameters first, then mean, variance, counters.
class ChunkPlan {
 public:
  explicit ChunkPlan(ModelShape shape) : shape_(shape) {}

  [[nodiscard]] const ModelShape& shape() const { return shape_; }
  [[nodiscard]] std::uint32_t count() const;
  [[nodiscard]] ChunkKind kind(std::uint32_t chunk) const;
  // Index of the first value within the chunk's array (0 for all but parameters), and how many.
  [[nodiscard]] std::size_t first(std::uint32_t chunk) const;
  [[nodiscard]] std::size_t values(std::uint32_t chunk) const;
  // The chunk that holds this parameter.
  [[nodiscard]] std::uint32_t chunk_of(std::uint64_t parameter) const {
    return static_cast<std::uint32_t>(parameter / chunk_values());
  }
  // Values that share one exponent, and how many exponents there are.
  [[nodiscard]] std::size_t block_values(std::uint32_t chunk) const;
  [[nodiscard]] std::size_t exponents(std::uint32_t chunk) const;
  // Bytes of a result of this chunk.
  [[nodiscard]] std::size_t result_bytes(std::uint32_t chunk) const;
  // The same as it travels: parameters have an exponent a block and packed integers.
  [[nodiscard]] std::size_t packed_result_bytes(std::uint32_t chunk) const;
  [[nodiscard]] std::uint64_t total_result_bytes() const;

 private:
  [[nodiscard]] std::size_t chunk_values() const { return kBlockValues * shape_.chunk_blocks; }
  [[nodiscard]] std::uint32_t parameter_chunks() const;
  ModelShape shape_;
};

// How the result of a chunk travels. A mean of parameters is integers of 25 bits behind one
// exponent a block, from which the receiver makes the fp32 values that the hash is of; a median has
// no such integers, and certified chunks go to nodes that were in no epoch.
enum class ResultForm : std::uint8_t { plain, packed };

// Fraction bits of the fixed-point values of such a chunk; of no meaning for counters.
[[nodiscard]] int fraction_bits(ChunkKind kind);
// Bits of one value of a packed sum whose weights add up to `weight` (64 for counters).
[[nodiscard]] unsigned sum_bits(ChunkKind kind, std::uint64_t weight);

// What every job says: what it belongs to.
struct JobTarget {
  RoundId round;
  std::uint32_t chunk = 0;
};

// A sum that a child sent: bytes, and the weight and number of the members in it, which bound it.
struct ChildSum {
  NodeId child;
  SharedBytes packed;
  std::uint64_t weight = 0;
  std::uint32_t members = 0;
};

// Largest exponent of each block of the own contribution. Errc::diverged where it is not finite,
// replicas_differ where only its distance from the common mean is not.
struct ExponentsJob {
  JobTarget target;
};
// Own fixed-point values x weight + the children's sums, packed.
struct SumJob {
  JobTarget target;
  SharedBytes exponents;
  std::uint32_t own_weight = 1;
  std::vector<ChildSum> children;

  // Of all members in the sum: at the root of all participants.
  [[nodiscard]] std::uint64_t weight() const;
};
// The same at the root, then divided and written to the result.
struct DivideJob {
  SumJob sum;
};
// The own values as they are, fp32 (median and trimmed mean).
struct PackJob {
  JobTarget target;
};
// Coordinate-wise median, or trimmed mean, of the own values and all others', written to the
// result.
struct MedianJob {
  JobTarget target;
  Rule rule = Rule::median;
  std::vector<ChildSum> others;
};
// Writes a chunk to the result and checks its hash and its values there.
struct StoreJob {
  JobTarget target;
  NodeId from;
  Hash hash;
  SharedBytes bytes;
  ResultForm form = ResultForm::plain;
};
// Reads a chunk of the result again, for a neighbour or follower.
struct LoadJob {
  JobTarget target;
  NodeId to;
  Hash hash;  // what the values must still hash to
  ResultForm form = ResultForm::plain;
};
// Compares the whole result with the own contribution, tensor by tensor and BatchNorm channel by
// channel (rulings 37).
struct CheckJob {
  JobTarget target;
  // Of the own weight in all weights, where the result is a mean: it bounds from below what honest
  // variances come to. 0 for the other rules.
  double own_share = 0;
};

using ConsensusJob =
    std::variant<ExponentsJob, SumJob, DivideJob, PackJob, MedianJob, StoreJob, LoadJob, CheckJob>;

// What a job works for.
[[nodiscard]] inline const JobTarget& target_of(const ConsensusJob& job) {
  return std::visit(
      [](const auto& one) -> const JobTarget& {
        if constexpr (requires { one.target; }) {
          return one.target;
        } else {
          return one.sum.target;
        }
      },
      job);
}

struct ExponentsFound {
  SharedBytes values;
};
struct SumPacked {
  SharedBytes values;
};
// After DivideJob (packed, where the chunk is of parameters) and MedianJob (plain).
struct ChunkDivided {
  SharedBytes values;
  Hash hash;
};
struct ChunkStored {
  Hash hash;
  SharedBytes values;
};
struct ChunkLoaded {
  NodeId to;
  Hash hash;
  SharedBytes values;
};
// `worst` is the largest ratio of a tensor's |x* - y|, or of a channel's statistics, to its limit;
// above 1 the result is refused, naming the root of the chunk in which the tensor differs most.
struct ReplicaChecked {
  double worst = 0;
  std::size_t tensor = 0;  // the channel, where the chunk is of statistics
  std::uint32_t chunk = 0;
};

using JobDone =
    std::variant<ExponentsFound, SumPacked, ChunkDivided, ChunkStored, ChunkLoaded, ReplicaChecked>;

// Which job an outcome is of: the alternatives of ConsensusJob, in order.
enum class JobKind : std::uint8_t { exponents, sum, divide, pack, median, store, load, check };
[[nodiscard]] inline JobKind kind_of(const ConsensusJob& job) {
  return static_cast<JobKind>(job.index());
}
// Whether a job of this kind writes its chunk of the result, which is undefined if the job fails.
[[nodiscard]] inline bool writes_result(JobKind kind) {
  return kind == JobKind::divide || kind == JobKind::median || kind == JobKind::store;
}

struct JobOutcome {
  JobTarget target;
  JobKind kind = JobKind::exponents;
  Result<JobDone> result;
  std::optional<NodeId> culprit;  // the peer whose bytes were the cause of an error
};

}  // namespace starling::gossip::consensus
