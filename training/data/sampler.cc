#include "training/data/sampler.h"

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

// The indices that fall to `self` (an element of `members`) in this epoch.
std::vector<std::uint32_t> own_share(std::uint64_t epoch, std::uint32_t size, const NodeId& self,
                                     const std::vector<NodeId>& members) {
  std::vector<std::uint64_t> keys;
  std::size_t own = 0;
  for (const NodeId& member : members) {
    if (member == self) own = keys.size();
    Hasher hasher;
    hasher.add("starling data share ").add(member.view()).add(epoch);
    keys.push_back(first_u64(hasher.finish()));
  }
  std::vector<std::uint32_t> share;
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
    if (best == own) share.push_back(index);
  }
  return share;
}

}  // namespace

std::vector<std::uint32_t> epoch_order(const SamplerOptions& options, std::uint64_t epoch,
                                       std::uint32_t size, const std::vector<NodeId>& members) {
  std::vector<std::uint32_t> order;
  if (options.partition == Partition::members) {
    // Sorted, so that all members see the same list whatever order their views have.
    std::vector<NodeId> sorted = members;
    sorted.push_back(options.node);
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    order = own_share(epoch, size, options.node, sorted);
  }
  if (order.empty()) {
    order.resize(size);
    std::iota(order.begin(), order.end(), 0U);
  }
  Rng rng(stream_seed(options, epoch, "order"));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

void deal_rest_anew(std::vector<std::uint32_t>& order, const SamplerOptions& options,
                    std::uint64_t epoch, std::uint32_t size, const std::vector<NodeId>& members) {
  std::vector<bool> had(size);
  for (const std::uint32_t index : order) had[index] = true;
  for (const std::uint32_t index : epoch_order(options, epoch, size, members))
    if (!had[index]) order.push_back(index);
}

std::uint64_t sample_seed(const SamplerOptions& options, std::uint64_t epoch,
                          std::uint64_t position) {
  return mix(stream_seed(options, epoch, "samples") ^ mix(position + 0x9e3779b97f4a7c15ULL));
}

}  // namespace starling::training
