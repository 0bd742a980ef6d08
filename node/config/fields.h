// Readers and writers of the fields of Config, by kind: what the rows of keys.cc point to.
#pragma once

#include "node/config/config.h"
#include "node/config/values.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace starling::node::fields {

using Texts = std::span<const std::string>;

// The field Config::*Group::*Member.
template <auto Group, auto Member>
struct Field {
  static auto& of(Config& config) { return (config.*Group).*Member; }
  static const auto& of(const Config& config) { return (config.*Group).*Member; }
  using Type = std::remove_cvref_t<decltype(of(std::declval<Config&>()))>;
};

// "auto" leaves the choice to the program.
inline constexpr std::string_view kAuto = "auto";

template <auto Group, auto Member, std::uint64_t Low, std::uint64_t High>
struct Count : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    const auto value = parse_count(texts.front(), Low, High);
    if (!value) return std::unexpected(value.error());
    Self::of(config) = static_cast<typename Self::Type>(*value);
    return {};
  }
  static std::vector<std::string> show(const Config& config) {
    return {std::to_string(Self::of(config))};
  }
};

template <auto Group, auto Member, std::uint64_t Low, std::uint64_t High>
struct CountOrAuto : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    if (texts.front() == kAuto) {
      Self::of(config).reset();
      return {};
    }
    const auto value = parse_count(texts.front(), Low, High);
    if (!value) return std::unexpected("auto, or " + value.error());
    Self::of(config) = static_cast<typename Self::Type::value_type>(*value);
    return {};
  }
  static std::vector<std::string> show(const Config& config) {
    const auto& value = Self::of(config);
    return {value ? std::to_string(*value) : std::string(kAuto)};
  }
};

// Bounds in thousandths, so that they can be template arguments for every compiler.
template <auto Group, auto Member, std::int64_t LowMilli, std::int64_t HighMilli>
struct Decimal : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static constexpr double kLow = static_cast<double>(LowMilli) / 1'000;
  static constexpr double kHigh = static_cast<double>(HighMilli) / 1'000;
  static constexpr bool kOptional = !std::is_same_v<typename Self::Type, double>;
  static Parsed<void> read(Config& config, Texts texts) {
    if constexpr (kOptional) {
      if (texts.front() == kAuto) {
        Self::of(config).reset();
        return {};
      }
    }
    const auto value = parse_number(texts.front(), kLow, kHigh);
    if (!value) return std::unexpected((kOptional ? "auto, or " : "") + value.error());
    Self::of(config) = *value;
    return {};
  }
  static std::vector<std::string> show(const Config& config) {
    if constexpr (kOptional) {
      const auto& value = Self::of(config);
      return {value ? show_number(*value) : std::string(kAuto)};
    } else {
      return {show_number(Self::of(config))};
    }
  }
};

template <auto Group, auto Member, std::int64_t LowMs, std::int64_t HighMs>
struct Time : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static constexpr Duration kLow = std::chrono::milliseconds(LowMs);
  static constexpr Duration kHigh = std::chrono::milliseconds(HighMs);
  static Parsed<void> read(Config& config, Texts texts) {
    const auto value = parse_duration(texts.front());
    if (!value) return std::unexpected(value.error());
    if (*value < kLow || *value > kHigh)
      return std::unexpected(
          fmt::format("a duration from {} to {}", show_duration(kLow), show_duration(kHigh)));
    Self::of(config) = *value;
    return {};
  }
  static std::vector<std::string> show(const Config& config) {
    return {show_duration(Self::of(config))};
  }
};

// An enum whose values are the words in order.
template <auto Group, auto Member, const auto& Words>
struct Choice : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    for (std::size_t i = 0; i < Words.size(); ++i) {
      if (Words[i] != texts.front()) continue;
      Self::of(config) = static_cast<typename Self::Type>(i);
      return {};
    }
    return std::unexpected(
        fmt::format("one of {}{}", fmt::join(Words, ", "), did_you_mean(texts.front(), Words)));
  }
  static std::vector<std::string> show(const Config& config) {
    return {std::string(Words[static_cast<std::size_t>(Self::of(config))])};
  }
};

template <auto Group, auto Member>
struct Switch : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    const auto value = parse_switch(texts.front());
    if (!value) return std::unexpected(value.error());
    Self::of(config) = *value;
    return {};
  }
  static std::vector<std::string> show(const Config& config) {
    return {Self::of(config) ? "true" : "false"};
  }
};

// A text that a function checks; `Check` takes it and returns it as it shall be kept.
template <auto Group, auto Member, Parsed<std::string> (*Check)(std::string_view)>
struct Text : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    auto value = Check(texts.front());
    if (!value) return std::unexpected(value.error());
    Self::of(config) = std::move(*value);
    return {};
  }
  static std::vector<std::string> show(const Config& config) { return {Self::of(config)}; }
};

template <auto Group, auto Member, Parsed<std::string> (*Check)(std::string_view)>
struct List : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    std::vector<std::string> values;
    for (const auto& text : texts) {
      auto value = Check(text);
      if (!value) return std::unexpected(fmt::format("{} (not \"{}\")", value.error(), text));
      values.push_back(std::move(*value));
    }
    Self::of(config) = std::move(values);
    return {};
  }
  static std::vector<std::string> show(const Config& config) { return Self::of(config); }
};

template <auto Group, auto Member>
struct UntilField : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    const auto value = parse_until(texts.front());
    if (!value) return std::unexpected(value.error());
    Self::of(config) = *value;
    return {};
  }
  static std::vector<std::string> show(const Config& config) {
    return {show_until(Self::of(config))};
  }
};

template <auto Group, auto Member>
struct ResizeField : Field<Group, Member> {
  using Self = Field<Group, Member>;
  static Parsed<void> read(Config& config, Texts texts) {
    auto value = parse_resize(texts.front());
    if (!value) return std::unexpected(value.error());
    Self::of(config) = std::move(*value);
    return {};
  }
  static std::vector<std::string> show(const Config& config) {
    return {show_resize(Self::of(config))};
  }
};

}  // namespace starling::node::fields
