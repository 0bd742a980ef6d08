#include "tests/net/link.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

namespace starling::lab {
namespace {

constexpr std::size_t kEthernetHeader = 14;

struct Field {
  std::string_view name;
  double LinkFaults::* member;
  double most;
};
constexpr std::array kFields{
    Field{"delay_ms", &LinkFaults::delay_ms, 60'000},
    Field{"jitter_ms", &LinkFaults::jitter_ms, 60'000},
    Field{"loss", &LinkFaults::loss, 1},
    Field{"duplicate", &LinkFaults::duplicate, 1},
    Field{"reorder", &LinkFaults::reorder, 1},
    Field{"corrupt", &LinkFaults::corrupt, 1},
    Field{"rate_kbit", &LinkFaults::rate_kbit, 1e8},
    Field{"queue_ms", &LinkFaults::queue_ms, 60'000},
};

Duration milliseconds_of(double ms) { return Duration(static_cast<std::int64_t>(ms * 1'000)); }

}  // namespace

Result<void> set_fault(LinkFaults& faults, std::string_view name, std::string_view value) {
  const auto refuse = [&](const std::string& expected) {
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                std::string(name) + "=" + std::string(value) + ": expected " + expected);
  };
  double number = 0;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (problem != std::errc{} || end != value.data() + value.size()) return refuse("a number");
  if (name == "cut" || name == "paused") {
    if (number != 0 && number != 1) return refuse("0 or 1");
    (name == "cut" ? faults.cut : faults.paused) = number == 1;
    return {};
  }
  const auto* field = std::ranges::find(kFields, name, &Field::name);
  if (field == kFields.end()) return refuse("a fault that there is");
  if (!(number >= 0 && number <= field->most)) return refuse("0 to " + std::to_string(field->most));
  faults.*field->member = number;
  return {};
}

std::vector<Passing> Link::set(TimePoint now, const LinkFaults& faults, Rng& rng) {
  faults_ = faults;
  std::vector<Passing> released;
  if (faults_.paused) return released;
  for (Frame& frame : std::exchange(held_, {}))
    std::ranges::move(pass(now, std::move(frame), rng), std::back_inserter(released));
  return released;
}

TimePoint Link::due_of(TimePoint sent, Rng& rng) const {
  if (rng.chance(faults_.reorder)) return sent;
  const double ms = faults_.delay_ms + (2 * rng.unit() - 1) * faults_.jitter_ms;
  return sent + milliseconds_of(std::max(0.0, ms));
}

std::vector<Passing> Link::pass(TimePoint now, Frame frame, Rng& rng) {
  std::vector<Passing> out;
  if (faults_.cut || rng.chance(faults_.loss)) return out;
  if (faults_.paused) {
    if (held_.size() < kMaxHeld) held_.push_back(std::move(frame));
    return out;
  }
  TimePoint sent = now;
  if (faults_.rate_kbit > 0) {
    const TimePoint begin = std::max(now, free_at_);
    if (begin - now > milliseconds_of(faults_.queue_ms)) return out;
    sent = begin + milliseconds_of(static_cast<double>(frame.size()) * 8 / faults_.rate_kbit);
    free_at_ = sent;
  }
  if (frame.size() > kEthernetHeader && rng.chance(faults_.corrupt)) {
    const auto at = kEthernetHeader + rng.below(frame.size() - kEthernetHeader);
    frame[at] ^= static_cast<std::byte>(1 + rng.below(255));
  }
  if (rng.chance(faults_.duplicate)) out.push_back({due_of(sent, rng), frame});
  out.push_back({due_of(sent, rng), std::move(frame)});
  return out;
}

}  // namespace starling::lab
