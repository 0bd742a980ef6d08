// How what neighbours send becomes an increment: the plain way, and options against neighbours that
// lie (algorithm 5.8, 9.2).
#pragma once

#include "gossip/delta/exchange.h"
#include "gossip/delta/jobs.h"
#include "node/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>

namespace starling::gossip {

// Each end chooses for itself: it decides what is added to x, never what becomes of r.
enum class Aggregator : std::uint8_t {
  mean,  // every exchange at once; clipped only where it is far above the edge's own history
  // The same, clipped at the norm that is usual on the majority of all edges: self-centred
  // clipping. Of an increment k times as large as that a k-th of the usual norm is added.
  clip,
  median,     // coordinate by coordinate, the middle of self and of what several neighbours sent
  trimmed,    // the mean of what is left of these after the smallest and largest quarter went
  unguarded,  // never clipped: what a study compares with
};
[[nodiscard]] std::string_view name_of(Aggregator aggregator);

// Whether increments are held until several neighbours have spoken.
[[nodiscard]] constexpr bool holds_back(Aggregator aggregator) {
  return aggregator == Aggregator::median || aggregator == Aggregator::trimmed;
}

// Whether neighbours are taken at their word where no norm bounds what they say: BatchNorm
// statistics, a few sizes of a channel at a time, and what a reference has become.
[[nodiscard]] constexpr bool trusts(Aggregator aggregator) {
  return aggregator == Aggregator::mean || aggregator == Aggregator::unguarded;
}

// The middle of `values`, of an even number the mean of both middle ones; or the mean without the
// smallest and the largest quarter, of three and more values at least one each, summed in ascending
// order. Both in fp64 with one rounding, so that everybody gets the same from the same values.
//
// Rule:    not empty, all finite. Reorders its argument.
// Source:  Yin et al. 2018, "Byzantine-Robust Distributed Learning", definitions 1 and 2.
[[nodiscard]] float middle_of(std::span<float> values);
[[nodiscard]] float trimmed_mean_of(std::span<float> values);

// What several exchanges would have added, kept as the bytes that they came in.
//
// Owned by a Replica whose aggregator holds back; codec lane. One increment an edge, a later one
// replaces the one before: nothing of that was added, so the next exchange brings it again.
// Cost:    two payloads an edge.
class HeldIncrements {
 public:
  struct Increment {
    Payload own;
    Payload theirs;
    float factor = 0;  // finite, > 0
  };

  void hold(const EdgeEnds& edge, Increment increment);
  void forget(const EdgeEnds& edge) { held_.erase(edge); }

  // Whether enough spoke, of so many edges: all of them, or, where one of them speaks twice, all
  // but one of three and any three of more. So one that is silent holds nothing up, and with this
  // node itself there are three opinions at least: one that speaks often gets no majority.
  [[nodiscard]] bool complete(std::size_t edges) const;

  // x += rule over zero (for this node itself) and every held factor (q_their - q_own), coordinate
  // by coordinate; nothing is held afterwards. A coordinate that would not be finite keeps its
  // value.
  //
  // Cost:    decodes every payload once and sorts as many values as there are edges for each
  //          parameter: about as many passes over the model as there are edges.
  void apply(const Layout& layout, Aggregator rule, std::span<float> parameters, Isa isa);

 private:
  std::map<EdgeEnds, Increment> held_;
  bool spoke_twice_ = false;
};

}  // namespace starling::gossip
