// Invites: what parses prints to the same text, but for case and blanks around it. An input is
// taken as a text, and as the bytes of an invite before its checksum.
#include "node/base/bytes.h"
#include "node/base/hash.h"
#include "transport/invite.h"

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

namespace {

using namespace starling;
using namespace starling::transport;

// The checksum would stop every change: it is made right, as an author of bad invites would.
std::string text_of(ByteView body) {
  constexpr std::string_view kDigits = "abcdefghijklmnopqrstuvwxyz234567";
  constexpr std::size_t kChecksum = 4;
  const auto hash = Hasher{}.add(std::string_view("starling/invite/1")).add(body).finish();
  Bytes bytes = to_bytes(body);
  ByteWriter(bytes).append(hash.view().first(kChecksum));
  std::string text(kInvitePrefix);
  unsigned bits = 0;
  unsigned kept = 0;
  for (const auto byte : bytes) {
    bits = (bits << 8U) | std::to_integer<unsigned>(byte);
    for (kept += 8; kept >= 5; kept -= 5) text += kDigits[(bits >> (kept - 5)) & 31U];
  }
  if (kept > 0) text += kDigits[(bits << (5 - kept)) & 31U];
  return text;
}

void try_text(std::string_view given) {
  const auto invite = parse_invite(given);
  if (!invite) return;
  if (invite->issuer.empty() || invite->issuer.size() > limits::kMaxAdvertised) std::abort();
  const auto text = print_invite(*invite);
  if (text.size() > kMaxInviteText) std::abort();
  const auto again = parse_invite(text);
  if (!again || *again != *invite) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try_text(as_text(bytes));
  if (size <= kMaxInviteText) try_text(text_of(bytes));
  return 0;
}
