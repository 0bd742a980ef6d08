#include "tests/sim/trace.h"

#include <array>
#include <cstring>
#include <iomanip>

namespace starling::sim {

void Trace::mix(ByteView bytes) {
  mix(static_cast<std::uint64_t>(bytes.size()));
  while (!bytes.empty()) {
    std::array<std::byte, 8> word{};
    const auto part = bytes.first(std::min(bytes.size(), word.size()));
    std::memcpy(word.data(), part.data(), part.size());
    std::uint64_t value = 0;
    std::memcpy(&value, word.data(), word.size());
    mix(value);
    bytes = bytes.subspan(part.size());
  }
}

void Trace::line(TimePoint now, std::string_view who, const std::string& what) {
  if (out_ == nullptr) return;
  const auto since = now - TimePoint(std::chrono::hours(1));
  *out_ << std::fixed << std::setprecision(6) << std::setw(11) << seconds(since) << "  "
        << std::left << std::setw(6) << who << std::right << "  " << what << '\n';
}

}  // namespace starling::sim
