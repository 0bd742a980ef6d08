// A certificate of those who are said to have had a part, as they would have signed it.
#pragma once

#include "gossip/consensus/certificate.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <algorithm>

namespace starling::gossip::consensus::testing {

// Puts the participants into order and has each sign all that is in the certificate by now.
inline void sign_by_participants(Certificate& certificate) {
  std::ranges::sort(certificate.participants);
  for (const auto& id : certificate.participants) {
    HashSignature statement{
        {{}, certificate.epoch}, {}, claim_of(certificate), certificate.hash, {}};
    sign(statement, FakeSigner(id), certificate.fingerprint);
    certificate.signatures.push_back(statement.signature);
  }
}

}  // namespace starling::gossip::consensus::testing
