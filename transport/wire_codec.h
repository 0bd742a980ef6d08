// The Cap'n Proto structs of wire.capnp as our own, and back. Every bound of a field is checked
// here.
#pragma once

#include "node/base/bytes.h"
#include "node/base/error.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"
#include "transport/endpoint.h"
#include "transport/member_certificate.h"
#include "transport/session_info.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace starling::transport {

// Who is there; see wire.capnp.
struct Hello {
  NodeId identity;
  Signature signature;
  SwarmId swarm;
  Instance instance;
  Purpose purpose = Purpose::fresh;
  std::string name;
  std::vector<Endpoint> addresses;
  std::optional<CertificateChain> certificate;

  friend bool operator==(const Hello&, const Hello&) = default;
};

// At most limits::kMaxHandshakePayload bytes for a Hello within its limits (a caller's bug
// otherwise).
[[nodiscard]] Bytes encode_hello(const Hello& hello);
// Errors:  bad_message, too_large.
[[nodiscard]] Result<Hello> decode_hello(ByteView payload);

// The goodbye that carries an error; a detail that is too long is cut.
[[nodiscard]] Bytes encode_bye(const Error& why);
// What the peer said, as `closed` for an orderly end, otherwise with the code it named (`refused`
// for a code that we do not know).
//
// Errors:  bad_message, too_large.
[[nodiscard]] Result<Error> decode_bye(ByteView body);

}  // namespace starling::transport
