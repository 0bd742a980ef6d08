// Public test vectors of Noise, read from the two text forms in which they are published.
#pragma once

#include "node/base/bytes.h"

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling::transport {

struct NoiseVectorSide {
  Bytes prologue;
  std::optional<Bytes> own_static;
  std::optional<Bytes> ephemeral;
  std::optional<Bytes> remote_static;
  std::vector<Bytes> psks;
};

struct NoiseVector {
  std::string protocol;
  NoiseVectorSide initiator;
  NoiseVectorSide responder;
  std::optional<Bytes> handshake_hash;
  std::vector<std::pair<Bytes, Bytes>> messages;  // payload, ciphertext
  // Who sends after the handshake: flynn's set starts with the initiator again, the JSON sets go on
  // alternating.
  bool initiator_first_after_handshake = false;
  // flynn's set gives one psk for all psk tokens and leaves out the remote static keys that follow
  // from the other side's.
  bool derive_missing = false;
};

// All vectors of a file whose suite is ours; an empty list if the file has none or is neither form.
[[nodiscard]] std::vector<NoiseVector> read_noise_vectors(const std::filesystem::path& path);

// The files to read: the Debian package's, STARLING_TEST_DATA/noise, STARLING_NOISE_VECTORS.
[[nodiscard]] std::vector<std::filesystem::path> find_noise_vectors();

}  // namespace starling::transport
