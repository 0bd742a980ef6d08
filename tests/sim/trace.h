// The trace of a run: a hash over everything that happened, and its lines where somebody reads
// them.
#pragma once

#include "node/base/bytes.h"
#include "node/base/clock.h"

#include <cstdint>
#include <ostream>
#include <string>

namespace starling::sim {

// Two runs of one seed have the same hash, whatever compiled them; the first line in which two
// traces differ is where they part.
//
// Owned by the world. Cost: a few nanoseconds for eight bytes; lines only with a stream.
class Trace {
 public:
  // `out`: where lines go; null: nowhere. Outlives the trace.
  explicit Trace(std::ostream* out) : out_(out) {}

  void mix(std::uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15ULL;
    hash_ ^= hash_ >> 29;
  }
  void mix(ByteView bytes);
  void mix(std::string_view text) { mix(as_bytes(text)); }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  [[nodiscard]] bool wanted() const { return out_ != nullptr; }
  // One line: time, who, what. Not part of the hash.
  void line(TimePoint now, std::string_view who, const std::string& what);

 private:
  std::ostream* out_;
  std::uint64_t hash_ = 0x5354415253494d31ULL;
};

}  // namespace starling::sim
