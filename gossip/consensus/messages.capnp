@0x8344a8bc63923dce;
# The final consensus on the wire: message types 0x0301 to 0x030f. Structs only.
#
# Who speaks first: anyone whose progress reached the budget, or who was told to finish, signs a
# Finish of epoch 1 and sends it over all its sessions.
#
# Statements (Finish, Participants, HashSignature, Refusal, Acknowledge, MergeRequest, MergeAbort)
# carry their signer and a signature. Everybody forwards a statement that is new to it, once, to all
# its sessions but the one it came from; on a new session both sides repeat all statements of their
# epoch. Two different statements of one signer, kind and epoch become an Equivocation, forwarded the same
# way; it excludes the signer at everybody. So a statement may come twice and in any order relative to those of other signers; on one
# session it never comes before what its signer said earlier. A signature covers a domain text, the
# fingerprint of the swarm's settings and every field.
#
# Where only the admin may end the run, whoever takes part or follows by command states the admin's order
# in its Finish: an Ed25519 signature of the admin under "starling/finish-order/1" over swarm id (32) and
# fingerprint (32). Only a node that knows of no end yet checks it, and leaves a Finish by command without
# it alone; a Finish by budget, and one to follow by a node without a model, have none.
#
# Everything else goes between two neighbours of a chunk's tree (Exponents, Sum, Contribution,
# ResultChunk) or between two nodes with a session (ChunkRequest, Chunk, CertificateMessage). It may be
# repeated after a reconnect, and a second after the receiver had no room for it; the receiver ignores
# what it has.
#
# Bulk bytes are attachments: exponents (one byte a block, 0 to 254), sums (packed two's complement
# integers, lowest bit first, of 25 + ceil(log2 of the weights in the sum) bits for parameters and 31 + the same for
# statistics; 64 for counters), results (fp32, or int64 for counters, little-endian; a ResultChunk of
# parameters under the mean rule: one exponent a block, then the integers x* 2^(24 - e) packed in 25 bits
# each, from which the receiver makes the fp32 values that the hash is of). Their exact size follows from the model's manifest, the chunk and
# the agreed set; any other size is refused. A certificate's attachment is n participants of 32 bytes, n
# signatures of 64 bytes, then the chunk hashes of 32 bytes.
#
# A receiver must check: every count against its maximum, every id and hash for its length, ids for
# ascending order, enumerations for known values, the epoch for 1 to 12, the signature.
#
# Versions: fields are added at the end; a receiver ignores those it does not know. A field that changes
# the arithmetic changes the codec version in the settings fingerprint instead.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("starling::gossip::consensus::wire");

struct Round {
  kind @0 :UInt8;    # 0 final consensus, 1 merge
  number @1 :UInt64; # 0 for the final consensus
  epoch @2 :UInt64;  # 1 to 12
}

struct Finish {
  round @0 :Round;
  revision @1 :UInt32;
  signer @2 :Data;
  fingerprint @3 :Data;
  reason @4 :UInt8;  # 0 budget, 1 command
  role @5 :UInt8;    # 0 participant, 1 follower
  rule @6 :UInt8;    # 0 mean, 1 median, 2 trimmed mean
  weight @7 :UInt32; # 1 to 2^20
  samples @8 :UInt64;
  sessions @9 :Data; # ids, ascending, at most 128
  signature @10 :Data;
  order @11 :Data;   # empty, or the admin's signature of 64 bytes; under the signer's signature if there
}

struct Participants {
  round @0 :Round;
  signer @1 :Data;
  count @2 :UInt32; # 1 to 4,096
  set @3 :Data;     # hash over the sorted ids with weights, rule and samples
  graph @4 :Data;   # hash over the sessions among them
  signature @5 :Data;
}

struct Exponents {
  round @0 :Round;
  chunk @1 :UInt32;
  direction @2 :UInt8; # 0 up, 1 down
}

struct Sum {
  round @0 :Round;
  chunk @1 :UInt32;
}

struct Contribution {
  round @0 :Round;
  chunk @1 :UInt32;
  origin @2 :Data;
}

struct ResultChunk {
  round @0 :Round;
  chunk @1 :UInt32;
  hash @2 :Data;      # tree hash of the values in fp32, or int64 (node/base/tree_hash.h)
  signature @3 :Data; # by the chunk's root
}

struct HashSignature {
  round @0 :Round;
  signer @1 :Data;
  claim @2 :Data; # hash over participants, samples, model name and the agreed set
  hash @3 :Data;  # BLAKE2b-256(manifest | chunk hashes), which are tree hashes
  signature @4 :Data;
}

struct Refusal {
  round @0 :Round;
  signer @1 :Data;
  reason @2 :UInt8; # 0 sanity, 1 own replica not finite, 2 malformed bytes of a neighbour
  rule @3 :UInt8;   # of the refused epoch
  chunk @4 :UInt32;
  accused @5 :Data;
  signature @6 :Data;
}

struct Equivocation {
  kind @0 :UInt8; # 0: the two participants, 1: the two hashes
  firstParticipants @1 :Participants;
  secondParticipants @2 :Participants;
  firstHash @3 :HashSignature;
  secondHash @4 :HashSignature;
}

struct CertificateMessage {
  epoch @0 :UInt64;
  fingerprint @1 :Data;
  hash @2 :Data;
  set @3 :Data;
  participants @4 :UInt32; # how many are in the attachment
  samples @5 :UInt64;
  model @6 :Data;          # at most 64 bytes of text
  manifest @7 :Data;
  chunks @8 :UInt32;       # how many hashes are in the attachment
}

struct ChunkRequest {
  round @0 :Round;
  chunk @1 :UInt32;
  hash @2 :Data; # zero: this epoch's result
}

struct Chunk {
  chunk @0 :UInt32;
  hash @1 :Data;
}

struct Acknowledge {
  round @0 :Round;
  signer @1 :Data;
  hash @2 :Data;
  signature @3 :Data;
}

struct MergeRequest {
  number @0 :UInt64; # random, not 0
  signer @1 :Data;
  signature @2 :Data;
}

struct MergeAbort {
  number @0 :UInt64;
  signer @1 :Data;
  reason @2 :Data; # at most 200 bytes of text
  signature @3 :Data;
}
