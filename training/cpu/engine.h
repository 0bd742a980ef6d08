// CpuEngine: host memory, and a batch in slices, one a thread.
//
// Includes torch: for this folder's .cc files and their tests only.
#pragma once

#include "gossip/delta/host_vectors.h"
#include "node/base/team.h"
#include "training/arena.h"
#include "training/batch_tensors.h"
#include "training/cpu/slices.h"
#include "training/cpu/tensor_memory.h"
#include "training/engine.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace starling::training {

// See Engine. Cost: Arena, Slices and the codec lane's threads.
class CpuEngine final : public Engine {
 public:
  // `momenta` is empty (zero) or has the size of the parameters. `model` must outlive it.
  CpuEngine(const Model& model, const ResolvedDevice& device, const Replica& replica,
            std::span<const float> momenta)
      : model_(model),
        arena_(model, device, replica, momenta),
        slices_(model, arena_, device.threads),
        codec_team_("codec", std::min(device.threads, gossip::kMostCodecThreads)) {}

  [[nodiscard]] Result<std::optional<Outcome>> compute(const Batch& batch, double label_smoothing,
                                                       const std::atomic<bool>& drop) override {
    make_room(batch);
    TRY(const BatchTensors tensors, tensors_of(batch, model_.plan.spec, at::kCPU, Doing::training));
    const auto outcome = slices_.run(tensors, label_smoothing, drop);
    if (!outcome) return std::nullopt;
    sets_ = outcome->sets;
    return Outcome{outcome->loss, outcome->finite};
  }
  [[nodiscard]] PassTimes optimizer_pass(const Rates& rates) override {
    return arena_.optimizer_pass(rates, sets_, &slices_.team());
  }
  void discard() override { arena_.discard_statistics(); }

  void adopt(const Replica& replica) override { arena_.adopt(replica); }
  [[nodiscard]] Replica snapshot() override { return arena_.snapshot(); }
  [[nodiscard]] std::vector<float> momenta() override { return arena_.momenta(); }
  [[nodiscard]] gossip::MasterPort& master() override { return arena_.lease(); }
  [[nodiscard]] Result<std::unique_ptr<gossip::ReplicaVectors>> make_vectors() override {
    // An exchange is on its way while both ends' codecs run, and a step that shares its cores with
    // a job on all of them loses less than one whose first slice waits for a job on one.
    gossip::ForEachPart together = [this](std::size_t parts, const auto& job) {
      codec_team_.share(parts, job);
    };
    return std::make_unique<gossip::HostVectors>(
        model_.layout, arena_.lease(), gossip::detected_isa(),
        codec_team_.size() > 1 ? std::move(together) : gossip::ForEachPart());
  }

 private:
  // Batches of another size come: activations of the last one would idle in the cache for good,
  // beside those of this one, and three sides of a run would take the memory of all three.
  void make_room(const Batch& batch) {
    const std::pair size(batch.size, side_of(batch, model_.plan.spec));
    if (last_size_ && *last_size_ != size) trim_tensor_memory();
    last_size_ = size;
  }

  const Model& model_;
  Arena arena_;
  Slices slices_;
  Team codec_team_;       // the codec lane's
  std::size_t sets_ = 1;  // of gradients, that the last compute() left
  std::optional<std::pair<std::size_t, std::int64_t>> last_size_;  // images, and pixels a side
};

}  // namespace starling::training
