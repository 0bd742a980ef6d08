#include "gossip/consensus/contribution.h"

#include "gossip/consensus/arithmetic.h"
#include "gossip/consensus/packing.h"
#include "gossip/delta/aggregation.h"
#include "node/base/check.h"
#include "node/base/fault.h"
#include "node/base/tree_hash.h"
#include "node/base/wide_loops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace starling::gossip::consensus {
namespace {

// Values that are summed at a time, in memory that stays in the nearest cache. Their packed form
// ends with a whole byte, whatever its width.
constexpr std::size_t kSlice = kBlockValues;

// |x* - y|^2 and |y|^2.
struct Energies {
  double away = 0;
  double own = 0;
};
// Sums side by side: one would wait for itself.
constexpr std::size_t kSums = 16;
struct EnergySums {
  std::array<double, kSums> away{};
  std::array<double, kSums> own{};
};

// Adds those of n values, a multiple of kSums. A copy, so that compilers keep it in registers.
STARLING_WIDE void add_energies(const float* own, const float* result, std::size_t n,
                                EnergySums* sums) {
  EnergySums all = *sums;
  for (std::size_t at = 0; at < n; at += kSums)
    for (std::size_t k = 0; k < kSums; ++k) {
      const double y = static_cast<double>(own[at + k]);
      const double away = static_cast<double>(result[at + k]) - y;
      all.away[k] += away * away;
      all.own[k] += y * y;
    }
  *sums = all;
}

Energies energies_of(std::span<const float> own, std::span<const float> result) {
  const std::size_t whole = own.size() / kSums * kSums;
  EnergySums sums;
  add_energies(own.data(), result.data(), whole, &sums);
  Energies all;
  for (std::size_t k = 0; k < kSums; ++k) {
    all.away += sums.away[k];
    all.own += sums.own[k];
  }
  for (std::size_t k = whole; k < own.size(); ++k) {
    const double y = static_cast<double>(own[k]);
    const double away = static_cast<double>(result[k]) - y;
    all.away += away * away;
    all.own += y * y;
  }
  return all;
}

// Of n floats that lie anywhere.
STARLING_WIDE bool all_finite(const std::byte* values, std::size_t n) {
  constexpr std::uint32_t kExponent = 0x7f80'0000U;
  std::uint32_t infinite = 0;  // all are looked at, several at once
  for (std::size_t k = 0; k < n; ++k) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, values + k * sizeof(bits), sizeof(bits));
    infinite |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
  }
  return infinite == 0;
}

// One job at work: the chunk, its plan and the memory.
class Runner {
 public:
  Runner(const JobTarget& target, const ChunkPlan& plan, const JobMemory& memory)
      : chunk_(target.chunk), plan_(plan), memory_(memory), kind_(plan.kind(target.chunk)) {}

  Result<JobDone> run(const ExponentsJob&) {
    const auto own = own_values();
    Bytes exponents;
    exponents.reserve(plan_.exponents(chunk_));
    for (std::size_t at = 0; at < own.size(); at += block()) {
      const auto exponent = block_exponent(own.subspan(at, std::min(block(), own.size() - at)));
      if (exponent == 255 && overflows(at))
        return fail(Errc::replicas_differ, Doing::reducing,
                    "the common BatchNorm mean is too far from the own one, in channel " +
                        std::to_string(at));
      if (exponent == 255)
        return fail(
            Errc::diverged, Doing::reducing,
            "the own replica holds a value that is not finite, in chunk " + std::to_string(chunk_));
      exponents.push_back(static_cast<std::byte>(exponent));
    }
    return ExponentsFound{share(std::move(exponents))};
  }

  Result<JobDone> run(const SumJob& job) {
    const unsigned bits = sum_bits(kind_, job.weight());
    Bytes packed;
    packed.reserve(packed_bytes(plan_.values(chunk_), bits));
    const auto put = [&](std::size_t, std::span<std::int64_t> sum) {
      append_packed(sum, bits, packed);
    };
    TRY_VOID(add_up(job, put));
    return SumPacked{share(std::move(packed))};
  }

  Result<JobDone> run(const DivideJob& job) {
    const bool divided =
        kind_ != ChunkKind::counters || fault::planted("consensus.batches_averaged");
    const std::uint64_t weight = job.sum.weight();
    const auto put = [&](std::size_t first, std::span<std::int64_t> sum) {
      if (divided)
        for (auto& value : sum) value = divide_rounded(value, weight);
      write_fixed(first, sum, *job.sum.exponents);
    };
    TRY_VOID(add_up(job.sum, put));
    return divided_as(ResultForm::packed);
  }

