// HostVectors: master and references in host memory.
#pragma once

#include "gossip/delta/master.h"
#include "gossip/delta/vectors.h"

namespace starling::gossip {

// See ReplicaVectors. `layout` and `master` must outlive it. Costs nothing but the references.
class HostVectors final : public ReplicaVectors {
 public:
  HostVectors(const Layout& layout, MasterPort& master, Isa isa)
      : layout_(layout), master_(master), isa_(isa) {}

  [[nodiscard]] Result<std::unique_ptr<Reference>> make_reference() override;
  [[nodiscard]] Result<void> with_master(
      const std::function<Result<void>(LentMaster&)>& job) override;

 private:
  const Layout& layout_;
  MasterPort& master_;
  Isa isa_;
};

// Hash of one block of a reference: what a Spot carries.
[[nodiscard]] Hash hash_of_block(std::span<const float> reference, std::size_t block);

}  // namespace starling::gossip
