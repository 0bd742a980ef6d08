#include "training/cuda/device_vectors.h"

#include "node/base/hash.h"
#include "node/base/tree_hash.h"

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace starling::training::cuda {

namespace {

// Before memory is given back: on a thread that has not said which device it means, the runtime
// would make device 0 ready for that, which may be somebody else's, and take memory there. The
// thread keeps the device, because to go back to the one before would make that one ready.
void make_current(int device) { (void)cudaSetDevice(device); }

// Once more where there is no room: LibTorch keeps memory that nobody uses, an evaluation's say,
// and the runtime does not know that nobody does.
template <class Make>
auto made_with_room(DeviceMasterPort& master, Make make) -> decltype(make()) {
  auto made = make();
  if (made || made.error().code != Errc::no_memory) return made;
  master.give_back_idle();
  make_current(master.device_index());  // whose guard may have gone back to another
  return make();
}

class DeviceReference final : public gossip::Reference {
 public:
  DeviceReference(const gossip::Layout& layout, DeviceCodec& codec, int device,
                  DeviceArray<float> values)
      : layout_(layout), codec_(codec), device_(device), values_(std::move(values)) {}
  ~DeviceReference() override { make_current(device_); }
  DeviceReference(const DeviceReference&) = delete;
  DeviceReference& operator=(const DeviceReference&) = delete;

  Result<void> fill(const Fill& with) override {
    TRY_VOID(checked(cudaSetDevice(device_), Doing::exchanging));
    std::vector<float> host(layout_.size());
    with(host);
    return codec_.write(host, values_.get());
  }
  Result<void> install(const gossip::DeltaView& snapshot) override {
    TRY_VOID(checked(cudaSetDevice(device_), Doing::exchanging));
    return codec_.install(snapshot, values_.get());
  }
  Result<Hash> hash() const override {
    TRY(const auto host, values_from(0, layout_.size()));
    return tree_hash_of(std::as_bytes(std::span(host)));
  }
  Result<Hash> hash_of_block(std::size_t block) const override {
    TRY(const auto host, values_from(block * gossip::kBlock, gossip::kBlock));
    return hash_of(std::as_bytes(std::span(host)));
  }
  Result<void> read(const Read& with) const override {
    TRY(const auto host, values_from(0, layout_.size()));
    with(host);
    return {};
  }
  std::span<const float> values() const override { return {}; }
  [[nodiscard]] float* get() const { return values_.get(); }

 private:
  [[nodiscard]] Result<std::vector<float>> values_from(std::size_t first, std::size_t count) const {
    TRY_VOID(checked(cudaSetDevice(device_), Doing::exchanging));
    std::vector<float> host(count);
    TRY_VOID(codec_.read(values_.get() + first, host));
    return host;
  }

  const gossip::Layout& layout_;
  DeviceCodec& codec_;
  int device_;
  DeviceArray<float> values_;
};

float* place_of(const gossip::Reference& reference) {
  return static_cast<const DeviceReference&>(reference).get();
}

class DeviceMaster final : public gossip::LentMaster {
 public:
  DeviceMaster(const gossip::Layout& layout, DeviceCodec& codec, const MasterPlaces& places)
      : layout_(layout), codec_(codec), places_(places) {}

  Result<gossip::Encoded> encode(const gossip::Reference* reference, gossip::Level level,
                                 gossip::Carry& carry) override {
    return codec_.encode(master(), reference == nullptr ? nullptr : place_of(*reference), level,
                         carry);
  }
  Result<double> apply(const gossip::DeltaPair& pair, float factor,
                       gossip::Reference& reference) override {
    return codec_.apply(pair, factor, master(), place_of(reference));
  }
  Result<gossip::Answered> answer(const gossip::TheirHalf& theirs, gossip::Reference& reference,
                                  gossip::Level level, gossip::Carry& carry) override {
    TRY(gossip::Encoded own, encode(&reference, level, carry));
    TRY(const auto view, gossip::parse_delta(layout_, level, own.bytes));
    TRY(const double norm, apply({view, theirs.delta, theirs.own_side}, theirs.factor, reference));
    return gossip::Answered{std::move(own), norm};
  }
  Result<void> edit(const std::function<void(std::span<float>)>& change) override {
    std::vector<float> host(layout_.size());
    TRY_VOID(checked(cudaStreamWaitEvent(codec_.stream(), places_.written, 0), Doing::exchanging));
    TRY_VOID(codec_.read(places_.parameters, host));
    change(host);
    return codec_.write(host, places_.parameters);
  }
  // A copy on the host, which goes back when the lease ends.
  Result<gossip::ChannelStatistics> statistics() override {
    if (!mean_) {
      TRY_VOID(
          checked(cudaStreamWaitEvent(codec_.stream(), places_.written, 0), Doing::exchanging));
      mean_.emplace(layout_.bn_channels());
      variance_.emplace(layout_.bn_channels());
      TRY_VOID(codec_.read(places_.bn_mean, *mean_));
      TRY_VOID(codec_.read(places_.bn_variance, *variance_));
    }
    return gossip::ChannelStatistics{*mean_, *variance_};
  }
  void overwrite(const gossip::Reference& reference) override {
    (void)cudaStreamWaitEvent(codec_.stream(), places_.written, 0);
    (void)codec_.copy(place_of(reference), places_.parameters, layout_.size());
  }
  [[nodiscard]] Result<void> write_back() {
    if (!mean_) return {};
    TRY_VOID(codec_.write(*mean_, places_.bn_mean));
    return codec_.write(*variance_, places_.bn_variance);
  }

 private:
  [[nodiscard]] DeviceCodec::Master master() const { return {places_.parameters, places_.written}; }

  const gossip::Layout& layout_;
  DeviceCodec& codec_;
  const MasterPlaces& places_;
  std::optional<std::vector<float>> mean_;
  std::optional<std::vector<float>> variance_;
};

}  // namespace

Result<std::unique_ptr<gossip::ReplicaVectors>> DeviceVectors::make(const gossip::Layout& layout,
                                                                    DeviceMasterPort& master) {
  TRY_VOID(checked(cudaSetDevice(master.device_index()), Doing::exchanging));
  TRY(DeviceCodec codec, made_with_room(master, [&] { return DeviceCodec::make(layout); }));
  return std::unique_ptr<gossip::ReplicaVectors>(
      new DeviceVectors(layout, master, std::move(codec)));
}

DeviceVectors::~DeviceVectors() { make_current(device_); }

Result<std::unique_ptr<gossip::Reference>> DeviceVectors::make_reference() {
  TRY_VOID(checked(cudaSetDevice(device_), Doing::exchanging));
  TRY(auto values, made_with_room(master_, [&] {
        return DeviceArray<float>::make(layout_.size(), Doing::exchanging);
      }));
  TRY_VOID(
      checked(cudaMemsetAsync(values.get(), 0, layout_.size() * sizeof(float), codec_.stream()),
              Doing::exchanging));
  return std::make_unique<DeviceReference>(layout_, codec_, device_, std::move(values));
}

Result<void> DeviceVectors::with_master(
    const std::function<Result<void>(gossip::LentMaster&)>& job) {
  Result<void> result;
  master_.with_device_master([&](const MasterPlaces& places) {
    DeviceMaster lent(layout_, codec_, places);
    result = job(lent);
    if (result) result = lent.write_back();
    // What failed midway may have begun: the lease does not end before that has.
    if (!result) (void)checked(cudaStreamSynchronize(codec_.stream()), Doing::exchanging);
  });
  return result;
}

}  // namespace starling::training::cuda
