// Which samples a node trains on, and in which order.
#pragma once

#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace starling::training {

enum class Partition : std::uint8_t {
  none,     // every node shuffles everything with its own seed
  members,  // an epoch's samples are shared out over the members with the same data set
};

// Everything that decides an epoch's order and share.
struct SamplerOptions {
  std::uint64_t seed = 0;  // the run's seed, a setting
  NodeId node;             // this node: two nodes never see the same order
  Partition partition = Partition::none;
};

// The order of one epoch before it is shared out: all `size` sample indices, shuffled by
// H(seed | node | epoch).
//
// Cost:    O(size).
// Thread:  any; pure.
[[nodiscard]] std::vector<std::uint32_t> epoch_order(const SamplerOptions& options,
                                                     std::uint64_t epoch, std::uint32_t size);

// Which samples of an epoch are this node's, by index; empty where all are.
//
// Rule:    none: all. members: index i belongs to the member with the largest mix(epoch, member, i)
//          (rendezvous hashing: one member more or less moves 1/n of the indices). `members` may
//          lack this node, which is then added. Where nothing falls to this node it takes
//          everything: nothing here divides by a number of nodes, and nothing can come out empty.
// Cost:    O(size x members) with partition: 1.3 M x 64 take 0.2 s.
// Thread:  any; pure.
[[nodiscard]] std::vector<bool> epoch_share(const SamplerOptions& options, std::uint64_t epoch,
                                            std::uint32_t size, const std::vector<NodeId>& members);

// Goes through the order of one epoch and draws what is this node's, each sample at most once.
//
// The position is one in the order of all samples, not in a share of them: so a restart goes on
// where the stream stood, whoever was a member before it. Where a member left, its samples come to
// those who stay: behind the end of the order the walk goes back for those that it passed by. What
// others drew before is not known here. Owned by a Loader.
// Memory:  `order`, and two bits a sample.
class EpochWalk {
 public:
  // What stands before `position` counts as drawn.
  EpochWalk(std::vector<std::uint32_t> order, std::uint64_t position);

  // What is this node's from now on (epoch_share()): as many as the order has, or empty for all.
  void share_out(std::vector<bool> own);

  struct Draw {
    std::uint32_t index = 0;
    std::uint64_t place = 0;  // in the order: no other draw of the epoch has the same
  };
  // The next sample; nothing where the epoch is over, until it is shared out anew. Amortized O(1 /
  // share).
  [[nodiscard]] std::optional<Draw> next();

  // Where a restart goes on. At the end of the order it begins the next epoch: what this one would
  // have gone back for is left out.
  [[nodiscard]] std::uint64_t position() const { return position_; }

 private:
  // The first place from `from` on that is this node's and not drawn; else the end of the order.
  [[nodiscard]] std::size_t find(std::size_t from) const;

  std::vector<std::uint32_t> order_;
  std::vector<bool> own_;    // by index
  std::vector<bool> drawn_;  // by place
  std::size_t position_ = 0;
  std::size_t back_ = 0;  // where it goes on behind the end of the order
};

// Seed of the random decisions (crop, flip, replacement) about one place in the order of an epoch.
[[nodiscard]] std::uint64_t sample_seed(const SamplerOptions& options, std::uint64_t epoch,
                                        std::uint64_t place);

}  // namespace starling::training
