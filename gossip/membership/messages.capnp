@0x9a3c1d27b84e5f01;

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("starling::gossip::membership_wire");

# What members tell each other about members. Transport delivers each message whole and
# authenticated, in order, on the session of two members; this room adds no framing.
#
# Who speaks first: both sides, as soon as a session is up. Each sends Facts with its own record
# (and what it holds against the other, so that the other can refute), then a Digest. Whoever finds
# buckets that differ asks for them with a BucketRequest; the answer is Facts that name the
# request's nonce. An answer that does not fit ends with moreAfter, and the asker asks again from
# there: nobody sends a whole view unasked. Every 30 seconds a Heartbeat carries one hash of the
# sender's digest; whoever has another one answers with its Digest and wants the sender's.
#
# News travels as Facts without nonce. An author pushes its statement to every session; others push
# what is urgent (accusations, refutations) or comes from the author itself, once, and announce the
# rest: `has` names statements, and whoever misses one asks one of those that have it (`wants`), then
# the next; the answer may be a newer one. What is lost on the way, the digests repair. A receiver
# bounds what a peer may announce and ask for; names prove nothing.
#
# A heartbeat asks a peer of whom nothing was heard for 500 ms, or for a second if that was a heartbeat
# or an answer; the answer repeats the number. As both hear each other by it, they ask in turn. Each says with it whether it needs the session: once
# neither does, either ends it with a goodbye. ProbeRequest asks a third
# member to reach somebody; the answer comes within half a second, or a silence that says as much.
#
# Statements (records, accusations, progress reports) travel as the bytes that their author signed:
# member_record.h has their layout. A relay can drop a statement or delay it, but change nothing. A
# receiver must check, in this order: length, canonical form, newness (an incarnation that is higher
# than the one it holds), the sender's allowance, the signature; and must believe an accusation only
# as membership.h says.
#
# Order: nothing relies on the order of messages of different kinds. Within Facts, records come
# before the accusations that refer to them.
#
# Evolution: fields are added at the end and never reused. Statements carry a version byte (records)
# or have a fixed length; another layout is another message type.

struct Heartbeat {
  seq @0 :UInt64;
  unneeded @1 :Bool;          # the sender could do without this session
  view @2 :UInt64;            # one hash over the buckets of the sender's digest; 0: not said
}

struct HeartbeatAck {
  seq @0 :UInt64;
  unneeded @1 :Bool;
}

struct ProbeRequest {
  nonce @0 :UInt64;
  subject @1 :Data;           # 32 bytes
}

struct ProbeReply {
  nonce @0 :UInt64;
  subject @1 :Data;
  verdict @2 :UInt8;          # 1 reachable, 2 unreachable, 3 no session with it
}

struct AgedRecord {
  record @0 :Data;            # canonical bytes, at most 512
  ageS @1 :UInt32;            # seconds since its author signed it, as added up by relays
}

struct FactName {
  subject @0 :UInt64;         # the first 8 bytes of its author's id, the first byte highest
  version @1 :UInt64;         # a record: 2 x incarnation; a progress report: 2 x samples + 1; modulo 2^64; never 0
}

struct Facts {
  records @0 :List(AgedRecord);
  accusations @1 :List(Data);
  reports @2 :List(Data);
  answers @3 :UInt64;         # nonce of the BucketRequest; 0: news
  moreAfter @4 :Data;         # 32 bytes, or empty: the last part
  has @5 :List(FactName);     # statements that the sender can send
  wants @6 :List(FactName);   # statements that the receiver said it has
}

struct Digest {
  buckets @0 :List(UInt64);   # exactly 256: ids by their first byte
  wantsReply @1 :Bool;
}

struct BucketRequest {
  nonce @0 :UInt64;           # not 0
  buckets @1 :Data;           # 32 bytes: bit i of byte i / 8 asks for bucket i
  after @2 :Data;             # 32 bytes: only ids above this one
}
