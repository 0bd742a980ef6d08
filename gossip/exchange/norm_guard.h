// The one guard on what a neighbour can do to the parameters (rulings 10).
#pragma once

#include <cstddef>
#include <deque>

namespace starling::gossip {

// Remembers the norms of an edge's last 16 exchanges and says how large the next may be.
//
// A value owned by an edge; io thread; this node's measurements. A norm is that of q_their - q_own
// over the square root of the samples that both ends processed since the exchange before, because
// two random walks part by that.
class NormGuard {
 public:
  static constexpr std::size_t kRemembered = 16;
  static constexpr std::size_t kActiveAfter = 8;
  static constexpr double kFactor = 3;

  // Learns from one exchange.
  //
  // Units:   `norm` before clipping, `samples` >= 1.
  void on_exchange(double norm, double samples);

  // The norm above which an increment is clipped; 0: no bound, too little is known.
  [[nodiscard]] float limit(double samples) const;

  // What is usual here: the median of the remembered norms, per square root of samples; 0 before
  // the first.
  [[nodiscard]] double usual() const;

  // Forgets everything: after an opening, a reset, a change of level or period.
  void clear() { norms_.clear(); }

 private:
  std::deque<double> norms_;
};

}  // namespace starling::gossip
