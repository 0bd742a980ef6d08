// Invite: one string that lets one machine into a swarm, once.
#pragma once

#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/thread.h"
#include "transport/endpoint.h"
#include "transport/limits.h"
#include "transport/noise.h"
#include "transport/secret.h"
#include "transport/task.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace starling::transport {

inline constexpr std::string_view kInvitePrefix = "starling1:";
// Four addresses of the greatest length.
inline constexpr std::size_t kMaxInviteText = 1'024;

// What an invite says. Whoever holds it can use it, so it is as secret as a key until it was used.
struct Invite {
  SwarmId swarm;
  std::vector<Endpoint> issuer;  // where the one node listens that honours it, 1 to 4
  noise::Key key{};              // of this invite alone
  std::uint64_t expires_s = 0;   // of the calendar, seconds since 1970

  friend bool operator==(const Invite&, const Invite&) = default;
};

// Fresh random bytes for an invite's key.
[[nodiscard]] noise::Key make_invite_key();

// "starling1:" and base32 of: version (u8: 1), swarm id (32), key (32), expiry (u64), number of
// addresses (u8), for each the length of the host (u8), the host and the port (u16); then the first
// four bytes of BLAKE2b-256 of all that. Lower case, no padding.
[[nodiscard]] std::string print_invite(const Invite& invite);
// The invite in a text, with blanks around it allowed, in either case.
//
// Errors:  bad_argument, saying what is wrong without repeating the text; version_mismatch.
// Tested:  tests/fuzz/transport_invite_fuzz.cc.
[[nodiscard]] Result<Invite> parse_invite(std::string_view text);

// The open invites of the node that made them. Implemented by the layer above, which keeps them on
// disk and outlives Transport. Thread: io.
class InviteDesk {
 public:
  virtual ~InviteDesk() = default;

  // The key of an invite that was not used and has not expired.
  [[nodiscard]] virtual std::optional<noise::Key> find(const KeyId& id) ON_IO_THREAD = 0;
  // Counts the use. From the call on find() does not know the invite; true when the count is on
  // disk, so that no crash makes a second use of it. False: it was used meanwhile, or the disk
  // failed.
  [[nodiscard]] virtual Task<bool> redeem(KeyId id) = 0;
};

}  // namespace starling::transport
