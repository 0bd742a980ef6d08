#include "tests/sim/plants.h"

#include "node/base/fault.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace starling::sim {
namespace {

constexpr auto kPlants = std::to_array<Plant>({
    {"dialler.one_try", "an address that failed is never tried again", 2},
    {"membership.announced_not_asked_for", "what is announced is never asked for", 277},
    {"membership.digests_ignored", "views are not compared", 12},
    {"membership.equal_incarnation_accepted", "a record replaces one of the same incarnation", 222},
    {"membership.no_refutation", "an accused node does not refute", 75},
    {"membership.old_incarnation_accepted", "an older record replaces a newer one", 7},
    {"membership.session_outvoted", "accusers beat a live direct session", 202},
    {"membership.suspicion_told_once", "a suspicion that its subject never heard of stays", 925},
    {"progress.rates_without_limit", "a counter is extrapolated far beyond its rate", 2},
    {"edge.answer_not_replayed", "an answer that a cut swallowed is not sent again", 2},
    {"edge.busy_not_heard", "an offer that was put off stays out for ever", 25},
    {"edge.crossing_answered_too", "two offers that cross are answered as well", 48},
    {"edge.offer_lost_on_resume", "an offer that is out is forgotten when its session comes back",
     455},
    {"edge.own_weight_taken", "the initiator weighs an answer by its own estimate", 40},
    {"edge.refused_not_sent_again", "what the peer had no memory for is not sent again", 55},
    {"replica.late_answer_overwrites", "an answer replaces the replica instead of moving it", 6},
    {"replica.residual_dropped", "what was not sent is thrown away", 6},
    {"replica.snapshot_for_another_edge",
     "a snapshot goes somewhere else, and nobody compares its hash", 7},
    {"consensus.batches_averaged", "batch counters are averaged instead of summed", 6},
    {"consensus.chunks_fetched_twice", "a chunk is asked for again before it is written", 8},
    {"consensus.exit_while_fetched_from", "a node leaves while a peer fetches from it", 54},
    {"consensus.leaf_left_out", "the leaves of the trees count in the weight and not in the sum",
     2},
    {"consensus.one_signature_missing", "a certificate is final with one signature missing", 6},
    {"consensus.refused_certificate_not_shown_again",
     "a certificate that nobody had room for counts as shown", 449},
    {"consensus.signers_impatient", "who has signed gives up as soon as a line is gone", 150'126},
    {"consensus.variance_about_own_mean", "pooled variances leave out how far the means are apart",
     6},
    {"node.incarnations_not_kept", "incarnations are used before they are on the disk", 5},
});

}  // namespace

std::span<const Plant> all_plants() { return kPlants; }

const Plant* find_plant(std::string_view name) {
  const auto at = std::ranges::find_if(kPlants, [&](const Plant& one) { return one.name == name; });
  return at == kPlants.end() ? nullptr : &*at;
}

Catch hunt(const Plant& plant, std::span<const std::uint64_t> seeds, std::ostream* trace) {
  Catch caught;
  for (const auto seed : seeds) {
    Outcome outcome;
    {
      const fault::Planted bug(plant.name);
      World world(draw_plan(seed, {}), trace);
      outcome = world.run();
      caught.reached += bug.reached();
    }
    if (outcome.violations.empty()) continue;
    // What goes wrong without the bug as well is no catch.
    if (!World(draw_plan(seed, {}), nullptr).run().violations.empty()) continue;
    const auto& first = outcome.violations.front();
    caught.seed = seed;
    caught.checker = first.checker;
    caught.what = first.what;
    break;
  }
  return caught;
}

std::vector<std::uint64_t> small_first(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> seeds(count);
  std::iota(seeds.begin(), seeds.end(), first);
  std::ranges::sort(seeds, {}, [](std::uint64_t seed) {
    const Plan plan = draw_plan(seed, {});
    return std::pair(static_cast<double>(plan.machines.size()) * seconds(plan.safety), seed);
  });
  return seeds;
}

}  // namespace starling::sim
