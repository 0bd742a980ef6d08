// What one of four neighbours can do to a swarm by lying about its replica, under each rule.
#pragma once

#include "gossip/delta/aggregation.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace starling::sim {

// What the liar sends instead of a replica of its own; it knows all others'.
enum class Lie : std::uint8_t {
  sign_flip,  // what all learned, with the other sign
  random,     // noise, fresh each time
  little,     // the mean less one and a half deviations of each coordinate ("ALIE")
  inner,      // a tenth of what all learned, with the other sign: the mean still looks sane ("IPM")
  stale,      // what all knew at the start
  huge,       // 1e30
};
inline constexpr std::array kLies{Lie::sign_flip, Lie::random, Lie::little,
                                  Lie::inner,     Lie::stale,  Lie::huge};
[[nodiscard]] std::string_view name_of(Lie lie);

inline constexpr std::array kRules{gossip::Aggregator::unguarded, gossip::Aggregator::mean,
                                   gossip::Aggregator::clip, gossip::Aggregator::median,
                                   gossip::Aggregator::trimmed};

// Of the honest nodes, after the run.
struct Harm {
  double distance = 0;      // root mean square to the optimum over coordinates, mean of the nodes
  double disagreement = 0;  // standard deviation between them, root mean square over coordinates
  bool finite = true;
};

// Five nodes that all are neighbours train a noisy quadratic for 1,500 steps; the fifth lies, or
// trains like the others.
//
// Cost:    about a second.
[[nodiscard]] Harm run_with_liar(std::uint64_t seed, gossip::Aggregator rule,
                                 std::optional<Lie> lie);

}  // namespace starling::sim
