@0xc3d1f6a0b7e94215;
using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("starling::gossip::exchange_wire");

# The messages of an edge (room 0x02).
#
# An edge belongs to the two ends of the session that carries the message; nothing here names them.
# Either end may open: normally the one with the lower id does. Two openings that cross: the larger
# generation stands, of equal ones that of the lower id. Whoever gives an open edge up sends EdgeClose
# first: EdgeOpen alone counts as a reset.
#
#   EdgeOpen  ->  EdgeOpenAck | EdgeClose          the reference r is now the same at both ends
#   Offer     ->  Answer | Busy                    one exchange; two offers that cross are one, too
#   Resume   <->  Resume                           first on a new session between the same processes
#   EdgeReset ->  EdgeOpen by the lower id         the generation grows
#   EdgeClose                                      no reply
#
# Order: a session keeps it, but a message with an attachment comes when its last byte did. EdgeClose and
# EdgeReset wait for the attachments before them, so that no answer comes too late. A sequence number is used with one payload a
# side, but for an offer that is void: Busy names it, or the Resume of its receiver says that it did
# not take it. What is sent again is the same payload.
#
# A receiver checks: generation and sequence number against its own state, chain8 (the first eight
# bytes of a hash chain over the payloads of both ends, next_chain() in gossip/delta/replica.h, which
# starts as the tree hash of r), the spot against its own r, the weight (1 to 64 of 128), every number for being finite and
# in range. The attachment of Offer and Answer is a delta at `level`, followed by BatchNorm mean and
# variance exactly when seq mod 16 = 15; that of EdgeOpen in mode snapshot is the replica at L6.
#
# Evolution: fields are appended; a field with a changed meaning is a new major version of the wire.

struct Figures {
  samples @0 :UInt64;   # processed by the sender
  steps @1 :UInt64;     # taken by the sender
  age @2 :Float64;      # steps behind its replica, averaged with the parameters
  unused @3 :Float32;   # older nodes say their loss here
}

struct EdgeOpen {
  generation @0 :UInt64;
  mode @1 :UInt8;       # 0 genesis, 1 snapshot
  reference @2 :Data;   # tree hash of r (node/base/tree_hash.h)
  age @3 :Float64;
  record @4 :Data;      # the proposer's signed member record, at most 512 bytes
}

struct EdgeOpenAck {
  generation @0 :UInt64;
  reference @1 :Data;
  age @2 :Float64;
}

struct Offer {
  generation @0 :UInt64;
  seq @1 :UInt64;
  chain8 @2 :UInt64;
  attempt @3 :UInt64;   # counts the offers that the sender made on this generation
  level @4 :UInt8;      # 0 to 6
  statistics @5 :UInt8; # 0 without, 1 with
  purpose @6 :UInt8;    # 0 regular, 1 leave
  figures @7 :Figures;
  expectedWait @8 :Float32;  # steps of the sender until it has the answer
  spotBlock @9 :UInt32;
  spotHash @10 :Data;
}

struct Answer {
  generation @0 :UInt64;
  seq @1 :UInt64;
  chain8 @2 :UInt64;
  level @3 :UInt8;
  statistics @4 :UInt8;
  weight @5 :UInt8;     # of 128: 1 to 64
  figures @6 :Figures;
}

struct Busy {
  generation @0 :UInt64;
  seq @1 :UInt64;
  offer @2 :Data;       # hash over the header of the void offer
  retryMs @3 :UInt32;
}

struct Resume {
  generation @0 :UInt64;
  seq @1 :UInt64;
  chain8 @2 :UInt64;
  pending @3 :UInt8;    # 0 none, 1 an offer waits for its answer
}

struct EdgeReset {
  generation @0 :UInt64;  # the new one
  reason @1 :UInt8;
}

struct EdgeClose {
  generation @0 :UInt64;  # and all before
  reason @1 :UInt8;
}
