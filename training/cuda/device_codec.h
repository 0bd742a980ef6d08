// DeviceCodec: encode, exchange and install on x and r in a GPU's memory.
#pragma once

#include "gossip/delta/codec.h"
#include "gossip/delta/exchange.h"
#include "training/cuda/device_memory.h"
#include "training/cuda/launch_codec.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starling::training::cuda {

// The codec of one model on one device. The same bytes and bits as gossip/delta gives on a CPU.
//
// Owned by the vectors of a replica (device_vectors.h) or by a benchmark; one thread at a time,
// with the device current. Everything runs on a stream of its own, of low priority; every function
// waits for its own work, so that its caller may give the lease back; one that fails may not have
// waited for all of it. Deltas go through pinned host memory.
// Cost:    device: one longest block for each block (26 MB for ResNet-50), three deltas;
//          host: three deltas, pinned.
class DeviceCodec {
 public:
  // `layout` must outlive it. Errors: no_memory, device_failed.
  [[nodiscard]] static Result<DeviceCodec> make(const gossip::Layout& layout);

  // Values on the device, Layout::size() each, and the event that they must be waited for, if any.
  struct Master {
    float* x = nullptr;
    cudaEvent_t written = nullptr;
  };

  // See gossip::encode(); r null is zero. Energies are summed in another order than on a CPU.
  [[nodiscard]] Result<gossip::Encoded> encode(const Master& master, const float* r,
                                               gossip::Level level, gossip::Carry& carry);
  // See gossip::apply_exchange().
  [[nodiscard]] Result<double> apply(const gossip::DeltaPair& pair, float factor,
                                     const Master& master, float* r);
  // r := q.
  [[nodiscard]] Result<void> install(const gossip::DeltaView& snapshot, float* r);

  // The kernels of encode() with the thresholds of the last one, without waiting or copying: for
  // measurements.
  [[nodiscard]] Result<void> launch_encode_only(const Master& master, const float* r,
                                                gossip::Level level) const;

  // Copies between host and device, in order with the rest. They wait until it is done.
  [[nodiscard]] Result<void> read(const float* device, std::span<float> host) const;
  [[nodiscard]] Result<void> write(std::span<const float> host, float* device) const;
  [[nodiscard]] Result<void> copy(const float* from, float* to, std::size_t count) const;

  [[nodiscard]] cudaStream_t stream() const { return stream_.get(); }

 private:
  explicit DeviceCodec(const gossip::Layout& layout) : layout_(&layout) {}
  [[nodiscard]] Result<void> upload_shapes();
  [[nodiscard]] Result<void> reserve();
  [[nodiscard]] EncodeArgs encode_args(const Master& master, const float* r, gossip::Level level,
                                       std::uint32_t sample) const;
  // Begins to bring these bytes of the delta to host_delta_.
  [[nodiscard]] Result<void> fetch_delta(std::size_t begin, std::size_t end);
  // The delta, of which the first `fetched` bytes are on the host.
  [[nodiscard]] Result<gossip::Encoded> take_bytes(const SampledBlocks& sampled,
                                                   std::size_t fetched);
  // Which of the two places for foreign bytes.
  enum class Place : std::uint8_t { first, second };
  [[nodiscard]] Result<CheckedDelta> upload(const gossip::DeltaView& view, Place place);
  [[nodiscard]] Result<void> wait() const;

  const gossip::Layout* layout_;
  SideStream stream_;
  BlockShapes shapes_{};
  DeviceArray<std::uint16_t> widths_;
  DeviceArray<std::uint16_t> real_counts_;
  DeviceArray<std::int32_t> mask_of_block_;
  DeviceArray<std::uint64_t> masks_;

  std::size_t most_bytes_ = 0;  // of a delta, and what a decoder reads behind it
  DeviceArray<std::uint8_t> slots_;
  DeviceArray<double> sampled_sent_;
  DeviceArray<float> drifts_;
  DeviceArray<float> drift_;
  DeviceArray<std::uint32_t> looked_;
  DeviceArray<std::uint32_t> sizes_;
  DeviceArray<BlockFigures> block_figures_;
  DeviceArray<DeltaFigures> figures_;
  DeviceArray<float> thresholds_;
  DeviceArray<float> next_thresholds_;
  DeviceArray<std::uint8_t> delta_;
  DeviceArray<double> distances_;
  DeviceArray<double> distance_;

  struct Upload {
    DeviceArray<std::uint8_t> bytes;
    DeviceArray<std::uint32_t> offsets;
    PinnedArray<std::uint8_t> host_bytes;
    PinnedArray<std::uint32_t> host_offsets;
  };
  Upload uploads_[2];
  PinnedArray<std::uint8_t> host_delta_;
  std::array<std::size_t, kLevels> expected_bytes_{};
  PinnedArray<float> host_thresholds_;
  PinnedArray<DeltaFigures> host_figures_;
  PinnedArray<double> host_distance_;
};

}  // namespace starling::training::cuda
