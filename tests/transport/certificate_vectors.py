"""Computes the frozen values of certificate_test.cc, spread_test.cc and finish_order_test.cc without our code: Debian's python3-cryptography.

The keys are those of the seeds N 00 ... 00 (admin 200, inviter 1, node 2), the swarm id is 07 00 ... 00. An Ed25519 signature covers
"starling/sig/1", the length of the domain (u8), the domain and the message. The values are the BLAKE2b-256 of the encoded chain and list, the
admin's order for a secret of 32 zero bytes (epoch 1, list 3), what the node says when it holds the secret of epoch 1 with the key id 01 ... 01, and the
BLAKE2b-256 of the line of an order to finish the run whose settings have the fingerprint BLAKE2b-256("settings").
"""
import base64
import hashlib
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SWARM = b"\x07" + bytes(31)
FROM, UNTIL = 1_799_990_000, 1_800_010_000
MEMBER, INVITER = 0, 1


def key(number):
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) + bytes(31))


def public(number):
    return key(number).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def sign(number, domain, message):
    return key(number).sign(b"starling/sig/1" + bytes([len(domain)]) + domain + message)


def facts(serial, issues=None):
    return struct.pack("<QII", serial, FROM, UNTIL) + (struct.pack("<QI", *issues) if issues else b"")


def certificate(signer, role, node, serial, issues=None):
    body = facts(serial, issues)
    return body + sign(signer, b"starling/member-cert/1", SWARM + bytes([role]) + public(node) + body)


chain = bytes([1, MEMBER]) + certificate(1, MEMBER, 2, 1001)
chain += bytes([INVITER]) + public(1) + certificate(200, INVITER, 1, 1000, (1001, 100))
print(hashlib.blake2b(chain, digest_size=32).hexdigest())

listed = bytes([1]) + struct.pack("<QIIQQ", 3, 2, 2, 5, 1001) + b"".join(sorted([public(1), public(2)]))
listed += sign(200, b"starling/revoked/1", SWARM + listed)
print(hashlib.blake2b(listed, digest_size=32).hexdigest())

order = SWARM + struct.pack("<Q", 1) + hashlib.blake2b(bytes(32), digest_size=32).digest() + struct.pack("<Q", 3)
print(base64.b64encode(sign(200, b"starling/rotate/1", order)).decode())
print(sign(2, b"starling/held/1", SWARM + struct.pack("<Q", 1) + b"\x01" * 8).hex())

settings = hashlib.blake2b(b"settings", digest_size=32).digest()
finish = bytes([1]) + SWARM + settings + sign(200, b"starling/finish-order/1", SWARM + settings)
line = b"starling-finish " + base64.b64encode(finish) + b"\n"
print(hashlib.blake2b(line, digest_size=32).hexdigest())
