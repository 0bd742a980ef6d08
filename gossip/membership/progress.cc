#include "gossip/membership/progress.h"

#include "node/base/fault.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace starling::gossip {
namespace {

// No run is older: keeps arithmetic on a liar's age from overflowing.
constexpr std::uint64_t kMaxAgeMs = std::uint64_t{100} * 365 * 24 * 3600 * 1000;
constexpr std::uint64_t kMaxSamples = std::uint64_t{1} << 62;
constexpr Duration kCacheFor = std::chrono::milliseconds(100);
constexpr Duration kRateWindow = std::chrono::seconds(1);
constexpr double kRateGain = 0.3;
// A machine that has just started says less than it does, and one that was busy, too.
constexpr Duration kShortFor = std::chrono::minutes(1);

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return b > kMaxSamples - std::min(a, kMaxSamples) ? kMaxSamples : a + b;
}

// Samples that a rate makes in a time.
std::uint64_t grown(double millirate, Duration time) {
  const double samples = millirate / 1000 * std::max(seconds(time), 0.0);
  return samples >= static_cast<double>(kMaxSamples) ? kMaxSamples
                                                     : static_cast<std::uint64_t>(samples);
}

// What is left of a rate after a silence. How long the usual gap between two words is, tells what
// the last one brought: a pause before it makes it no longer, and a slow step no silence.
double share_left(double rate, std::uint64_t fresh, Duration interval, Duration silence) {
  if (rate <= 0) return 0;
  const double believed_s = 2 * std::max(static_cast<double>(fresh) / rate, seconds(interval));
  return believed_s / std::max(seconds(silence), believed_s);
}

}  // namespace

Progress::Progress(const NodeId& self, ProgressOptions options) : self_(self), options_(options) {}

void Progress::on_local_samples(TimePoint now, std::uint64_t samples) {
  // The first word of this process: what the swarm or a file said of this node before it holds the
  // checkpoint's samples, which are in `samples` too.
  if (own_.rate_since == TimePoint{}) own_.offset = own_.samples - std::min(own_.samples, samples);
  own_.samples = std::max(own_.samples, saturating_add(own_.offset, samples));
  if (own_.rate_since == TimePoint{}) {
    own_.rate_since = now;
    own_.rate_base = own_.samples;
    return;
  }
  const Duration elapsed = now - own_.rate_since;
  if (elapsed < kRateWindow) return;
  const double rate = static_cast<double>(own_.samples - own_.rate_base) / seconds(elapsed);
  own_.rate = own_.rate == 0 ? rate : own_.rate + kRateGain * (rate - own_.rate);
  own_.fresh = own_.samples - own_.rate_base;
  own_.rate_since = now;
  own_.rate_base = own_.samples;
}

void Progress::continue_own_from(std::uint64_t samples) {
  if (samples <= own_.samples) return;
  const std::uint64_t more = samples - own_.samples;
  own_.offset += more;
  own_.samples = samples;
  own_.rate_base += more;  // done by an earlier process: no part of our rate
}

void Progress::merge(TimePoint now, const std::vector<SavedCounter>& saved) {
  for (const auto& [id, raw] : saved) {
    const std::uint64_t samples = std::min(raw, kMaxSamples);
    if (id == self_) {
      continue_own_from(samples);
      continue;
    }
    if (counters_.size() >= options_.max_ids && !counters_.contains(id)) continue;
    Counter& counter = counters_[id];
    counter.claimed = std::max(counter.claimed, samples);
    counter.kept = std::max(counter.kept, samples);
    if (samples > counter.counted) {
      counter.counted = samples;
      counter.at = now;
    }
  }
  floor_at_.reset();
}

void Progress::merge_age(TimePoint now, Duration age) {
  const TimePoint genesis = now - std::max(age, Duration{0});
  genesis_ = genesis_ ? std::min(*genesis_, genesis) : genesis;
}

void Progress::merge_of_sponsor(TimePoint now, std::vector<SavedCounter> counters, Duration age) {
  std::erase_if(counters, [&](const SavedCounter& counter) { return counter.id == self_; });
  merge(now, counters);
  sponsors_ = std::min(sponsors_, now - std::clamp(age, Duration{0},
                                                   Duration(std::chrono::milliseconds(kMaxAgeMs))));
}

