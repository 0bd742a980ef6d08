#include "gossip/membership/failure_detector.h"

#include <algorithm>
#include <cmath>

namespace starling::gossip {

void AnswerDeadline::on_answer(Duration round_trip) {
  const Duration sample = std::max(round_trip, Duration{0});
  if (answers_ == 0) {
    smoothed_ = sample;
    deviation_ = sample / 2;  // nothing is known about the spread yet: assume it is wide
  } else {
    const Duration error = sample - smoothed_;
    smoothed_ += error / 8;
    deviation_ += (std::chrono::abs(error) - deviation_) / 4;
  }
  ++answers_;
}

Duration AnswerDeadline::wait() const {
  // A peer that never answered may be far away; a second is what TCP itself starts with.
  if (answers_ == 0)
    return std::clamp<Duration>(std::chrono::seconds(1), options_.min_deadline,
                                options_.max_deadline);
  return std::clamp(smoothed_ + options_.deviations * deviation_, options_.min_deadline,
                    options_.max_deadline);
}

void LocalHealth::add(std::int32_t points) {
  score_ = std::min(score_ + points, kMax);
  good_ = 0;
}

void LocalHealth::on_good_interval() {
  // Two good intervals a point: trust comes back more slowly than it goes.
  if (score_ == 0 || ++good_ < 2) return;
  good_ = 0;
  --score_;
}

Duration suspicion_time(std::size_t accusers, std::size_t quorum, const DetectorOptions& options) {
  const auto min = static_cast<double>(options.min_suspicion.count());
  const auto max = static_cast<double>(options.max_suspicion.count());
  if (quorum <= 1) return Duration(std::llround(std::sqrt(min * max)));
  const double share = std::log(static_cast<double>(std::max<std::size_t>(accusers, 1))) /
                       std::log(static_cast<double>(quorum + 1));
  return Duration(std::llround(std::max(min, max - (max - min) * share)));
}

std::size_t death_quorum(std::size_t members) {
  return members <= 3 ? 1 : std::min<std::size_t>(3, members - 2);
}

HeartbeatWatch::HeartbeatWatch(TimePoint now, const DetectorOptions& options)
    : options_(options),
      deadline_(options),
      earliest_(now),
      quiet_until_(now),
      measure_at_(now),
      last_heard_(now) {}

TimePoint HeartbeatWatch::next_heartbeat() const {
  return std::max(earliest_, std::min(quiet_until_, measure_at_));
}

std::optional<std::uint64_t> HeartbeatWatch::take_due(TimePoint now) {
  if (now < next_heartbeat()) return std::nullopt;
  return send_now(now);
}

std::uint64_t HeartbeatWatch::send_now(TimePoint now) {
  // The oldest stays: it is the one whose deadline counts.
  if (outstanding_.size() == kMaxOutstanding) outstanding_.erase(outstanding_.begin() + 1);
  outstanding_.push_back({next_seq_, now});
  // After a pause one heartbeat is sent, not all that were missed.
  earliest_ = now + options_.heartbeat_interval;
  measure_at_ = now + options_.measure_interval;
  return next_seq_++;
}

void HeartbeatWatch::on_answer(TimePoint now, std::uint64_t seq) {
  const auto found = std::ranges::find(outstanding_, seq, &Outstanding::seq);
  if (found == outstanding_.end()) return;
  deadline_.on_answer(now - found->sent);
  // Sessions keep order: whatever was sent before has been answered or never will be.
  outstanding_.erase(outstanding_.begin(), found + 1);
  last_heard_ = now;
  quiet_until_ = now + options_.idle_interval + options_.others_turn;
}

void HeartbeatWatch::on_asked(TimePoint now) { quiet_until_ = now + options_.idle_interval; }

void HeartbeatWatch::on_heard(TimePoint now) {
  last_heard_ = now;
  quiet_until_ = now + options_.heartbeat_interval;
}

void HeartbeatWatch::forgive(TimePoint now) {
  outstanding_.clear();
  earliest_ = now;
  measure_at_ = now;
  last_heard_ = now;
}

bool HeartbeatWatch::silent(TimePoint now, const LocalHealth& health) const {
  if (outstanding_.empty()) return false;
  const TimePoint since = std::max(outstanding_.front().sent, last_heard_);
  return now >= since + health.stretch(deadline_.wait());
}

TimePoint HeartbeatWatch::next_deadline(const LocalHealth& health) const {
  if (outstanding_.empty()) return next_heartbeat();
  const TimePoint since = std::max(outstanding_.front().sent, last_heard_);
  return std::min(next_heartbeat(), since + health.stretch(deadline_.wait()));
}

}  // namespace starling::gossip
