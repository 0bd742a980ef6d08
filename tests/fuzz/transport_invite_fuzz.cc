// Invites: what parses prints to the same text, but for case and blanks around it.
#include "transport/invite.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling::transport;
  const auto invite = parse_invite({reinterpret_cast<const char*>(data), size});
  if (!invite) return 0;
  if (invite->issuer.empty() || invite->issuer.size() > limits::kMaxAdvertised) std::abort();
  const auto text = print_invite(*invite);
  if (text.size() > kMaxInviteText) std::abort();
  const auto again = parse_invite(text);
  if (!again || *again != *invite) std::abort();
  return 0;
}