void Progress::set_settings(TimePoint now, const Hash& settings) {
  if (settings == settings_) return;
  const bool another = !settings_.is_zero();
  settings_ = settings;
  if (another) {
    genesis_ = now;
    sponsors_ = kNever;
  }
  oldest_ = {};
  floor_ = 0;
  floor_at_.reset();
  for (auto& [id, counter] : counters_) {
    if (another) {
      // What a map said was of that run; its author may bring along what it said itself.
      counter.kept = 0;
      counter.claimed = counter.report ? std::min(counter.report->samples, kMaxSamples) : 0;
    }
    if (another || !alike(counter)) {
      counter.counted = counter.kept;
      counter.at = {};
    }
    counter.waiting = alike(counter);
    if (counter.waiting) learn_age(id, counter.genesis);
  }
  any_waiting_ = true;
  rates_at_.reset();
  weigh(now);
}

// Whether that is news.
bool Progress::note_settings(Counter& counter, const Hash& settings) {
  if (settings.is_zero() || settings == counter.settings) return false;
  if (!counter.settings.is_zero()) counter.genesis = kNever;  // of another run
  counter.settings = settings;
  return true;
}

void Progress::on_settings(TimePoint now, const NodeId& id, const Hash& settings) {
  const auto at = counters_.find(id);
  if (at == counters_.end() || !note_settings(at->second, settings)) return;
  if (alike(at->second)) learn_age(id, at->second.genesis);
  weigh(now);
  settle(now, at->second);
}

bool Progress::is_news(const ProgressReport& report) const {
  if (report.id == self_) return report.samples > own_.samples;
  const auto at = counters_.find(report.id);
  if (at == counters_.end()) return has_room();
  return !at->second.report || report.samples > at->second.report->samples;
}

bool Progress::has_room() const {
  return counters_.size() < options_.max_ids ||
         std::ranges::any_of(counters_, [](const auto& item) { return !item.second.running; });
}

// Of those that are gone the counter that adds the least to P is forgotten, and P stands still
// until the others have made up for it. Whoever comes back brings all of it along.
bool Progress::make_room() {
  if (counters_.size() < options_.max_ids) return true;
  const auto rank = [](const auto& item) {
    return std::tuple(item.second.counted, item.second.claimed, item.first);
  };
  auto least = counters_.end();
  for (auto at = counters_.begin(); at != counters_.end(); ++at)
    if (!at->second.running && (least == counters_.end() || rank(*at) < rank(*least))) least = at;
  if (least == counters_.end()) return false;
  counters_.erase(least);
  return true;
}

Progress::News Progress::on_report(TimePoint now, const ProgressReport& report,
                                   const Hash& settings) {
  const std::uint64_t samples = std::min(report.samples, kMaxSamples);
  if (report.id == self_) {
    continue_own_from(samples);
    return News::known;
  }
  if (!is_news(report)) return News::known;
  if (!counters_.contains(report.id) && !make_room()) return News::no_room;

  Counter& counter = counters_[report.id];
  (void)note_settings(counter, settings);
  const auto age = std::chrono::milliseconds(std::min(report.run_age_ms, kMaxAgeMs));
  counter.genesis = std::min(counter.genesis, now - age);
  if (alike(counter)) learn_age(report.id, counter.genesis);
  counter.rate_millisamples = report.rate_millisamples;
  // No more than its own rate says: by a leap of its counter a liar would be believed for ever.
  counter.fresh =
      counter.report
          ? std::min(report.samples - counter.report->samples,
                     grown(static_cast<double>(report.rate_millisamples), now - counter.heard_at))
          : 0;
  counter.heard_at = now;
  counter.report = report;
  counter.claimed = std::max(counter.claimed, samples);
  counter.running = true;
  weigh(now);
  settle(now, counter);
  return News::fresh;
}

void Progress::set_members(TimePoint now, std::size_t alive) {
  members_ = alive;
  weigh(now);
}

