#include "training/cuda/device_codec.h"

#include "node/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace starling::training::cuda {

namespace {

constexpr Doing kEncoding = Doing::encoding_delta;
constexpr Doing kExchanging = Doing::exchanging;
// Every 64th block is tried at all levels, as on the CPU.
constexpr std::uint32_t kSampleStride = 64;

template <class T>
Result<void> make_into(DeviceArray<T>& array, std::size_t count) {
  TRY(array, DeviceArray<T>::make(std::max<std::size_t>(count, 1), kEncoding));
  return {};
}
template <class T>
Result<void> make_into(PinnedArray<T>& array, std::size_t count) {
  TRY(array, PinnedArray<T>::make(std::max<std::size_t>(count, 1), kEncoding));
  return {};
}
// Once, from memory that may be paged: the bytes may still be on their way, see make().
template <class T>
Result<void> fill(DeviceArray<T>& array, const std::vector<T>& values) {
  TRY_VOID(make_into(array, values.size()));
  return checked(
      cudaMemcpy(array.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
      kEncoding);
}

SampledBlocks sampled_blocks(const gossip::Layout& layout, std::uint32_t sample) {
  const std::size_t big = layout.first_small_block();
  const auto end = static_cast<std::uint32_t>(big > 0 ? big : layout.blocks());
  const std::uint32_t stride = std::min(kSampleStride, end);
  return {end, stride, sample % stride};
}

}  // namespace

Result<DeviceCodec> DeviceCodec::make(const gossip::Layout& layout) {
  DeviceCodec codec(layout);
  TRY(codec.stream_, SideStream::make(kEncoding));
  TRY_VOID(codec.upload_shapes());
  TRY_VOID(codec.reserve());
  // For the copies of fill(): the codec's stream does not wait for theirs.
  TRY_VOID(checked(cudaStreamSynchronize(nullptr), kEncoding));
  return codec;
}

Result<void> DeviceCodec::upload_shapes() {
  std::vector<std::uint16_t> widths;
  std::vector<std::uint16_t> real_counts;
  std::vector<std::int32_t> mask_of_block;
  std::vector<std::uint64_t> masks;
  for (std::size_t block = 0; block < layout_->blocks(); ++block) {
    widths.push_back(static_cast<std::uint16_t>(layout_->width(block)));
    real_counts.push_back(static_cast<std::uint16_t>(layout_->real_count(block)));
    const auto mask = layout_->real_mask(block);
    mask_of_block.push_back(mask.empty() ? -1 : static_cast<std::int32_t>(masks.size() / 64));
    masks.insert(masks.end(), mask.begin(), mask.end());
  }
  TRY_VOID(fill(widths_, widths));
  TRY_VOID(fill(real_counts_, real_counts));
  TRY_VOID(fill(mask_of_block_, mask_of_block));
  TRY_VOID(fill(masks_, masks));
  shapes_ = {widths_.get(),
             real_counts_.get(),
             mask_of_block_.get(),
             masks_.get(),
             static_cast<std::uint32_t>(layout_->blocks()),
             static_cast<std::uint32_t>(layout_->first_small_block())};
  return {};
}

Result<void> DeviceCodec::reserve() {
  const std::size_t blocks = layout_->blocks();
  most_bytes_ = gossip::max_bytes(*layout_, gossip::Level::l6) + kDecoderSlack;
  const std::size_t samples = sampled_blocks(*layout_, 0).count();
  TRY_VOID(make_into(slots_, blocks * kMostBlockBytes));
  TRY_VOID(make_into(sampled_sent_, samples * kLevels));
  TRY_VOID(make_into(drifts_, samples));
  TRY_VOID(make_into(drift_, 1));
  TRY_VOID(fill(looked_, std::vector<std::uint32_t>{0}));
  TRY_VOID(make_into(sizes_, blocks));
  TRY_VOID(make_into(block_figures_, blocks));
  TRY_VOID(make_into(figures_, 1));
  TRY_VOID(make_into(thresholds_, blocks));
  TRY_VOID(make_into(next_thresholds_, blocks));
  TRY_VOID(make_into(delta_, most_bytes_));
  TRY_VOID(make_into(distances_, blocks));
  TRY_VOID(make_into(distance_, 1));
  for (Upload& upload : uploads_) {
    TRY_VOID(make_into(upload.bytes, most_bytes_));
    TRY_VOID(make_into(upload.offsets, blocks));
    TRY_VOID(make_into(upload.host_bytes, most_bytes_));
    TRY_VOID(make_into(upload.host_offsets, blocks));
  }
  TRY_VOID(make_into(host_delta_, most_bytes_));
  TRY_VOID(make_into(host_thresholds_, blocks));
  TRY_VOID(make_into(host_figures_, 1));
  return make_into(host_distance_, 1);
}

Result<void> DeviceCodec::wait() const {
  return checked(cudaStreamSynchronize(stream_.get()), kExchanging);
}

EncodeArgs DeviceCodec::encode_args(const Master& master, const float* r, gossip::Level level,
                                    std::uint32_t sample) const {
  EncodeArgs args{};
  args.x = master.x;
  args.r = r;
  args.shapes = shapes_;
  args.level = level;
  args.thresholds = thresholds_.get();
  args.next_thresholds = next_thresholds_.get();
  args.slots = slots_.get();
  args.slot_bytes = kMostBlockBytes;
  args.sizes = sizes_.get();
  args.figures = block_figures_.get();
  args.sampled = sampled_blocks(*layout_, sample);
  args.sampled_sent = sampled_sent_.get();
  args.drifts = drifts_.get();
  args.drift = drift_.get();
  args.looked = looked_.get();
  return args;
}

Result<gossip::Encoded> DeviceCodec::encode(const Master& master, const float* r,
                                            gossip::Level level, gossip::Carry& carry) {
  const std::size_t carried = layout_->first_small_block();
  const bool sparse = gossip::is_sparse(level);
  std::vector<float> thresholds = carry.thresholds;
  thresholds.resize(carried);
  if (master.written != nullptr)
    TRY_VOID(checked(cudaStreamWaitEvent(stream_.get(), master.written, 0), kEncoding));
  if (sparse) {
    std::ranges::copy(thresholds, host_thresholds_.get());
    TRY_VOID(
        checked(cudaMemcpyAsync(thresholds_.get(), host_thresholds_.get(), carried * sizeof(float),
                                cudaMemcpyHostToDevice, stream_.get()),
                kEncoding));
  }
  const EncodeArgs args = encode_args(master, r, level, carry.sample);
  TRY_VOID(checked(launch_encode(args, delta_.get(), figures_.get(), stream_.get()), kEncoding));
  TRY_VOID(checked(cudaMemcpyAsync(host_figures_.get(), figures_.get(), sizeof(DeltaFigures),
                                   cudaMemcpyDeviceToHost, stream_.get()),
                   kEncoding));
  if (sparse)
    TRY_VOID(
        checked(cudaMemcpyAsync(host_thresholds_.get(), next_thresholds_.get(),
                                carried * sizeof(float), cudaMemcpyDeviceToHost, stream_.get()),
                kEncoding));
  // As many bytes as the level's last delta had, and some: nearly always all of it, and then nobody
  // waits twice.
  std::size_t& expected = expected_bytes_[static_cast<std::size_t>(level)];
  const std::size_t ahead = std::min(expected, most_bytes_);
  TRY_VOID(fetch_delta(0, ahead));
  TRY_VOID(wait());
  TRY(gossip::Encoded encoded, take_bytes(args.sampled, ahead));
  expected = encoded.bytes.size() + encoded.bytes.size() / 8;
  if (sparse) std::copy_n(host_thresholds_.get(), carried, thresholds.begin());
  carry.thresholds = std::move(thresholds);
  ++carry.sample;
  return encoded;
}

Result<void> DeviceCodec::launch_encode_only(const Master& master, const float* r,
                                             gossip::Level level) const {
  const EncodeArgs args = encode_args(master, r, level, 0);
  return checked(launch_encode(args, delta_.get(), figures_.get(), stream_.get()), kEncoding);
}

Result<void> DeviceCodec::fetch_delta(std::size_t begin, std::size_t end) {
  if (begin >= end) return {};
  return checked(cudaMemcpyAsync(host_delta_.get() + begin, delta_.get() + begin, end - begin,
                                 cudaMemcpyDeviceToHost, stream_.get()),
                 kEncoding);
}

Result<gossip::Encoded> DeviceCodec::take_bytes(const SampledBlocks& sampled, std::size_t fetched) {
  const DeltaFigures found = *host_figures_.get();
  if (found.first_bad != shapes_.blocks) {
    const std::string block = std::to_string(found.first_bad);
    if (found.x_is_finite == 0)
      return fail(Errc::diverged, kEncoding,
                  "parameters in block " + block + " are not finite, nothing of them is sent");
    return fail(Errc::corrupt, kEncoding,
                "the difference to the reference in block " + block +
                    " is not finite, the edge needs a new reference");
  }
  STARLING_CHECK_OP(std::size_t{found.bytes}, <=, most_bytes_ - kDecoderSlack);
  if (found.bytes > fetched) {
    TRY_VOID(fetch_delta(fetched, found.bytes));
    TRY_VOID(wait());
  }
  gossip::Encoded encoded;
  const auto* const from = reinterpret_cast<const std::byte*>(host_delta_.get());
  encoded.bytes.assign(from, from + found.bytes);
  encoded.figures.difference_energy = found.energy;
  encoded.figures.sent_energy = found.sent;
  if (found.sampled_energy != 0 && sampled.count() != 0)
    for (std::size_t level = 0; level < kLevels; ++level)
      encoded.figures.unsent_share[level] = static_cast<float>(
          std::clamp(1.0 - found.sampled_sent[level] / found.sampled_energy, 0.0, 1.0));
  return encoded;
}

Result<CheckedDelta> DeviceCodec::upload(const gossip::DeltaView& view, Place place) {
  Upload& to = uploads_[static_cast<std::size_t>(place)];
  const std::byte* const first = view.block(0).data();
  const std::size_t blocks = layout_->blocks();
  for (std::size_t block = 0; block < blocks; ++block)
    to.host_offsets.get()[block] = static_cast<std::uint32_t>(view.block(block).data() - first);
  const ByteView last = view.block(blocks - 1);
  const auto bytes = static_cast<std::size_t>(last.data() + last.size() - first);
  STARLING_CHECK_OP(bytes, <=, most_bytes_ - kDecoderSlack);
  std::memcpy(to.host_bytes.get(), first, bytes);
  TRY_VOID(checked(cudaMemcpyAsync(to.bytes.get(), to.host_bytes.get(), bytes,
                                   cudaMemcpyHostToDevice, stream_.get()),
                   kExchanging));
  TRY_VOID(checked(
      cudaMemcpyAsync(to.offsets.get(), to.host_offsets.get(), blocks * sizeof(std::uint32_t),
                      cudaMemcpyHostToDevice, stream_.get()),
      kExchanging));
  return CheckedDelta{view.level(), to.bytes.get(), to.offsets.get()};
}

Result<double> DeviceCodec::apply(const gossip::DeltaPair& pair, float factor, const Master& master,
                                  float* r) {
  const bool own_is_lower = pair.own_side == gossip::Side::lower;
  ExchangeArgs args{};
  args.shapes = shapes_;
  TRY(args.lower, upload(own_is_lower ? pair.own : pair.theirs, Place::first));
  TRY(args.higher, upload(own_is_lower ? pair.theirs : pair.own, Place::second));
  // factor (their - own) is the same float as -factor (own - their).
  args.to_higher = own_is_lower ? factor : -factor;
  args.x = master.x;
  args.r = r;
  args.distances = distances_.get();
  if (master.written != nullptr)
    TRY_VOID(checked(cudaStreamWaitEvent(stream_.get(), master.written, 0), kExchanging));
  TRY_VOID(checked(launch_exchange(args, distance_.get(), stream_.get()), kExchanging));
  TRY_VOID(checked(cudaMemcpyAsync(host_distance_.get(), distance_.get(), sizeof(double),
                                   cudaMemcpyDeviceToHost, stream_.get()),
                   kExchanging));
  TRY_VOID(wait());
  return std::sqrt(*host_distance_.get());
}

Result<void> DeviceCodec::install(const gossip::DeltaView& snapshot, float* r) {
  TRY(const CheckedDelta delta, upload(snapshot, Place::first));
  TRY_VOID(checked(launch_install({shapes_, delta, r}, stream_.get()), kExchanging));
  return wait();
}

Result<void> DeviceCodec::read(const float* device, std::span<float> host) const {
  TRY_VOID(checked(cudaMemcpyAsync(host.data(), device, host.size_bytes(), cudaMemcpyDeviceToHost,
                                   stream_.get()),
                   kExchanging));
  return wait();
}

Result<void> DeviceCodec::write(std::span<const float> host, float* device) const {
  TRY_VOID(checked(cudaMemcpyAsync(device, host.data(), host.size_bytes(), cudaMemcpyHostToDevice,
                                   stream_.get()),
                   kExchanging));
  return wait();
}

Result<void> DeviceCodec::copy(const float* from, float* to, std::size_t count) const {
  TRY_VOID(checked(
      cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToDevice, stream_.get()),
      kExchanging));
  return wait();
}

}  // namespace starling::training::cuda
