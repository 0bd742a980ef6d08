// The texts of configuration values: sizes, durations, numbers, words of a fixed set.
//
// Every parse_ function returns the value, or a phrase that says what would be right ("a duration
// such as 90s, 5m or 2h"); the caller adds the key and the value. Every show_ function writes a
// text that its parse_ function reads back to the same value.
#pragma once

#include "node/base/clock.h"
#include "node/config/config.h"

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace starling::node {

template <class T>
using Parsed = std::expected<T, std::string>;

// "90s", "5m", "2h", "250ms", "1d", "1h30m"; "0" alone is zero. At most 100 years.
[[nodiscard]] Parsed<Duration> parse_duration(std::string_view text);
[[nodiscard]] std::string show_duration(Duration duration);

// A whole number in [low, high]; "_" and spaces are not digits.
[[nodiscard]] Parsed<std::uint64_t> parse_count(std::string_view text, std::uint64_t low,
                                                std::uint64_t high);

// A finite decimal number in [low, high].
[[nodiscard]] Parsed<double> parse_number(std::string_view text, double low, double high);
[[nodiscard]] std::string show_number(double value);

// true, false, yes, no, on, off, 1, 0.
[[nodiscard]] Parsed<bool> parse_switch(std::string_view text);

// "samples=240000", "epochs=18", "steps=100", "time=2h"; sizes of samples may say 240k or 1.2M.
[[nodiscard]] Parsed<Until> parse_until(std::string_view text);
[[nodiscard]] std::string show_until(const Until& until);

// "160@0.4,192@0.8": images of 160 pixels a side up to 40 % of the budget, then of 192 up to 80 %;
// sides and shares (in thousandths) grow, at most 5 stages, so that the text is short. "off" is
// none.
[[nodiscard]] Parsed<std::vector<training::ImageStage>> parse_resize(std::string_view text);
[[nodiscard]] std::string show_resize(const std::vector<training::ImageStage>& stages);

// What a listening or dialled address must look like, without resolving it: "HOST:PORT" or
// "[V6]:PORT"; a host may be empty when listening.
[[nodiscard]] Parsed<std::string> parse_address(std::string_view text);

// The candidate that is closest to `word` in edits, if it is close enough to be a slip of the
// fingers; empty otherwise.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       std::span<const std::string_view> candidates);
// The same as the end of a sentence: "; did you mean X?", or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view word,
                                       std::span<const std::string_view> candidates);

}  // namespace starling::node