  Result<JobDone> run(const PackJob&) {
    const auto own = std::as_bytes(own_values());
    return SumPacked{share(Bytes(own.begin(), own.end()))};
  }

  Result<JobDone> run(const MedianJob& job) {
    const auto own = own_values();
    for (const auto& other : job.others) {
      if (other.packed->size() != own.size_bytes())
        return blame(other.child, "a contribution of " + std::to_string(other.packed->size()) +
                                      " bytes where " + std::to_string(own.size_bytes()) +
                                      " belong");
      if (!well_formed(*other.packed))
        return blame(other.child, "a contribution with a value that is not finite");
    }
    const auto to = result();
    std::vector<float> row(job.others.size() + 1);
    for (std::size_t v = 0; v < own.size(); ++v) {
      const std::size_t at = v * sizeof(float);
      for (std::size_t k = 0; k < job.others.size(); ++k)
        std::memcpy(&row[k], job.others[k].packed->data() + at, sizeof(float));
      row.back() = own[v];
      const float value = job.rule == Rule::trimmed ? trimmed_mean_of(row) : middle_of(row);
      std::memcpy(to.data() + at, &value, sizeof(float));
    }
    return divided_as(ResultForm::plain);
  }

  // Into its place at once: what turns out to be wrong there, the chunk store takes for nothing.
  Result<JobDone> run(const StoreJob& job) {
    const auto to = result();
    if (is_packed(job.form)) {
      if (auto unpacked = unpack_result(*job.bytes); !unpacked)
        return blame(job.from, unpacked.error().detail);
    } else {
      if (job.bytes->size() != to.size())
        return blame(job.from, std::to_string(job.bytes->size()) + " bytes of a chunk of " +
                                   std::to_string(to.size()));
      std::ranges::copy(*job.bytes, to.begin());
    }
    if (tree_hash_of(to) != job.hash) return blame(job.from, "a chunk with another hash");
    if (!well_formed(to)) return blame(job.from, "a chunk with a value that is not finite");
    return ChunkStored{job.hash, job.bytes};
  }

  Result<JobDone> run(const LoadJob& job) {
    const auto bytes = result();
    auto copy = share(Bytes(bytes.begin(), bytes.end()));
    if (tree_hash_of(*copy) != job.hash)
      return fail(Errc::corrupt, Doing::transferring_state,
                  "chunk " + std::to_string(chunk_) + " is no longer the one that was asked for");
    if (is_packed(job.form)) copy = share(packed_result());
    return ChunkLoaded{job.to, job.hash, std::move(copy)};
  }

  Result<JobDone> run(const CheckJob& job) {
    ReplicaChecked checked;
    if (memory_.parameters.empty()) return checked;
    STARLING_CHECK_OP(memory_.parameters.size(), ==, memory_.result_parameters.size());
    for (std::size_t t = 0; t < memory_.tensors.size(); ++t) check_tensor(t, checked);
    for (std::uint32_t chunk = plan_.count(); chunk-- > 0;) {
      if (plan_.kind(chunk) == ChunkKind::parameters) break;
      if (plan_.kind(chunk) == ChunkKind::mean) check_means(chunk, checked);
      if (plan_.kind(chunk) == ChunkKind::variance) check_variances(chunk, job.own_share, checked);
    }
    return checked;
  }

  [[nodiscard]] std::optional<NodeId> culprit() const { return culprit_; }

 private:
  [[nodiscard]] std::size_t block() const { return plan_.block_values(chunk_); }

  std::unexpected<Error> blame(const NodeId& peer, std::string detail) {
    culprit_ = peer;
    return fail(Errc::bad_message, Doing::reducing, std::move(detail));
  }

  // Whether a second moment is not finite although the own statistics are: the fault of whoever
  // spoilt the common mean.
  [[nodiscard]] bool overflows(std::size_t channel) const {
    return kind_ == ChunkKind::variance && std::isfinite(memory_.mean[channel]) &&
           std::isfinite(memory_.variance[channel]);
  }

