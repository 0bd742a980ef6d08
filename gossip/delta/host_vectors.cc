#include "gossip/delta/host_vectors.h"

#include "gossip/delta/flat_vector.h"
#include "node/base/hash.h"
#include "node/base/tree_hash.h"

#include <algorithm>
#include <utility>

namespace starling::gossip {

namespace {

class HostReference final : public Reference {
 public:
  HostReference(FlatVector vector, Isa isa) : vector_(std::move(vector)), isa_(isa) {}

  Result<void> fill(const Fill& with) override {
    std::ranges::fill(vector_.values(), 0.0F);
    with(vector_.values());
    return {};
  }
  Result<void> install(const DeltaView& snapshot) override {
    for (std::size_t block = 0; block < snapshot.layout().blocks(); ++block)
      decode_block(snapshot, block, vector_.values().subspan(block * kBlock, kBlock), isa_);
    return {};
  }
  Result<Hash> hash() const override { return tree_hash_of(std::as_bytes(vector_.values())); }
  Result<Hash> hash_of_block(std::size_t block) const override {
    return gossip::hash_of_block(vector_.values(), block);
  }
  Result<void> read(const Read& with) const override {
    with(vector_.values());
    return {};
  }
  std::span<const float> values() const override { return vector_.values(); }
  [[nodiscard]] std::span<float> writable() { return vector_.values(); }

 private:
  FlatVector vector_;
  Isa isa_;
};

class HostMaster final : public LentMaster {
 public:
  HostMaster(const Layout& layout, const MasterView& view, Isa isa, const ForEachPart& parts)
      : layout_(layout), view_(view), isa_(isa), parts_(parts) {}

  Result<Encoded> encode(const Reference* reference, Level level, Carry& carry) override {
    const auto r = reference == nullptr ? std::span<const float>() : reference->values();
    return gossip::encode(layout_, {view_.parameters, r},
                          {.level = level, .isa = isa_, .parts = parts_ ? &parts_ : nullptr},
                          carry);
  }
  Result<double> apply(const DeltaPair& pair, float factor, Reference& reference) override {
    auto& own = static_cast<HostReference&>(reference);
    return apply_exchange(pair, factor, {view_.parameters, own.writable()}, isa_,
                          parts_ ? parts_ : one_after_another);
  }
  Result<Answered> answer(const TheirHalf& theirs, Reference& reference, Level level,
                          Carry& carry) override {
    auto& own = static_cast<HostReference&>(reference);
    return encode_and_apply(theirs, {view_.parameters, own.writable()},
                            {.level = level, .isa = isa_, .parts = parts_ ? &parts_ : nullptr},
                            carry);
  }
  Result<void> edit(const std::function<void(std::span<float>)>& change) override {
    change(view_.parameters);
    return {};
  }
  Result<ChannelStatistics> statistics() override {
    return ChannelStatistics{view_.bn_mean, view_.bn_variance};
  }
  void overwrite(const Reference& reference) override {
    std::ranges::copy(reference.values(), view_.parameters.begin());
  }

 private:
  const Layout& layout_;
  const MasterView& view_;
  Isa isa_;
  const ForEachPart& parts_;
};

}  // namespace

Hash hash_of_block(std::span<const float> reference, std::size_t block) {
  return hash_of(std::as_bytes(reference.subspan(block * kBlock, kBlock)));
}

Result<std::unique_ptr<Reference>> HostVectors::make_reference() {
  TRY(FlatVector vector, FlatVector::make(layout_.size()));
  return std::make_unique<HostReference>(std::move(vector), isa_);
}

Result<void> HostVectors::with_master(const std::function<Result<void>(LentMaster&)>& job) {
  Result<void> result;
  master_.with_master([&](const MasterView& view) {
    HostMaster lent(layout_, view, isa_, parts_);
    result = job(lent);
  });
  return result;
}

}  // namespace starling::gossip
