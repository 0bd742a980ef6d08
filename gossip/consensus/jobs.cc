#include "gossip/consensus/jobs.h"

#include "gossip/consensus/arithmetic.h"
#include "gossip/consensus/packing.h"
#include "node/base/check.h"

#include <algorithm>
#include <bit>

namespace starling::gossip::consensus {

std::uint32_t ChunkPlan::parameter_chunks() const {
  return static_cast<std::uint32_t>((shape_.parameters + chunk_values() - 1) / chunk_values());
}

std::uint32_t ChunkPlan::count() const {
  return parameter_chunks() + (shape_.channels > 0 ? 2U : 0U) + (shape_.counters > 0 ? 1U : 0U);
}

ChunkKind ChunkPlan::kind(std::uint32_t chunk) const {
  STARLING_CHECK_OP(chunk, <, count());
  std::uint32_t rest = parameter_chunks();
  if (chunk < rest) return ChunkKind::parameters;
  if (shape_.channels > 0) {
    if (chunk == rest) return ChunkKind::mean;
    if (chunk == rest + 1) return ChunkKind::variance;
  }
  return ChunkKind::counters;
}

std::size_t ChunkPlan::first(std::uint32_t chunk) const {
  return kind(chunk) == ChunkKind::parameters ? chunk * chunk_values() : 0;
}

std::size_t ChunkPlan::values(std::uint32_t chunk) const {
  switch (kind(chunk)) {
    case ChunkKind::parameters:
      return std::min<std::size_t>(chunk_values(), shape_.parameters - chunk * chunk_values());
    case ChunkKind::mean:
    case ChunkKind::variance:
      return shape_.channels;
    case ChunkKind::counters:
      return shape_.counters;
  }
  return 0;
}

std::size_t ChunkPlan::block_values(std::uint32_t chunk) const {
  return kind(chunk) == ChunkKind::parameters ? kBlockValues : 1;
}

std::size_t ChunkPlan::exponents(std::uint32_t chunk) const {
  if (kind(chunk) == ChunkKind::counters) return 0;
  return (values(chunk) + block_values(chunk) - 1) / block_values(chunk);
}

std::size_t ChunkPlan::result_bytes(std::uint32_t chunk) const {
  return values(chunk) *
         (kind(chunk) == ChunkKind::counters ? sizeof(std::int64_t) : sizeof(float));
}

std::size_t ChunkPlan::packed_result_bytes(std::uint32_t chunk) const {
  if (kind(chunk) != ChunkKind::parameters) return result_bytes(chunk);
  return exponents(chunk) + packed_bytes(values(chunk), sum_bits(ChunkKind::parameters, 1));
}

std::uint64_t ChunkPlan::total_result_bytes() const {
  return sizeof(float) * (shape_.parameters + 2ULL * shape_.channels) +
         sizeof(std::int64_t) * std::uint64_t{shape_.counters};
}

int fraction_bits(ChunkKind kind) {
  return kind == ChunkKind::parameters ? kParameterBits : kStatisticBits;
}

unsigned sum_bits(ChunkKind kind, std::uint64_t weight) {
  if (kind == ChunkKind::counters) return 64;
  // |S| < W 2^f: one sign bit, f fraction bits, and as many as W - 1 needs.
  return 1U + static_cast<unsigned>(fraction_bits(kind)) +
         static_cast<unsigned>(std::bit_width(weight - 1));
}

std::uint64_t SumJob::weight() const {
  std::uint64_t weight = own_weight;
  for (const ChildSum& child : children) weight += child.weight;
  return weight;
}

}  // namespace starling::gossip::consensus