  // The own values of this chunk; for second moments about the common mean computed here.
  std::span<const float> own_values() {
    const auto count = plan_.values(chunk_);
    switch (kind_) {
      case ChunkKind::parameters:
        STARLING_CHECK_OP(memory_.parameters.size(), ==, plan_.shape().parameters);
        return memory_.parameters.subspan(plan_.first(chunk_), count);
      case ChunkKind::mean:
        STARLING_CHECK_OP(memory_.mean.size(), ==, count);
        return memory_.mean;
      case ChunkKind::variance:
        STARLING_CHECK_OP(memory_.mean.size(), ==, count);
        STARLING_CHECK_OP(memory_.variance.size(), ==, count);
        moments_.resize(count);
        for (std::size_t k = 0; k < count; ++k)
          moments_[k] = moment_about(memory_.mean[k], memory_.variance[k],
                                     fault::planted("consensus.variance_about_own_mean")
                                         ? memory_.mean[k]
                                         : memory_.result_mean[k]);
        return moments_;
      case ChunkKind::counters:
        return {};
    }
    return {};
  }

  // sum += w Y of the values from `first` on.
  void add_own(const SumJob& job, std::span<const float> own, std::size_t first,
               std::span<std::int64_t> sum) const {
    if (kind_ == ChunkKind::counters) {
      for (std::size_t k = 0; k < sum.size(); ++k)
        sum[k] += std::clamp<std::int64_t>(memory_.counters[first + k], 0, kMaxCounter);
      return;
    }
    for (std::size_t at = 0; at < sum.size(); at += block()) {
      const auto count = std::min(block(), sum.size() - at);
      add_quantized(own.subspan(first + at, count), point(*job.exponents, first + at),
                    job.own_weight, sum.subspan(at, count));
    }
  }

  // Calls put(first, sums) for one slice of the chunk after the other.
  template <class Put>
  Result<void> add_up(const SumJob& job, Put put) {
    const std::size_t values = plan_.values(chunk_);
    const auto own = own_values();
    if (kind_ == ChunkKind::counters) {
      STARLING_CHECK_OP(memory_.counters.size(), ==, values);
    } else {
      STARLING_CHECK_OP(job.exponents->size(), ==, plan_.exponents(chunk_));
    }
    for (const auto& child : job.children)
      if (child.packed->size() != packed_bytes(values, sum_bits(kind_, child.weight)))
        return blame(child.child, "a sum of a wrong size");
    std::vector<std::int64_t> room(std::min(kSlice, values));
    for (std::size_t first = 0; first < values; first += kSlice) {
      const auto sum = std::span(room).first(std::min(kSlice, values - first));
      std::ranges::fill(sum, 0);
      add_own(job, own, first, sum);
      for (const auto& child : job.children) {
        if (child.members == 1 && fault::planted("consensus.leaf_left_out")) continue;
        const unsigned bits = sum_bits(kind_, child.weight);
        const ByteView part =
            ByteView(*child.packed).subspan(first * bits / 8, packed_bytes(sum.size(), bits));
        auto added = add_packed(part, bits, range_of(child), sum);
        if (!added) return blame(child.child, added.error().detail);
      }
      put(first, sum);
    }
    return {};
  }

  // Nobody has counted fewer than no batches: the receivers of such a sum would blame its root.
  [[nodiscard]] PackedRange range_of(const ChildSum& child) const {
    if (kind_ == ChunkKind::counters)
      return {.least = 0, .most = static_cast<std::int64_t>(child.members) * kMaxCounter};
    return up_to_magnitude(static_cast<std::int64_t>(child.weight) * largest_fixed());
  }
  [[nodiscard]] std::int64_t largest_fixed() const {
    return (std::int64_t{1} << fraction_bits(kind_)) - 1;
  }
  // Of the block to which this value of the chunk belongs.
  [[nodiscard]] FixedPoint point(ByteView exponents, std::size_t value) const {
    return {static_cast<std::uint8_t>(exponents[value / block()]), fraction_bits(kind_)};
  }

