// Signing and checking signatures, as ports: who holds the key and which curve it is on is
// transport's business.
//
// A signature covers a domain (a short constant text that says what kind of statement this is) and
// the bytes, so a signature made for one purpose proves nothing for another.
#pragma once

#include "node/base/bytes.h"
#include "node/base/ids.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace starling {

struct Signature {
  std::array<std::byte, 64> bytes{};

  friend bool operator==(const Signature&, const Signature&) = default;

  [[nodiscard]] ByteView view() const { return bytes; }

  // A signature of exactly 64 bytes; nothing for any other length.
  [[nodiscard]] static std::optional<Signature> from(ByteView view) {
    if (view.size() != 64) return std::nullopt;
    Signature signature;
    std::copy(view.begin(), view.end(), signature.bytes.begin());
    return signature;
  }
};

// The longest domain text.
inline constexpr std::size_t kMaxSigningDomain = 64;

// Signs as this node.
class Signer {
 public:
  virtual ~Signer() = default;

  // The public key that verifies what this signer signs.
  [[nodiscard]] virtual NodeId id() const = 0;

  // A signature over (domain, message) that `Verifier::verify` accepts for id().
  //
  // Rule:    domain is a constant of the program, 1 to kMaxSigningDomain characters, one for each
  //          kind of statement ("starling/member/1").
  // Cost:    12 us on one core for short messages.
  // Thread:  any.
  [[nodiscard]] virtual Signature sign(std::string_view domain, ByteView message) const = 0;
};

enum class Verdict : std::uint8_t {
  valid,
  invalid,  // the signature does not belong to these bytes, this domain and this key
};

// Checks signatures of any node. Stateless.
class Verifier {
 public:
  virtual ~Verifier() = default;

  // Cost:    34 us on one core for short messages.
  // Thread:  any.
  [[nodiscard]] virtual Verdict verify(const NodeId& signer, std::string_view domain,
                                       ByteView message, const Signature& signature) const = 0;
};

}  // namespace starling
