// ReplicaVectors: where master and references lie, and the arithmetic of an exchange between them.
//
// Host memory here (host_vectors.h), a GPU's in training/cuda. Both must make the same bytes from
// the same values, and the same values from the same bytes.
#pragma once

#include "gossip/delta/codec.h"
#include "gossip/delta/exchange.h"

#include <functional>
#include <memory>
#include <span>

namespace starling::gossip {

// r of one edge. Owned by the Replica; lives on the codec lane.
class Reference {
 public:
  virtual ~Reference() = default;
  // Fills a zeroed span of Layout::size() values.
  using Fill = std::function<void(std::span<float>)>;
  [[nodiscard]] virtual Result<void> fill(const Fill& with) = 0;
  // r := q.
  [[nodiscard]] virtual Result<void> install(const DeltaView& snapshot) = 0;
  // The tree hash of all values, and the hash of one block.
  [[nodiscard]] virtual Result<Hash> hash() const = 0;
  [[nodiscard]] virtual Result<Hash> hash_of_block(std::size_t block) const = 0;
  // Shows the values in host memory, where a device copies them to.
  using Read = std::function<void(std::span<const float>)>;
  [[nodiscard]] virtual Result<void> read(const Read& with) const = 0;
  // The values where they are in host memory, else nothing: for tests.
  [[nodiscard]] virtual std::span<const float> values() const = 0;
};

// The master while this end holds its lease. A Reference handed to it was made by the same
// ReplicaVectors.
class LentMaster {
 public:
  virtual ~LentMaster() = default;
  // See encode() in codec.h. `reference` null is zero.
  [[nodiscard]] virtual Result<Encoded> encode(const Reference* reference, Level level,
                                               Carry& carry) = 0;
  // See apply_exchange() in exchange.h; returns |q_their - q_own|. Fails only where the device
  // does.
  [[nodiscard]] virtual Result<double> apply(const DeltaPair& pair, float factor,
                                             Reference& reference) = 0;
  // See encode_and_apply() in exchange.h; where it is refused, the reference is void.
  [[nodiscard]] virtual Result<Answered> answer(const TheirHalf& theirs, Reference& reference,
                                                Level level, Carry& carry) = 0;
  // Lends x in host memory, and takes over what was changed: for what is rare, because a device
  // copies the model twice. Fails only where the device does.
  [[nodiscard]] virtual Result<void> edit(const std::function<void(std::span<float>)>& change) = 0;
  // The BatchNorm statistics. What is written here is the master's when the lease ends.
  [[nodiscard]] virtual Result<ChannelStatistics> statistics() = 0;
  // x := r: for planted bugs.
  virtual void overwrite(const Reference& reference) = 0;
};

// Owned by whoever owns the Replica, and outlives it. Thread: the codec lane.
class ReplicaVectors {
 public:
  virtual ~ReplicaVectors() = default;
  // A reference of zeros. Errors: no_memory.
  [[nodiscard]] virtual Result<std::unique_ptr<Reference>> make_reference() = 0;
  // Blocks while the optimizer pass has the master.
  [[nodiscard]] virtual Result<void> with_master(
      const std::function<Result<void>(LentMaster&)>& job) = 0;
  // Who helps with what of a job needs no master; empty: nobody.
  [[nodiscard]] virtual ForEachPart parts() const { return {}; }
};

}  // namespace starling::gossip
