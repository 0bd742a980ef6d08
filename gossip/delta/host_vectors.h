// HostVectors: master and references in host memory.
#pragma once

#include "gossip/delta/master.h"
#include "gossip/delta/vectors.h"

#include <utility>

namespace starling::gossip {

// See ReplicaVectors. `layout` and `master` must outlive it, and what `parts` calls on,
// which is empty where one thread does all. Costs nothing but the references.
class HostVectors final : public ReplicaVectors {
 public:
  HostVectors(const Layout& layout, MasterPort& master, Isa isa, ForEachPart parts = {})
      : layout_(layout), master_(master), isa_(isa), parts_(std::move(parts)) {}

  [[nodiscard]] Result<std::unique_ptr<Reference>> make_reference() override;
  [[nodiscard]] Result<void> with_master(
      const std::function<Result<void>(LentMaster&)>& job) override;
  [[nodiscard]] ForEachPart parts() const override { return parts_; }

 private:
  const Layout& layout_;
  MasterPort& master_;
  Isa isa_;
  ForEachPart parts_;
};

// Hash of one block of a reference: what a Spot carries.
[[nodiscard]] Hash hash_of_block(std::span<const float> reference, std::size_t block);

}  // namespace starling::gossip
