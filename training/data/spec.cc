#include "training/data/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace starling::training {

namespace {

constexpr std::string_view kForms =
    "fashion-mnist, idx:DIR, cifar10:DIR, synthetic, a folder of class folders, or tar shards "
    "(x-{000..012}.tar), or packed:FILE";

// Debian's package dataset-fashion-mnist installs here.
constexpr std::string_view kFashionMnist = "/usr/share/datasets/fashion-mnist";

// A path longer than this is a mistake; PATH_MAX of Linux.
constexpr std::size_t kMaxText = 4'096;

std::unexpected<Error> bad_spec(std::string_view text, std::string_view what) {
  std::string detail = "data '";
  detail += text.substr(0, 200);
  detail += "': ";
  detail += what;
  return fail(Errc::bad_config, Doing::parsing_arguments, std::move(detail));
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Bounds {
  std::string_view key;
  std::uint32_t SyntheticOptions::* field;
  std::uint32_t min;
  std::uint32_t max;
};

constexpr Bounds kSyntheticKeys[] = {
    {"classes", &SyntheticOptions::classes, 2, 65'536},
    {"size", &SyntheticOptions::size, 4, 1'024},
    {"channels", &SyntheticOptions::channels, 1, 3},
    {"train", &SyntheticOptions::train, 1, 100'000'000},
    {"val", &SyntheticOptions::val, 0, 100'000'000},
};

// One `key=value` of `synthetic:`; says what is wrong, or nothing.
std::string set_synthetic(SyntheticOptions& options, std::string_view key, std::string_view value) {
  if (key == "noise") {
    const auto noise = number<float>(value);
    if (!noise || !std::isfinite(*noise) || *noise < 0 || *noise > 1) {
      return "noise is a number from 0 to 1, not '" + std::string(value) + "'";
    }
    options.noise = *noise;
    return {};
  }
  for (const Bounds& bounds : kSyntheticKeys) {
    if (bounds.key != key) continue;
    const auto count = number<std::uint32_t>(value);
    if (!count || *count < bounds.min || *count > bounds.max) {
      return std::string(key) + " is a number from " + std::to_string(bounds.min) + " to " +
             std::to_string(bounds.max) + ", not '" + std::string(value) + "'";
    }
    if (key == "channels" && *count == 2) return "channels is 1 or 3";
    options.*(bounds.field) = *count;
    return {};
  }
  return "unknown key '" + std::string(key) +
         "'; known are classes, size, channels, train, val, noise";
}

Result<DataSpec> parse_synthetic(DataSpec spec, std::string_view rest) {
  spec.kind = DataKind::synthetic;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return bad_spec(spec.text, "write synthetic:key=value,key=value");
    }
    const std::string wrong =
        set_synthetic(spec.synthetic, item.substr(0, equals), item.substr(equals + 1));
    if (!wrong.empty()) return bad_spec(spec.text, wrong);
  }
  return spec;
}

// Appends the names that one pattern with at most one `{first..last}` stands for.
Result<void> expand(std::string_view text, std::string_view pattern,
                    std::vector<std::filesystem::path>& out) {
  const auto too_many = [text] {
    return bad_spec(text, "more than " + std::to_string(kMaxShards) + " shards");
  };
  if (out.size() == kMaxShards) return too_many();
  const std::size_t open = pattern.find('{');
  const std::size_t close = pattern.find('}');
  if (open == std::string_view::npos && close == std::string_view::npos) {
    out.emplace_back(pattern);
    return {};
  }
  constexpr std::string_view kRange =
      "a range of shards is written {first..last}, as in {000..012}";
  if (open == std::string_view::npos || close == std::string_view::npos || close < open ||
      pattern.find('{', open + 1) != std::string_view::npos ||
      pattern.find('}', close + 1) != std::string_view::npos) {
    return bad_spec(text, kRange);
  }
  const std::string_view range = pattern.substr(open + 1, close - open - 1);
  const std::size_t dots = range.find("..");
  if (dots == std::string_view::npos) return bad_spec(text, kRange);
  const std::string_view first_text = range.substr(0, dots);
  const auto first = number<std::uint64_t>(first_text);
  const auto last = number<std::uint64_t>(range.substr(dots + 2));
  if (!first || !last) return bad_spec(text, kRange);
  if (*last < *first) return bad_spec(text, "the last shard comes before the first");
  if (*last - *first >= kMaxShards - out.size()) return too_many();
  for (std::uint64_t shard = *first;; ++shard) {
    std::string digits = std::to_string(shard);
    if (digits.size() < first_text.size()) digits.insert(0, first_text.size() - digits.size(), '0');
    std::string name(pattern.substr(0, open));
    name += digits;
    name += pattern.substr(close + 1);
    out.emplace_back(std::move(name));
    if (shard == *last) return {};
  }
}

Result<DataSpec> parse_tar(DataSpec spec) {
  spec.kind = DataKind::tar;
  std::string_view rest = spec.text;
  while (!rest.empty()) {
    const std::string_view pattern = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), pattern.size() + 1));
    if (pattern.empty()) return bad_spec(spec.text, "an empty name between commas");
    TRY_VOID(expand(spec.text, pattern, spec.paths));
  }
  return spec;
}

}  // namespace

Result<DataSpec> parse_data_spec(std::string_view text) {
  DataSpec spec{.kind = DataKind::folder, .text = std::string(text), .paths = {}, .synthetic = {}};
  if (text.empty()) return bad_spec(text, "write " + std::string(kForms));
  if (text.size() > kMaxText) return bad_spec(text, "longer than 4,096 characters");
  if (text.find('\0') != std::string_view::npos) return bad_spec(text, "holds a zero byte");

  if (text == "fashion-mnist") {
    spec.kind = DataKind::idx;
    spec.paths.emplace_back(kFashionMnist);
    return spec;
  }
  if (text == "synthetic") return parse_synthetic(std::move(spec), {});
  if (text.starts_with("synthetic:")) return parse_synthetic(std::move(spec), text.substr(10));
  for (const auto& [prefix, kind] : {std::pair{std::string_view("idx:"), DataKind::idx},
                                     std::pair{std::string_view("cifar10:"), DataKind::cifar10},
                                     std::pair{std::string_view("packed:"), DataKind::packed}}) {
    if (!text.starts_with(prefix)) continue;
    const std::string_view path = text.substr(prefix.size());
    if (path.empty()) return bad_spec(text, "its path is missing: " + std::string(kForms));
    spec.kind = kind;
    spec.paths.emplace_back(path);
    return spec;
  }
  if (text.ends_with(".tar")) return parse_tar(std::move(spec));
  if (text.ends_with(".tar.gz") || text.ends_with(".tgz") || text.ends_with(".tar.zst")) {
    return bad_spec(text, "compressed archives cannot be read in any order; unpack it to a .tar");
  }
  spec.paths.emplace_back(text);
  return spec;
}

}  // namespace starling::training