  // This chunk in the result buffer, unless it is of counters.
  [[nodiscard]] std::span<float> result_values() const {
    const auto count = plan_.values(chunk_);
    switch (kind_) {
      case ChunkKind::parameters:
        STARLING_CHECK_OP(memory_.result_parameters.size(), ==, plan_.shape().parameters);
        return memory_.result_parameters.subspan(plan_.first(chunk_), count);
      case ChunkKind::mean:
        STARLING_CHECK_OP(memory_.result_mean.size(), ==, count);
        return memory_.result_mean;
      case ChunkKind::variance:
        STARLING_CHECK_OP(memory_.result_variance.size(), ==, count);
        return memory_.result_variance;
      case ChunkKind::counters:
        break;
    }
    return {};
  }
  [[nodiscard]] std::span<std::int64_t> result_counters() const {
    STARLING_CHECK_OP(memory_.result_counters.size(), ==, plan_.values(chunk_));
    return memory_.result_counters;
  }
  // Bytes of this chunk in the result buffer.
  [[nodiscard]] std::span<std::byte> result() const {
    return kind_ == ChunkKind::counters ? std::as_writable_bytes(result_counters())
                                        : std::as_writable_bytes(result_values());
  }

  // Results of the values from `first` on, into their place.
  void write_fixed(std::size_t first, std::span<const std::int64_t> fixed,
                   ByteView exponents) const {
    if (kind_ == ChunkKind::counters) {
      std::ranges::copy(fixed, result_counters().subspan(first).begin());
      return;
    }
    const auto values = result_values().subspan(first, fixed.size());
    for (std::size_t at = 0; at < fixed.size(); at += block()) {
      const auto count = std::min(block(), fixed.size() - at);
      dequantize(fixed.subspan(at, count), point(exponents, first + at), values.subspan(at, count));
    }
  }

  // Of the result that stands in its place.
  Result<JobDone> divided_as(ResultForm form) {
    const auto bytes = result();
    return ChunkDivided{share(is_packed(form) ? packed_result() : to_bytes(bytes)),
                        tree_hash_of(bytes)};
  }

  [[nodiscard]] bool is_packed(ResultForm form) const {
    return form == ResultForm::packed && kind_ == ChunkKind::parameters;
  }

  // This chunk of the result buffer as it travels. Every x* is a multiple of 2^(e - 24), and the
  // largest exponent of a block of them is no larger than e: nothing is lost.
  [[nodiscard]] Bytes packed_result() const {
    const auto values = result_values();
    const unsigned bits = sum_bits(kind_, 1);
    Bytes bytes;
    bytes.reserve(plan_.packed_result_bytes(chunk_));
    bytes.resize(plan_.exponents(chunk_));
    std::vector<std::int64_t> room(std::min(kSlice, values.size()));
    for (std::size_t first = 0; first < values.size(); first += kSlice) {
      const auto part = values.subspan(first, std::min(kSlice, values.size() - first));
      const auto fixed = std::span(room).first(part.size());
      std::ranges::fill(fixed, 0);
      bytes[first / kSlice] = static_cast<std::byte>(block_exponent(part));
      add_quantized(part, point(bytes, first), 1, fixed);
      append_packed(fixed, bits, bytes);
    }
    return bytes;
  }

  // The fp32 values of a chunk that travelled, into their place.
  [[nodiscard]] Result<void> unpack_result(ByteView bytes) const {
    if (bytes.size() != plan_.packed_result_bytes(chunk_))
      return fail(Errc::bad_message, Doing::reducing,
                  std::to_string(bytes.size()) + " bytes of a packed chunk of " +
                      std::to_string(plan_.packed_result_bytes(chunk_)));
    const std::size_t count = plan_.values(chunk_);
    const unsigned bits = sum_bits(kind_, 1);
    if (std::ranges::count(bytes.first(plan_.exponents(chunk_)), std::byte{255}) > 0)
      return fail(Errc::bad_message, Doing::reducing, "a packed chunk with an exponent of 255");
    const ByteView packed = bytes.subspan(plan_.exponents(chunk_));
    std::vector<std::int64_t> room(std::min(kSlice, count));
    for (std::size_t first = 0; first < count; first += kSlice) {
      const auto fixed = std::span(room).first(std::min(kSlice, count - first));
      std::ranges::fill(fixed, 0);
      TRY_VOID(add_packed(packed.subspan(first * bits / 8, packed_bytes(fixed.size(), bits)), bits,
                          up_to_magnitude(largest_fixed()), fixed));
      write_fixed(first, fixed, bytes);
    }
    return {};
  }