void Progress::weigh(TimePoint now) {
  if (!rates_at_ || now - *rates_at_ > kRateWindow || counters_.size() < 64) {
    std::vector<std::uint64_t> rates = known_rates();
    rates_at_ = now;
    others_ = strangers_ = 0;
    for (const auto& [id, counter] : counters_) {
      others_ += alike(counter) ? 1 : 0;
      strangers_ += counter.running && !alike(counter) ? 1 : 0;
    }
    // Our own rate is true; of others at least two are needed, of which one may be a lie.
    comparable_ = own_.rate > 0 || rates.size() >= 2;
    limit_millirate_ = 0;
    if (comparable_) {
      // The upper one in the middle, but the slower one of two: the faster may be the liar.
      const std::size_t place = rates.size() == 2 ? 0 : rates.size() / 2;
      const auto median = rates.begin() + static_cast<std::ptrdiff_t>(place);
      std::nth_element(rates.begin(), median, rates.end());
      limit_millirate_ =
          std::min(*median, kMaxSamples / options_.max_rate_ratio) * options_.max_rate_ratio;
    }
  }
  const std::size_t members = members_ - std::min(strangers_, members_);
  if (members < 2 || (members > 2 && comparable_)) {
    few_since_.reset();
  } else if (!few_since_) {
    few_since_ = now;
  }
  if (word_counts(now)) {
    limit_millirate_ = kMaxSamples;
    rates_at_.reset();  // compared again as soon as there is somebody to compare with
  }
  if (!any_waiting_ || limit_millirate_ == 0) return;
  any_waiting_ = false;
  for (auto& [id, counter] : counters_)
    if (counter.waiting) settle(now, counter);
}

bool Progress::word_counts(TimePoint now) const {
  return few_since_ && now - *few_since_ >= options_.patience;
}

void Progress::settle(TimePoint now, Counter& counter) {
  counter.waiting = alike(counter) && limit_millirate_ == 0;
  if (!alike(counter)) return;
  if (counter.waiting) {
    any_waiting_ = true;
    return;
  }
  // A first report may cover the whole run, and with it what a map held of its author; an interval
  // more, since nobody's clock is exact.
  const auto limit = static_cast<double>(limit_millirate_);
  const std::uint64_t allowed =
      counter.at == TimePoint{} ? grown(limit, run_age(now) + report_interval())
                                : saturating_add(counter.counted, grown(limit, now - counter.at));
  counter.counted = std::max(counter.counted, std::min(counter.claimed, allowed));
  counter.at = now;
}

// The two earliest claims of different members: see run_age().
void Progress::learn_age(const NodeId& id, TimePoint genesis) {
  if (oldest_[0].id == id) {
    oldest_[0].genesis = std::min(oldest_[0].genesis, genesis);
  } else if (genesis < oldest_[0].genesis) {
    oldest_[1] = std::exchange(oldest_[0], {id, genesis});
  } else if (oldest_[1].id == id || genesis < oldest_[1].genesis) {
    oldest_[1] = {id, std::min(genesis, oldest_[1].genesis)};
  }
}

Duration Progress::run_age(TimePoint now) const {
  return age_since(std::min(genesis_.value_or(now), sponsors_), now);
}

Duration Progress::age_since(TimePoint own, TimePoint now) const {
  // The oldest of several opinions is not believed alone, and the only other one not at once, so
  // that no liar ends a run that is limited by time.
  const TimePoint agreed = others_ >= 2 || !word_counts(now)
                               ? std::max(oldest_[0].genesis, std::min(own, oldest_[1].genesis))
                               : oldest_[0].genesis;
  return now - std::min({own, agreed, now});
}

void Progress::on_departed(TimePoint now, const NodeId& id) {
  const auto at = counters_.find(id);
  if (at == counters_.end()) return;
  at->second.running = false;
  if (!at->second.waiting && alike(at->second)) at->second.at = now;
}

Duration Progress::report_interval() const {
  const double by_members =
      static_cast<double>(members_) / std::max(options_.reports_per_second, 0.001);
  return std::max(options_.min_interval,
                  Duration(static_cast<std::int64_t>(by_members * 1'000'000)));
}

