// What one of four neighbours can do by lying where training is a noisy quadratic: a second a run.
#pragma once

#include "gossip/delta/aggregation.h"
#include "tests/liars/lies.h"

#include <cstdint>
#include <optional>

namespace starling::liars {

// Of the honest nodes, after the run.
struct Distances {
  double optimum = 0;     // root mean square to it over coordinates, mean of the nodes
  double each_other = 0;  // standard deviation between them, root mean square over coordinates
  bool finite = true;
};

// Five nodes that all are neighbours train a noisy quadratic for 1,500 steps; the fifth lies, or
// trains like the others. Lie::delay is of 1,000 steps; there are no labels to flip.
//
// Cost:    about a second.
[[nodiscard]] Distances run_on_quadratic(std::uint64_t seed, gossip::Aggregator rule,
                                         std::optional<Lie> lie);

}  // namespace starling::liars
