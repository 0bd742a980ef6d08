"""Computes the frozen value of record_test.cc without our code: Debian's python3-cryptography.

Records of type 4 with bodies of 0, 1, ... 2,499 bytes (byte i is i mod 256), sealed under the key 42
00 ... 00, rekeyed after every 1,024 records; the value is the BLAKE2b-256 of the stream.
"""
import hashlib
import struct

from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

key = b"\x42" + bytes(31)
stream = hashlib.blake2b(digest_size=32)
for n in range(2500):
    plain = bytes([4, 0]) + bytes(i % 256 for i in range(n))
    nonce = bytes(4) + struct.pack("<Q", n)
    sealed = ChaCha20Poly1305(key).encrypt(nonce, plain, b"")
    stream.update(struct.pack(">H", len(sealed)) + sealed)
    if (n + 1) % 1024 == 0:
        last = bytes(4) + struct.pack("<Q", 2**64 - 1)
        key = ChaCha20Poly1305(key).encrypt(last, bytes(32), b"")[:32]
print(stream.hexdigest())
