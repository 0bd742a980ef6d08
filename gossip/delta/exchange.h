// The arithmetic of an exchange: what two deltas do to a replica and to the reference that both
// ends share.
//
//   x += scale w (q_their - q_own)        r += 1/2 q_lower, then r += 1/2 q_higher
//
// Both ends must get the same r from the same bytes, on any processor: each line is a rounded
// multiply and a rounded add in fp32, in this order, never fused. r is never -0 (a sum of floats is
// -0 only when both terms are, and no reference starts with one), so that a value that a sparse
// delta does not touch and one to which zero is added are the same bits.
//
// Finite values of a neighbour may still add up to an infinite one (1e38 is a valid scale). x never
// becomes infinite: such a coordinate keeps its value. r may; the next encode notices and asks for
// a reset of the edge.
//
// With w = 1/2 and scale = 1: x' - r' = (x - r) - q_own, the compression error and nothing else,
// and x_own + x_their is unchanged.
#pragma once

#include "gossip/delta/codec.h"

#include <span>

namespace starling::gossip {

// A payload whose bytes have been checked. Views the bytes of the Payload, which must outlive it.
struct PayloadView {
  DeltaView delta;
  ByteView statistics;  // mean, then variance, fp32 for each channel; empty when it carries none
};

// Errors:  bad_message: the delta is malformed, the length is wrong, a mean is not finite, a
// variance
//          is not finite or negative.
[[nodiscard]] Result<PayloadView> parse_payload(const Layout& layout, const Payload& payload);

// The most bytes of a payload: what the receiver reserves before its first chunk.
[[nodiscard]] std::size_t max_payload_bytes(const Layout& layout, Level level,
                                            Statistics statistics);

// BatchNorm statistics of one node, one entry a channel.
struct ChannelStatistics {
  std::span<float> mean;
  std::span<float> variance;
};

// Appends mean and variance to a payload.
//
// Errors:  diverged if a value is not finite or a variance is negative; out is as before then.
[[nodiscard]] Result<void> append_statistics(const ChannelStatistics& own, Bytes& out);

// How far from the own statistics of a channel those of the other end count, in sizes of the
// channel, sqrt(m^2 + v + 1). The one in it is the variance at genesis: measured by sqrt(v) alone a
// dead channel would refuse everything for ever, and of a fresh channel (mean 0, variance 1) and a
// trained one (5, 0.01) the latter is 50 of them away from the former; in sizes they are 3.5 and 1
// apart. A quarter of what the final consensus bears (kStatisticsFactor there): to clip costs an
// honest neighbour a part that its next exchange brings, a refused result costs everybody an epoch.
inline constexpr double kStatisticsReach = 4;

// Whether statistics count only within that reach.
enum class StatisticsBound : std::uint8_t { reach, none };

// Pools checked statistics of the other end into the own ones, `weight` being the share of theirs.
// Returns the number of channels in which they were clipped.
//
// Rule:    m = a m1 + b m2, v = a v1 + b v2 + a b (m1 - m2)^2, a = 1 - b (rulings 18), after m2
//          was brought within 4 sizes of m1, and v2 below 16 sizes squared. A channel whose pooled
//          values would not be finite keeps its own.
std::size_t pool_statistics(ByteView theirs, Weight weight, const ChannelStatistics& own,
                            StatisticsBound bound = StatisticsBound::reach);

// The two deltas of an exchange as one end sees them.
struct DeltaPair {
  const DeltaView& own;
  const DeltaView& theirs;
  Side own_side;
};

// |q_their - q_own|.
//
// Cost:    decodes both deltas once; no model-sized memory. The same value with every Isa.
[[nodiscard]] double difference_norm(const DeltaPair& pair, Isa isa);

// No less than difference_norm(), and with most pairs less than twice as much. Where that is
// infinite, because a difference is beyond all floats, this is beyond them, too.
//
// Cost:    reads scales and counts, a few nanoseconds a block.
[[nodiscard]] double difference_norm_bound(const DeltaPair& pair);

// No less than |q|, by as much as energy_bound() is above the energy.
//
// Cost:    reads scales and counts, a few nanoseconds a block.
[[nodiscard]] double norm_bound(const DeltaView& delta);

// What apply_exchange() changes: replica and reference, Layout::size() values each.
struct ExchangeState {
  std::span<float> parameters;
  std::span<float> reference;
};

// x += factor (q_their - q_own); r += both halves, lower end first. Returns |q_their - q_own|, the
// same value however many threads take parts.
//
// Cost:    one pass over x and r, whatever the levels: what two sparse deltas touch lies in almost
//          every cache line, and a walk in order is faster than as many jumps.
double apply_exchange(const DeltaPair& pair, float factor, const ExchangeState& state, Isa isa,
                      const ForEachPart& parts = one_after_another);

// The other end's half of an exchange that is answered, and by how much both deltas count for x.
struct TheirHalf {
  const DeltaView& delta;
  Side own_side;
  float factor;
};
struct Answered {
  Encoded own;
  double norm = 0;  // |q_their - q_own|
};

// encode() of the state, then apply_exchange() of what was encoded and of theirs, block by block in
// one walk: the same bytes, values and norm, with x and r read once.
//
// Errors:  those of encode(). Blocks before the one that is refused have changed by then: x by what
//          the exchange would have added, and r, which is void.
[[nodiscard]] Result<Answered> encode_and_apply(const TheirHalf& theirs, const ExchangeState& state,
                                                EncodeOptions options, Carry& carry);

// x += factor (q_their - q_own), r is left alone. A value that would not be finite stays.
void add_difference(const DeltaPair& pair, float factor, std::span<float> parameters, Isa isa);

}  // namespace starling::gossip
