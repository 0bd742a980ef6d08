#include "node/terminal/trends.h"

#include "node/observe/fields.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace starling::node::terminal {

namespace {

using Json = nlohmann::json;

std::uint64_t count_of(const Json& object, std::initializer_list<std::string_view> path) {
  const auto& value = fields::at(object, path);
  return value.is_number_unsigned() ? value.get<std::uint64_t>() : 0;
}

}  // namespace

void Course::add(double value) {
  sum_ += value;
  if (++added_ < each_) return;
  values_.push_back(std::exchange(sum_, 0) / static_cast<double>(std::exchange(added_, 0)));
  if (values_.size() < kMost) return;
  for (std::size_t i = 0; i < kMost / 2; ++i)
    values_[i] = (values_[2 * i] + values_[2 * i + 1]) / 2;
  values_.resize(kMost / 2);
  each_ *= 2;
}

void Trends::take(TimePoint now, const Json& status) {
  Look look{now,
            {count_of(status, {"traffic", "bytes_sent"}),
             count_of(status, {"traffic", "bytes_received"})},
            {}};
  if (const auto& list = fields::at(status, {"neighbours"}); list.is_array())
    for (const auto& edge : list)
      look.neighbours[fields::show(edge, {"id"})] = {count_of(edge, {"bytes_sent"}),
                                                     count_of(edge, {"bytes_received"})};
  const auto step = count_of(status, {"progress", "step"});
  // Another process, perhaps from an older checkpoint: its counters begin anew.
  if (!looks_.empty() && look.all.sent < looks_.back().all.sent) looks_.clear();
  looks_.push_back(std::move(look));
  while (looks_.size() > 2 && now - looks_[1].time >= kWindow) looks_.pop_front();
  if (step == std::exchange(step_, step)) return;  // no step since the last look
  const auto& loss = fields::at(status, {"train", "loss"});
  if (loss.is_number()) losses_.add(loss.get<double>());
  speeds_.add(fields::number(status, {"train", "images_per_second"}));
}

std::optional<Rates> Trends::between(const Counters& old, const Counters& now, Duration time) {
  if (time <= Duration{0} || now.sent < old.sent || now.received < old.received)
    return std::nullopt;
  return Rates{static_cast<double>(now.sent - old.sent) / seconds(time),
               static_cast<double>(now.received - old.received) / seconds(time)};
}

std::optional<Rates> Trends::rates() const {
  if (looks_.size() < 2) return std::nullopt;
  return between(looks_.front().all, looks_.back().all, looks_.back().time - looks_.front().time);
}

std::optional<Rates> Trends::rates_of(const std::string& neighbour) const {
  if (looks_.size() < 2) return std::nullopt;
  const auto& newest = looks_.back();
  const auto now = newest.neighbours.find(neighbour);
  if (now == newest.neighbours.end()) return std::nullopt;
  for (const auto& look : looks_) {  // an edge may be younger than the window
    const auto old = look.neighbours.find(neighbour);
    if (old == look.neighbours.end()) continue;
    return between(old->second, now->second, newest.time - look.time);
  }
  return std::nullopt;
}

}  // namespace starling::node::terminal
