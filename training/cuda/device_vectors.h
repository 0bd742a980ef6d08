// DeviceVectors: master and references in a GPU's memory, for gossip::Replica.
#pragma once

#include "gossip/delta/vectors.h"
#include "training/cuda/device_codec.h"

#include <functional>
#include <memory>

namespace starling::training::cuda {

// What one holder of the lease sees on the device. Valid until the callback returns, by which time
// its work on the master must be done.
struct MasterPlaces {
  float* parameters;
  float* bn_mean;
  float* bn_variance;
  cudaEvent_t written;  // work on the master must wait for it
};

// How codec jobs reach a master on a device; the twin of gossip::MasterPort.
class DeviceMasterPort {
 public:
  virtual ~DeviceMasterPort() = default;
  // Thread:  any; the device is current in the callback. Blocks while another holds the lease.
  virtual void with_device_master(const std::function<void(const MasterPlaces&)>& job) = 0;
  [[nodiscard]] virtual int device_index() const = 0;
  // Gives the device back what lies idle with whoever has the master.
  // Thread:  any; waits for what runs on the device.
  virtual void give_back_idle() = 0;
};

// See gossip::ReplicaVectors. Hashes are worked out on the host: a hash is a chain, which one
// thread of a GPU walks twenty times slower than a copy and a core take together.
// Cost:    DeviceCodec and a vector of the model's size on the device for each reference; one on
//          the host while a reference is filled, hashed or read as a whole.
class DeviceVectors final : public gossip::ReplicaVectors {
 public:
  // Both must outlive it. Errors: no_memory, device_failed.
  [[nodiscard]] static Result<std::unique_ptr<gossip::ReplicaVectors>> make(
      const gossip::Layout& layout, DeviceMasterPort& master);
  ~DeviceVectors() override;
  DeviceVectors(const DeviceVectors&) = delete;
  DeviceVectors& operator=(const DeviceVectors&) = delete;

  [[nodiscard]] Result<std::unique_ptr<gossip::Reference>> make_reference() override;
  [[nodiscard]] Result<void> with_master(
      const std::function<Result<void>(gossip::LentMaster&)>& job) override;

 private:
  DeviceVectors(const gossip::Layout& layout, DeviceMasterPort& master, DeviceCodec codec)
      : layout_(layout),
        master_(master),
        device_(master.device_index()),
        codec_(std::move(codec)) {}

  const gossip::Layout& layout_;
  DeviceMasterPort& master_;
  int device_;
  DeviceCodec codec_;
};

}  // namespace starling::training::cuda
