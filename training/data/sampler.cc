#include "training/data/sampler.h"

#include "node/base/check.h"
#include "node/base/hash.h"
#include "node/base/random.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

namespace starling::training {

namespace {

std::uint64_t stream_seed(const SamplerOptions& options, std::uint64_t epoch,
                          std::string_view purpose) {
  Hasher hasher;
  hasher.add("starling data ").add(purpose);
  hasher.add(options.seed).add(options.node.view()).add(epoch);
  return first_u64(hasher.finish());
}

// A permutation of 64 bits in which every input bit reaches every output bit (splitmix64's).
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<std::uint32_t> epoch_order(const SamplerOptions& options, std::uint64_t epoch,
                                       std::uint32_t size) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  Rng rng(stream_seed(options, epoch, "order"));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

std::vector<bool> epoch_share(const SamplerOptions& options, std::uint64_t epoch,
                              std::uint32_t size, const std::vector<NodeId>& members) {
  if (options.partition != Partition::members) return {};
  // Sorted, so that all members see the same list whatever order their views have.
  std::vector<NodeId> sorted = members;
  sorted.push_back(options.node);
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<std::uint64_t> keys;
  std::size_t own = 0;
  for (const NodeId& member : sorted) {
    if (member == options.node) own = keys.size();
    Hasher hasher;
    hasher.add("starling data share ").add(member.view()).add(epoch);
    keys.push_back(first_u64(hasher.finish()));
  }
  std::vector<bool> share(size);
  bool any = false;
  for (std::uint32_t index = 0; index < size; ++index) {
    const std::uint64_t mixed = mix(index + 0x9e3779b97f4a7c15ULL);
    std::size_t best = 0;
    std::uint64_t best_value = 0;
    for (std::size_t m = 0; m < keys.size(); ++m) {
      const std::uint64_t value = mix(keys[m] ^ mixed);
      if (m == 0 || value > best_value) {
        best = m;
        best_value = value;
      }
    }
    share[index] = best == own;
    any = any || best == own;
  }
  return any ? share : std::vector<bool>();
}

EpochWalk::EpochWalk(std::vector<std::uint32_t> order, std::uint64_t position)
    : order_(std::move(order)),
      drawn_(order_.size()),
      position_(std::min<std::uint64_t>(position, order_.size())) {
  std::fill_n(drawn_.begin(), position_, true);
}

void EpochWalk::share_out(std::vector<bool> own) {
  STARLING_CHECK(own.empty() || own.size() == order_.size());
  own_ = std::move(own);
  back_ = 0;
}

std::optional<EpochWalk::Draw> EpochWalk::next() {
  std::size_t place = find(position_);
  position_ = std::min(place + 1, order_.size());
  if (place == order_.size()) place = back_ = find(back_);
  if (place == order_.size()) return std::nullopt;
  drawn_[place] = true;
  return Draw{.index = order_[place], .place = place};
}

std::size_t EpochWalk::find(std::size_t from) const {
  while (from < order_.size() && (drawn_[from] || (!own_.empty() && !own_[order_[from]]))) ++from;
  return from;
}

std::uint64_t sample_seed(const SamplerOptions& options, std::uint64_t epoch, std::uint64_t place) {
  return mix(stream_seed(options, epoch, "samples") ^ mix(place + 0x9e3779b97f4a7c15ULL));
}

}  // namespace starling::training
