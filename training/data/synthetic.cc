#include "training/data/synthetic.h"

#include "node/base/hash.h"
#include "node/base/random.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace starling::training {

namespace {

// Patterns differ in a pair of frequencies before they differ in colour alone.
constexpr std::uint32_t kFrequencies = 5;

// What makes a class: waves per image across and down, and how strongly each channel shows them.
struct Pattern {
  std::uint32_t across;
  std::uint32_t down;
  std::array<std::int32_t, 3> strength;  // in 1/256
};

Pattern pattern_of(std::uint32_t label) {
  Rng rng(0x57a7'11e6'0000'0000ULL + label);
  Pattern pattern{.across = label % kFrequencies + 1,
                  .down = label / kFrequencies % kFrequencies,
                  .strength = {}};
  for (auto& s : pattern.strength) s = 64 + static_cast<std::int32_t>(rng.below(193));
  return pattern;
}

// A triangle wave of one period per 2^32: from -128 to 127.
std::int32_t wave(std::uint32_t phase) {
  const auto ramp = static_cast<std::int32_t>(phase >> 23);  // 0 to 511
  return std::min(ramp, 511 - ramp) - 128;
}

class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(std::string name, const SyntheticOptions& options, std::uint32_t size,
                   std::uint64_t stream)
      : name_(std::move(name)), options_(options), size_(size), stream_(stream) {
    for (std::uint32_t c = 0; c < options.classes; ++c) classes_.push_back(std::to_string(c));
    noise_ = static_cast<std::int32_t>(options.noise * 256);
    Hasher hasher;
    hasher.add("starling data synthetic").add(stream).add(std::uint64_t{size});
    hasher.add(std::uint64_t{options.classes}).add(std::uint64_t{options.size});
    hasher.add(std::uint64_t{options.channels}).add(static_cast<std::uint64_t>(noise_));
    id_ = hasher.finish();
  }

  std::uint32_t size() const override { return size_; }
  std::uint32_t channels() const override { return options_.channels; }
  std::optional<ImageSize> uniform_size() const override {
    return ImageSize{options_.size, options_.size};
  }
  const std::vector<std::string>& class_names() const override { return classes_; }
  std::string name() const override { return name_; }
  Hash id() const override { return id_; }
  std::string sample_name(std::uint32_t index) const override {
    return name_ + ": image " + std::to_string(index);
  }

  Result<void> read(std::uint32_t index, Sample& out) const override {
    Rng rng(stream_ << 32 | index);
    const auto label = static_cast<std::uint32_t>(rng.below(options_.classes));
    const Pattern pattern = pattern_of(label);
    const std::uint32_t side = options_.size;
    const std::uint32_t step = 0xffff'ffffU / side;
    const auto shift = static_cast<std::uint32_t>(rng());
    const std::size_t channels = options_.channels;
    out.label = label;
    out.raw = Sample::Raw{{side, side}, options_.channels};
    out.bytes.resize(std::size_t{side} * side * channels);
    std::size_t at = 0;
    for (std::uint32_t y = 0; y < side; ++y) {
      for (std::uint32_t x = 0; x < side; ++x) {
        const std::uint32_t phase = shift + x * (step * pattern.across) + y * (step * pattern.down);
        const std::int32_t height = wave(phase);
        std::uint64_t dice = rng();
        for (std::size_t c = 0; c < channels; ++c, dice >>= 16) {
          // Two dice of 8 bits: a triangular distribution around zero, -255 to 255.
          const auto noise =
              static_cast<std::int32_t>(dice & 0xff) - static_cast<std::int32_t>(dice >> 8 & 0xff);
          const std::int32_t value =
              128 + height * pattern.strength[c] / 256 + noise * noise_ / 256;
          out.bytes[at++] = static_cast<std::byte>(std::clamp(value, 0, 255));
        }
      }
    }
    return {};
  }

 private:
  std::string name_;
  SyntheticOptions options_;
  std::uint32_t size_;
  std::uint64_t stream_;
  std::int32_t noise_ = 0;  // in 1/256
  std::vector<std::string> classes_;
  Hash id_;
};

}  // namespace

DataSets open_synthetic(const DataSpec& spec) {
  const SyntheticOptions& options = spec.synthetic;
  DataSets sets;
  sets.train = std::make_unique<SyntheticDataset>(spec.text + " train", options, options.train, 1);
  if (options.val > 0) {
    sets.val = std::make_unique<SyntheticDataset>(spec.text + " val", options, options.val, 2);
  }
  return sets;
}

}  // namespace starling::training
