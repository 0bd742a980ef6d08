#include "training/data/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

NodeId node(unsigned number) {
  NodeId id;
  id.bytes[0] = static_cast<std::byte>(number);
  id.bytes[31] = std::byte{1};
  return id;
}

std::vector<std::uint32_t> sorted(std::vector<std::uint32_t> order) {
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<std::uint32_t> first_numbers(std::uint32_t count) {
  std::vector<std::uint32_t> all(count);
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

// What a walk draws until its epoch is over.
std::vector<std::uint32_t> rest_of(EpochWalk& walk) {
  std::vector<std::uint32_t> drawn;
  while (const auto draw = walk.next()) drawn.push_back(draw->index);
  return drawn;
}

// A whole epoch of one node.
std::vector<std::uint32_t> epoch_of(const SamplerOptions& options, std::uint64_t epoch,
                                    std::uint32_t size, const std::vector<NodeId>& members) {
  EpochWalk walk(epoch_order(options, epoch, size), 0);
  walk.share_out(epoch_share(options, epoch, size, members));
  return rest_of(walk);
}

}  // namespace

TEST_SUITE("training/data/sampler") {
  TEST_CASE("without partition an epoch is every sample once, in another order each time") {
    const SamplerOptions options{.seed = 3, .node = node(1)};

    const auto first = epoch_of(options, 0, 1'000, {});
    const auto second = epoch_of(options, 1, 1'000, {});

    CHECK(sorted(first) == first_numbers(1'000));
    CHECK(sorted(second) == first_numbers(1'000));
    CHECK(first != second);
    CHECK(first == epoch_of(options, 0, 1'000, {}));
  }

  TEST_CASE("two nodes, and two seeds, never share an order") {
    const auto order = epoch_of({.seed = 3, .node = node(1)}, 0, 1'000, {});

    CHECK(order != epoch_of({.seed = 3, .node = node(2)}, 0, 1'000, {}));
    CHECK(order != epoch_of({.seed = 4, .node = node(1)}, 0, 1'000, {}));
  }

  TEST_CASE("members share an epoch out: together everything, nothing twice") {
    std::vector<NodeId> members;
    for (unsigned m = 0; m < 5; ++m) members.push_back(node(m));
    std::vector<std::uint32_t> together;
    for (const NodeId& self : members) {
      const SamplerOptions options{.seed = 1, .node = self, .partition = Partition::members};

      const auto share = epoch_of(options, 7, 10'000, members);

      // 2,000 expected; binomial deviation is 40.
      CHECK(share.size() > 1'800);
      CHECK(share.size() < 2'200);
      together.insert(together.end(), share.begin(), share.end());
    }
    CHECK(sorted(together) == first_numbers(10'000));
  }

  TEST_CASE("a member that leaves moves only its own share") {
    std::vector<NodeId> members{node(1), node(2), node(3), node(4)};
    const SamplerOptions options{.seed = 1, .node = node(1), .partition = Partition::members};
    const auto before = sorted(epoch_of(options, 0, 4'000, members));
    members.pop_back();

    const auto after = sorted(epoch_of(options, 0, 4'000, members));

    CHECK(std::includes(after.begin(), after.end(), before.begin(), before.end()));
  }

  TEST_CASE("views in another order, or without this node, give the same share") {
    const SamplerOptions options{.seed = 1, .node = node(2), .partition = Partition::members};

    const auto share = epoch_of(options, 0, 1'000, {node(1), node(2), node(3)});

    CHECK(share == epoch_of(options, 0, 1'000, {node(3), node(1), node(2), node(2)}));
    CHECK(share == epoch_of(options, 0, 1'000, {node(3), node(1)}));
  }

  TEST_CASE("more members than samples leaves nobody without samples") {
    std::vector<NodeId> members;
    for (unsigned m = 0; m < 50; ++m) members.push_back(node(m));
    for (const NodeId& self : members) {
      const SamplerOptions options{.seed = 1, .node = self, .partition = Partition::members};

      CHECK(!epoch_of(options, 0, 3, members).empty());
    }
  }

  TEST_CASE(
      "a restart among other members draws nothing twice, and leaves out nothing of its own") {
    const std::vector<NodeId> members{node(1), node(2), node(3), node(4)};
    const SamplerOptions options{.seed = 1, .node = node(1), .partition = Partition::members};
    EpochWalk before(epoch_order(options, 5, 4'000), 0);
    before.share_out(epoch_share(options, 5, 4'000, members));
    std::vector<std::uint32_t> seen;
    for (int i = 0; i < 400; ++i) seen.push_back(before.next()->index);

    // Alone at first: who else is there is known only after a while.
    EpochWalk after(epoch_order(options, 5, 4'000), before.position());
    after.share_out(epoch_share(options, 5, 4'000, {}));
    for (int i = 0; i < 50; ++i) seen.push_back(after.next()->index);
    after.share_out(epoch_share(options, 5, 4'000, members));
    const auto rest = rest_of(after);
    seen.insert(seen.end(), rest.begin(), rest.end());

    const auto all = sorted(seen);
    CHECK(std::ranges::adjacent_find(all) == all.end());
    const auto own = sorted(epoch_of(options, 5, 4'000, members));
    CHECK(std::ranges::includes(all, own));
    CHECK(all.size() < own.size() + 50);
  }

  TEST_CASE("where a member left, the others go back for what was passed by for it") {
    const SamplerOptions options{.seed = 1, .node = node(1), .partition = Partition::members};
    EpochWalk walk(epoch_order(options, 0, 1'000), 0);
    walk.share_out(epoch_share(options, 0, 1'000, {node(2)}));
    std::vector<std::uint32_t> seen;
    for (int i = 0; i < 200; ++i) seen.push_back(walk.next()->index);

    walk.share_out(epoch_share(options, 0, 1'000, {}));
    const auto rest = rest_of(walk);
    seen.insert(seen.end(), rest.begin(), rest.end());

    CHECK(sorted(seen) == first_numbers(1'000));
    CHECK(walk.position() == 1'000);
  }

  TEST_CASE("a walk that begins behind the order is over") {
    EpochWalk walk(first_numbers(10), 11);
    CHECK_FALSE(walk.next());
    walk.share_out(std::vector<bool>(10, true));
    CHECK_FALSE(walk.next());
  }

  TEST_CASE("each position of each epoch has random decisions of its own") {
    const SamplerOptions options{.seed = 1, .node = node(1)};

    CHECK(sample_seed(options, 0, 0) != sample_seed(options, 0, 1));
    CHECK(sample_seed(options, 0, 0) != sample_seed(options, 1, 0));
    CHECK(sample_seed(options, 0, 0) == sample_seed(options, 0, 0));
  }
}