  [[nodiscard]] bool well_formed(ByteView bytes) const {
    if (kind_ == ChunkKind::counters) {
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::int64_t)) {
        std::int64_t value = 0;
        std::memcpy(&value, bytes.data() + at, sizeof(value));
        if (value < 0 || value > std::int64_t{kMaxParticipants} * kMaxCounter) return false;
      }
      return true;
    }
    return all_finite(bytes.data(), bytes.size() / sizeof(float));
  }

  void check_tensor(std::size_t index, ReplicaChecked& checked) const {
    const auto& tensor = memory_.tensors[index];
    const double measured = static_cast<double>(tensor.largest_disagreement);
    if (!std::isfinite(measured) || measured <= 0) return;
    Energies all;
    double largest_part = -1;
    std::uint32_t largest_chunk = 0;
    for (std::size_t at = tensor.first; at < tensor.first + tensor.values;) {
      const std::uint32_t chunk = plan_.chunk_of(at);
      const std::size_t end = std::min<std::size_t>(plan_.first(chunk) + plan_.values(chunk),
                                                    tensor.first + tensor.values);
      const Energies part = energies_of(memory_.parameters.subspan(at, end - at),
                                        memory_.result_parameters.subspan(at, end - at));
      at = end;
      all.away += part.away;
      all.own += part.own;
      if (part.away > largest_part) {
        largest_part = part.away;
        largest_chunk = chunk;
      }
    }
    // Even equal replicas differ from the result by the fixed point, 2^-23 of a block's largest
    // value at most, and that is 64 times the root mean square of a whole block at most: 2^-16 of
    // the norm covers it twice. What a block's other tensors do to a small one, the disagreement
    // covers, which is that of the whole model.
    const double limit = kSanityFactor * measured + std::sqrt(all.own) * 0x1.0p-16;
    const double ratio = std::sqrt(all.away) / limit;
    if (!(ratio > checked.worst)) return;
    checked = {.worst = ratio, .tensor = index, .chunk = largest_chunk};
  }

  // The square of what kStatisticsFactor is a multiple of.
  [[nodiscard]] double size_of(std::size_t channel) const {
    const auto mean = static_cast<double>(memory_.mean[channel]);
    const auto variance = static_cast<double>(memory_.variance[channel]);
    return mean * mean + std::max(variance, 0.0) + 1;
  }

  static void consider(double ratio, std::size_t channel, std::uint32_t chunk,
                       ReplicaChecked& checked) {
    if (ratio > checked.worst) checked = {.worst = ratio, .tensor = channel, .chunk = chunk};
  }

  void check_means(std::uint32_t chunk, ReplicaChecked& checked) const {
    STARLING_CHECK_OP(memory_.mean.size(), ==, memory_.result_mean.size());
    for (std::size_t k = 0; k < memory_.mean.size(); ++k) {
      const double away =
          static_cast<double>(memory_.result_mean[k]) - static_cast<double>(memory_.mean[k]);
      consider(std::abs(away) / (kStatisticsFactor * std::sqrt(size_of(k))), k, chunk, checked);
    }
  }

  void check_variances(std::uint32_t chunk, double own_share, ReplicaChecked& checked) const {
    STARLING_CHECK_OP(memory_.variance.size(), ==, memory_.result_variance.size());
    for (std::size_t k = 0; k < memory_.variance.size(); ++k) {
      const auto common = static_cast<double>(memory_.result_variance[k]);
      const auto own = static_cast<double>(memory_.variance[k]);
      // A mean of second moments, none of which is negative, is no smaller than the own part of it;
      // half of that leaves room for the fixed point.
      const double least = std::max(0.0, own_share * own / 2);
      const double ratio = common < least
                               ? std::numeric_limits<double>::infinity()
                               : common / (kStatisticsFactor * kStatisticsFactor * size_of(k));
      consider(ratio, k, chunk, checked);
    }
  }

  std::uint32_t chunk_;
  const ChunkPlan& plan_;
  const JobMemory& memory_;
  ChunkKind kind_;
  std::vector<float> moments_;
  std::optional<NodeId> culprit_;
};

}  // namespace

JobOutcome run_job(const ConsensusJob& job, const ChunkPlan& plan, const JobMemory& memory) {
  const auto& target = target_of(job);
  Runner runner(target, plan, memory);
  auto result = std::visit([&](const auto& j) { return runner.run(j); }, job);
  return {.target = target,
          .kind = kind_of(job),
          .result = std::move(result),
          .culprit = runner.culprit()};
}

}  // namespace starling::gossip::consensus
