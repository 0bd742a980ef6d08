// The certificate of a final consensus: hashes, and whether one is genuine.
#pragma once

#include "gossip/consensus/messages.h"
#include "gossip/consensus/session_graph.h"
#include "node/base/ids.h"
#include "node/base/result.h"
#include "node/base/signing.h"

#include <span>

namespace starling::gossip::consensus {

// h = BLAKE2b(manifest | chunk hashes): every byte of the model is hashed once (rulings 38), a
// chunk as a tree (tree_hash.h).
[[nodiscard]] Hash model_hash(const Hash& manifest, std::span<const Hash> chunks);

// What participants sign beside h: the agreed set, who is in it, samples and the model's name.
[[nodiscard]] Hash claim_of(const Certificate& certificate);

// Whether every participant signed this hash, for these settings.
//
// Errors:  settings_mismatch (another fingerprint), bad_message (no participants, not sorted, not
//          one signature each), bad_signature (the first id whose signature is wrong).
// Cost:    35 us a participant.
[[nodiscard]] Result<void> verify(const Certificate& certificate, const Hash& fingerprint,
                                  const Verifier& verifier);

// Whether `one` counts where somebody may choose: more participants, of as many the lower hash. So
// all who see both end with the same one, whichever came first.
[[nodiscard]] bool outranks(const Certificate& one, const Certificate& other);

// verify(), and whether the chunk hashes are the ones behind the certificate's hash.
//
// Errors:  those of verify(); bad_message where the hashes do not belong to it.
[[nodiscard]] Result<void> verify(const CertificateMessage& message, const Hash& fingerprint,
                                  const Verifier& verifier);

}  // namespace starling::gossip::consensus
