@0xc1f0a3d27b5e4896;
using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("starling::transport::wire");
# The wire between two nodes.
#
# Words. The initiator dialled, the responder accepted. A record is one encrypted frame. A message is
# what the layer above sends: a type, a body, perhaps an attachment. A transfer is an attachment
# under way. Numbers outside Cap'n Proto are little-endian, except the two bytes of length, which
# are big-endian.
#
# 1. Preamble. The initiator speaks first, 16 bytes in clear: "STL1", wire version (u8), mode (u8: 0
#    open, 1 secret, 2 invite), two zero bytes, key id (8 bytes of a hash of the pre-shared key; zeros
#    in an open swarm). The preamble is the prologue of the Noise handshake, so nobody can change it
#    unnoticed. There is no negotiation: the wire version fixes the suite, and a responder that does
#    not like a preamble closes.
#
# 2. Handshake. Noise XX in an open swarm, XXpsk0 otherwise, suite 25519_ChaChaPoly_BLAKE2b. Each
#    of the three messages follows its length (u16, big-endian, at most 2,048). Message 1 has an empty
#    payload; messages 2 and 3 carry a Hello. A responder answers nothing, not even an error, before
#    message 1 decrypted under a secret that it accepts; and no error text before message 3 is whole.
#    With an invite the initiator's pre-shared key is the invite's one-time key; the responder is the
#    node that made it, and counts the use on disk before it sends message 2. Its first message of the
#    session is the swarm's secret (type 0x0001: the text of a secret file, at most 512 bytes), before
#    it the newcomer's certificate where the swarm has an admin (type 0x0002: the text of a
#    member.cert file, at most 1,024 bytes).
#    Members of a swarm with an admin tell each other in their sessions, as bytes: what they have (type
#    0x0003), the admin's list of what was revoked (0x0004, at most 64 KiB), the text of the next secret
#    with the admin's order (0x0005, at most 512 bytes), and who says that it holds that (0x0006). See
#    revocation.h, secret.h and node/access.
#    Under a secret, a message 1 that was seen before (by its ephemeral key, 120 s) is not answered.
#    Each side checks of the other's Hello: the swarm is its own; the signature is by `identity` over
#    the transcript (see Hello); the initiator also that the identity is the one it dialled, if it
#    named one.
#
# 3. Records. u16 big-endian length of the ciphertext (18 to 65,535), then the ciphertext under the
#    Noise cipher of the direction: type (u8), flags (u8), body, 16 bytes of tag. Counters are strict:
#    a record that is lost, repeated, reordered or changed ends the session. Both sides rekey a
#    direction after every 1,024 records of it. Types:
#      0 welcome   nothing. The responder's first record, if it accepts the session; nothing else is
#                  sent by either side before it (the initiator may say bye). A bye in its place
#                  refuses by name.
#      1 bye       a Bye: the last record of a side; whatever was queued before it was sent. A
#                  connection that ends without it was cut, and is counted as such.
#      2 ping      8 bytes, returned in 3 pong.
#      4 message   the first record of a message: type (u16), transfer id (u32, 0 for none), size of
#                  the body (u32), size of the attachment (u32), then body bytes. If the body does
#                  not fit one record, 5 continues it; the records of one body follow each other
#                  without another control record between.
#      6 bulk      transfer id (u32), then bytes of the attachment in order.
#      7 grant     transfer id (u32), bytes received (u32), limit (u32): the sender may send until
#                  `limit` bytes of this attachment in all. At first the limit is 256 KiB. A grant
#                  whose `received` is the size of the attachment ends the transfer.
#      8 refuse    transfer id (u32): the receiver wants no (more) bytes of it; the message is void.
#      9 abandon   transfer id (u32): the sender's answer to refuse; no bulk of this id follows.
#    Flags are zero in this version. Transfer ids count up from 1, per direction; at most 32 are under
#    way. A violation of any rule ends the session with a bye that names it.
#
# 4. Versions. Fields may be added at the end of these structs; a reader that does not know them
#    ignores them. New record types, flags or suites need a new wire version.

# Who is there: the payload of messages 2 and 3, at most 1,024 bytes.
struct Hello {
  identity @0 :Data;
  # Ed25519 public key, 32 bytes: the node id.
  signature @1 :Data;
  # 64 bytes, domain "starling/id/1": role (u8: 0 initiator, 1 responder), swarm id (32), Noise static
  # key of the signer (32), transcript hash before this payload (64).
  swarm @2 :Data;
  # 32 bytes. In an open swarm this is where a wrong swarm is noticed.
  instance @3 :UInt64;
  # Random per process: tells a restarted process from a second connection.
  purpose @4 :UInt8;
  # 0 new: first session, or after the old one ended. 1 renew: takes over from the session that the
  # same two processes have.
  reserved5 @5 :UInt64;
  reserved6 @6 :UInt64;
  # Zero when sent; nobody reads them.
  name @7 :Text;
  # The node's name for people, at most 64 bytes of any content: escape it before showing it.
  addresses @8 :List(Address);
  # Where the node can be dialled, at most 4.
  certificate @9 :Data;
  # What the swarm's admin says about this node, at most 240 bytes; empty without. See
  # encode_chain() in member_certificate.h. Checked by a side that knows an admin, once the identity
  # is proved.
}

struct Address {
  host @0 :Text;
  # At most 96 bytes.
  port @1 :UInt16;
}

# Why a side ends the session.
struct Bye {
  code @0 :UInt8;
  # An error code by its number; 0: nothing is wrong.
  detail @1 :Text;
  # At most 256 bytes.
}