std::optional<ProgressReport> Progress::take_due_report(TimePoint now, Incarnation incarnation) {
  if (own_.samples == own_.reported) return std::nullopt;
  if (own_.last_report && now - *own_.last_report < report_interval()) return std::nullopt;
  own_.last_report = now;
  own_.reported = own_.samples;
  ProgressReport report;
  report.id = self_;
  report.incarnation = incarnation;
  report.samples = own_.samples;
  report.rate_millisamples = static_cast<std::uint64_t>(std::llround(own_.rate * 1000));
  report.run_age_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(own_age(now)).count());
  return report;
}

std::vector<std::uint64_t> Progress::known_rates() const {
  std::vector<std::uint64_t> rates;
  rates.reserve(counters_.size() + 1);
  for (const auto& [id, counter] : counters_)
    if (counter.running && alike(counter) && counter.rate_millisamples > 0)
      rates.push_back(counter.rate_millisamples);
  if (own_.rate > 0) rates.push_back(static_cast<std::uint64_t>(own_.rate * 1000));
  return rates;
}

std::uint64_t Progress::counted_rate(const Counter& counter) const {
  if (fault::planted("progress.rates_without_limit")) return counter.rate_millisamples * 64;
  return counter.running && alike(counter) ? std::min(counter.rate_millisamples, limit_millirate_)
                                           : 0;
}

std::uint64_t Progress::value_of(const Counter& counter, TimePoint now) const {
  const Duration since = std::min(now - counter.at, 2 * report_interval());
  return saturating_add(counter.counted, grown(static_cast<double>(counted_rate(counter)), since));
}

std::uint64_t Progress::total(TimePoint now) {
  if (floor_at_ && now >= *floor_at_ && now - *floor_at_ < kCacheFor) return floor_;
  std::uint64_t sum = own_.samples;
  for (const auto& [id, counter] : counters_) sum = saturating_add(sum, value_of(counter, now));
  // What was extrapolated for a member that then died stays until the others have caught up.
  floor_ = std::max(floor_, sum);
  floor_at_ = now;
  return floor_;
}

std::optional<CountedShort> Progress::take_counted_short(TimePoint now) {
  const bool may_tell = !told_short_at_ || now - *told_short_at_ >= kShortFor;
  Counter* fastest = nullptr;
  std::optional<CountedShort> found;
  for (auto& [id, counter] : counters_) {
    const bool beyond = limit_millirate_ > 0 && counted_rate(counter) < counter.rate_millisamples &&
                        counter.running && alike(counter);
    if (!beyond) {
      counter.short_since.reset();
      continue;
    }
    if (!counter.short_since) counter.short_since = now;
    if (!may_tell || counter.told_short || now - *counter.short_since < kShortFor) continue;
    const double said = static_cast<double>(counter.rate_millisamples) / 1000;
    if (found && (said < found->said || (said == found->said && found->id < id))) continue;
    fastest = &counter;
    found = CountedShort{id, said, static_cast<double>(limit_millirate_) / 1000};
  }
  if (fastest == nullptr) return std::nullopt;
  fastest->told_short = true;
  told_short_at_ = now;
  return found;
}

double Progress::rate(TimePoint now) const {
  double sum = own_.rate * share_left(own_.rate, own_.fresh, kRateWindow, now - own_.rate_since);
  for (const auto& [id, counter] : counters_) {
    const double said = static_cast<double>(counter.rate_millisamples) / 1000;
    sum += static_cast<double>(counted_rate(counter)) / 1000 *
           share_left(said, counter.fresh, report_interval(), now - counter.heard_at);
  }
  return sum;
}

std::uint64_t Progress::samples_of(const NodeId& id) const {
  if (id == self_) return own_.samples;
  const auto at = counters_.find(id);
  return at == counters_.end() ? 0 : at->second.counted;
}

const ProgressReport* Progress::report_of(const NodeId& id) const {
  const auto at = counters_.find(id);
  return at == counters_.end() || !at->second.report ? nullptr : &*at->second.report;
}

std::vector<SavedCounter> Progress::saved() const {
  std::vector<SavedCounter> all;
  all.reserve(counters_.size() + 1);
  if (own_.samples > 0) all.push_back({self_, own_.samples});
  for (const auto& [id, counter] : counters_)
    if (counter.counted > 0) all.push_back({id, counter.counted});
  std::ranges::sort(all, {}, &SavedCounter::id);
  return all;
}

}  // namespace starling::gossip
