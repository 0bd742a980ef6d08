// One valid message of every kind, for round trips and mutations.
#pragma once

#include "gossip/consensus/messages.h"
#include "node/base/hash.h"
#include "tests/gossip/consensus/fake_signing.h"

#include <algorithm>
#include <vector>

namespace starling::gossip::consensus::testing {

inline std::vector<ConsensusMessage> sample_messages() {
  const Hash hash = hash_of(as_bytes("hash"));
  const FakeSigner signer(node_id(1));
  const RoundId round{{}, Epoch{3}};
  const RoundId merge{{RunKind::merge, 99}, Epoch{1}};
  std::vector<NodeId> ids{node_id(2), node_id(3), node_id(4)};
  std::ranges::sort(ids);
  const auto bytes = share(to_bytes(as_bytes("0123456789")));

  Finish finish{.round = round,
                .revision = 2,
                .signer = {},
                .fingerprint = hash,
                .sessions = ids,
                .signature = {}};
  finish.reason = FinishReason::command;
  finish.rule = Rule::median;
  finish.weight = kMaxWeight;
  finish.samples = 123456789012345;
  sign(finish, signer, hash);
  auto ordered_finish = finish;
  ordered_finish.order = signer.sign("starling/finish-order/1", hash.view());
  sign(ordered_finish, signer, hash);
  Participants participants{round, {}, 3, hash, hash, {}};
  sign(participants, signer, hash);
  auto other_participants = participants;
  other_participants.count = 4;
  sign(other_participants, signer, hash);
  HashSignature signature{round, {}, hash, hash, {}};
  sign(signature, signer, hash);
  auto other_signature = signature;
  other_signature.hash = {};
  sign(other_signature, signer, hash);
  Refusal refusal{round, {}, RefusalReason::not_finite, Rule::median, 7, node_id(5), {}};
  sign(refusal, signer, hash);
  ResultChunk result{round, 4, hash, {}, bytes};
  sign(result, signer, hash);
  Acknowledge acknowledge{round, {}, hash, {}};
  sign(acknowledge, signer, hash);
  MergeRequest request{99, {}, {}};
  sign(request, signer, hash);
  MergeAbort abort{99, {}, "a node died", {}};
  sign(abort, signer, hash);
  CertificateMessage certificate;
  certificate.certificate = {.epoch = Epoch{2},
                             .fingerprint = hash,
                             .hash = hash,
                             .set = hash,
                             .participants = ids,
                             .signatures = std::vector<Signature>(3, refusal.signature),
                             .samples = 42,
                             .model = "resnet50"};
  certificate.manifest = hash;
  certificate.chunks = {hash, Hash{}, hash};
  return {finish,
          participants,
          Exponents{round, 4, Direction::down, bytes},
          Sum{merge, 4, bytes},
          Contribution{round, 4, node_id(6), bytes},
          result,
          signature,
          refusal,
          Equivocation{round, std::pair(participants, other_participants)},
          Equivocation{round, std::pair(signature, other_signature)},
          certificate,
          ChunkRequest{round, 4, hash},
          Chunk{4, hash, bytes},
          acknowledge,
          request,
          abort,
          ordered_finish};
}

}  // namespace starling::gossip::consensus::testing
