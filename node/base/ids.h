// Strong types for everything that is compared, counted or looked up by identity.
#pragma once

#include "node/base/bytes.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace starling {

// 32 bytes with a meaning given by Tag: ordered bytewise, hashable, printable.
template <class Tag>
struct Id32 {
  std::array<std::byte, 32> bytes{};

  friend auto operator<=>(const Id32& a, const Id32& b) {
    return std::lexicographical_compare_three_way(a.bytes.begin(), a.bytes.end(), b.bytes.begin(),
                                                  b.bytes.end());
  }
  friend bool operator==(const Id32&, const Id32&) = default;

  [[nodiscard]] ByteView view() const { return bytes; }
  [[nodiscard]] bool is_zero() const { return *this == Id32{}; }

  // An id of exactly 32 bytes; nothing for any other length.
  [[nodiscard]] static std::optional<Id32> from(ByteView view) {
    if (view.size() != 32) return std::nullopt;
    Id32 id;
    std::copy(view.begin(), view.end(), id.bytes.begin());
    return id;
  }

  // An id of exactly 64 hexadecimal digits, of either case; nothing for any other text.
  [[nodiscard]] static std::optional<Id32> from_hex(std::string_view text) {
    if (text.size() != 64) return std::nullopt;
    const auto raw = starling::from_hex(text);
    return raw ? from(*raw) : std::nullopt;
  }

  friend std::ostream& operator<<(std::ostream& out, const Id32& id) {
    return out << to_hex(id.view());
  }
};

// A node: its Ed25519 public key.
using NodeId = Id32<struct NodeIdTag>;
// A swarm: see design section 1.
using SwarmId = Id32<struct SwarmIdTag>;
// BLAKE2b-256 of something.
using Hash = Id32<struct HashTag>;

// The first eight hexadecimal digits: what logs and tables show of a node.
template <class Tag>
[[nodiscard]] std::string short_form(const Id32<Tag>& id) {
  return to_hex(id.view().first(4));
}

// Two words derived from the key, the name of a node that was given none ("mossy-otter").
[[nodiscard]] std::string default_name(const NodeId& id);

// A 64-bit number with a meaning given by Tag: ordered, counts upwards.
template <class Tag>
struct Number {
  std::uint64_t value = 0;

  friend auto operator<=>(const Number&, const Number&) = default;
  [[nodiscard]] Number next() const { return {value + 1}; }
  friend std::ostream& operator<<(std::ostream& out, const Number& n) { return out << n.value; }
};

using Seq = Number<struct SeqTag>;                  // exchange on an edge since it was opened
using Generation = Number<struct GenerationTag>;    // opening or reset of an edge
using Incarnation = Number<struct IncarnationTag>;  // life of a member record
using Instance = Number<struct InstanceTag>;        // random per process
using Epoch = Number<struct EpochTag>;              // try of the final consensus

// The two ends of an edge, sorted.
struct EdgeEnds {
  NodeId lower;
  NodeId higher;

  friend auto operator<=>(const EdgeEnds&, const EdgeEnds&) = default;

  [[nodiscard]] static EdgeEnds of(const NodeId& a, const NodeId& b) {
    return a < b ? EdgeEnds{a, b} : EdgeEnds{b, a};
  }
};

// An edge: its sorted ends and how often it was opened (rulings 9).
struct EdgeId {
  EdgeEnds ends;
  Generation generation;

  friend auto operator<=>(const EdgeId&, const EdgeId&) = default;
};

}  // namespace starling

template <class Tag>
struct std::hash<starling::Id32<Tag>> {
  // Ids are public keys or hashes: their first bytes are as good as random, but an attacker can
  // choose them; tables keyed by peers' ids are bounded (16,384), so a flood costs time, not
  // memory.
  std::size_t operator()(const starling::Id32<Tag>& id) const noexcept {
    std::size_t value = 0;
    std::memcpy(&value, id.bytes.data() + 8, sizeof(value));
    return value;
  }
};
