@0xd81f6c3b5a72e904;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("starling::bootstrap::bootstrap_wire");

# How a node becomes a member with a model (room 0x04).
#
# Both sides of a session say Hello at once, before anything else of this room, and again whenever
# what it says has changed much (other settings, another phase) or after 30 seconds. From the pair
# (the last Hello it sent, the last it received) each side decides alone who adopts whose settings;
# the two decisions mirror each other, but for this: a side believes `alive` of the other only as
# far as its own membership shows such members, and adopts when it does; and one that has tried
# others lately waits before it does so again. Whoever adopts says Hello again with the new settings.
#
# A node that needs a model sends StateRequest to a sponsor with the same settings. The answer is
# StateManifest (after a pause: the sponsor copies and hashes its model first) or StateRefused. The
# manifest's id is the hash of its fields; a snapshot is that very sequence of bytes, so chunks of
# it may come from every node that holds it: StateRequest with the id asks for that. Each
# ChunkRequest is answered by one Chunk, in any order; a Chunk without attachment says that the
# snapshot is gone. StateDone ends the transfer.
#
# DialBackRequest asks the peer to open a connection to the address from which it sees this session
# and the given port; DialBackReply says how that went.
#
# A receiver must check: that sizes and number of chunks fit each other and the model that the
# settings describe, before anything is kept; the hash of every chunk; that it asked for what comes.
#
# Evolution: fields are added at the end and never reused.

struct Hello {
  settings @0 :Data;          # canonical text of the settings
  forced @1 :List(Data);      # keys that a person chose, ascending
  alive @2 :UInt64;
  samples @3 :UInt64;
  age @4 :Float64;            # 0 to 1e15, as in an offer of the exchange room
  phase @5 :UInt8;            # 1 starting .. 5 leaving
  load @6 :UInt32;
  certificate @7 :Data;       # 32 bytes, or empty
}

struct StateRequest {
  fingerprint @0 :Data;       # 32 bytes
  snapshot @1 :Data;          # 32 bytes, or empty: any
}

struct StateManifest {
  fingerprint @0 :Data;
  step @1 :UInt64;
  age @2 :Float64;            # 0 to 1e15
  totalBytes @3 :UInt64;
  chunkHashes @4 :Data;       # a tree hash (node/base/tree_hash.h) of each chunk of 256 KiB
  runAgeMs @5 :UInt64;
  donors @6 :Data;            # ids, 32 bytes each, at most 16
  # Attachment: counters of samples, 40 bytes each (id, samples as little-endian u64), ascending by
  # id, at most 32768 of them; none: no attachment.
}

struct StateRefused {
  snapshot @0 :Data;          # as in the request
  reason @1 :UInt8;
  unused @2 :Data;            # older nodes name others here, whom nobody ever asked
}

struct ChunkRequest {
  snapshot @0 :Data;
  index @1 :UInt32;
}

struct Chunk {
  snapshot @0 :Data;
  index @1 :UInt32;
  # Attachment: the bytes, at most 256 KiB; none: the snapshot is not held any more.
}

struct StateDone {
  snapshot @0 :Data;
}

struct DialBackRequest {
  port @0 :UInt16;
}

struct DialBackReply {
  port @0 :UInt16;
  reachable @1 :Bool;
  address @2 :Data;           # printable ASCII, at most 160 bytes
  detail @3 :Data;
}
