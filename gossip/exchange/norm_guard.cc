#include "gossip/exchange/norm_guard.h"

#include "node/base/check.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace starling::gossip {

void NormGuard::on_exchange(double norm, double samples) {
  STARLING_CHECK(samples >= 1);
  norms_.push_back(norm / std::sqrt(samples));
  if (norms_.size() > kRemembered) norms_.pop_front();
}

double NormGuard::usual() const {
  const std::size_t count = norms_.size();
  if (count == 0) return 0;
  std::array<double, kRemembered> sorted{};
  const auto end = std::copy(norms_.begin(), norms_.end(), sorted.begin());
  std::sort(sorted.begin(), end);
  return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

float NormGuard::limit(double samples) const {
  if (norms_.size() < kActiveAfter) return 0;
  const double median = usual();
  // A median of zero comes from replicas that are equal; it says nothing about what is usual.
  if (median <= 0) return 0;
  return static_cast<float>(kFactor * median * std::sqrt(std::max(1.0, samples)));
}

}  // namespace starling::gossip
