// TokenBucket: at most so many things each second, with a burst.
#pragma once

#include "node/base/clock.h"

#include <algorithm>

namespace starling {

// A value type without clock; full at first. Thread: any, one at a time.
class TokenBucket {
 public:
  // `rate` tokens a second, at most `burst` of them saved up. Raising the burst admits a crowd that
  // arrives at once; raising the rate admits more for ever.
  TokenBucket(double rate, double burst) : rate_(rate), burst_(burst), tokens_(burst) {}

  // True, and `tokens` are gone; false if there are not so many. A clock that steps back adds
  // nothing.
  bool try_take(TimePoint now, double tokens = 1.0) {
    refill(now);
    if (tokens_ < tokens) return false;
    tokens_ -= tokens;
    return true;
  }

  // True when nothing was taken for so long that the bucket is as good as new.
  [[nodiscard]] bool full(TimePoint now) const {
    auto later = *this;
    later.refill(now);
    return later.tokens_ >= burst_;
  }

 private:
  void refill(TimePoint now) {
    if (started_ && now > last_) tokens_ = std::min(burst_, tokens_ + rate_ * seconds(now - last_));
    if (!started_ || now > last_) last_ = now;
    started_ = true;
  }

  double rate_;
  double burst_;
  double tokens_;
  TimePoint last_{};
  bool started_ = false;
};

}  // namespace starling
