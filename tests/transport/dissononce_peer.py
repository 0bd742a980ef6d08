"""Live sessions between our Noise layer and an independent implementation, in both roles.

    dissononce_peer.py PATH_TO_NOISE_PEER

Exit status 77 (a skip) when the module dissononce is missing (Debian: python3-dissononce).
"""
import os
import random
import struct
import subprocess
import sys

try:
    from dissononce.cipher.chachapoly import ChaChaPolyCipher
    from dissononce.dh.x25519.x25519 import X25519DH
    from dissononce.hash.blake2b import Blake2bHash
    from dissononce.processing.handshakepatterns.interactive.XX import XXHandshakePattern
    from dissononce.processing.impl.cipherstate import CipherState
    from dissononce.processing.impl.handshakestate import HandshakeState
    from dissononce.processing.impl.symmetricstate import SymmetricState
    from dissononce.processing.modifiers.psk import PSKPatternModifier
except ImportError as missing:
    print(f"skipped: {missing} (Debian package python3-dissononce)")
    sys.exit(77)

SESSIONS_EACH = 5
MESSAGES_EACH = 40


def session(peer_path, protocol, pattern, python_initiates):
    role = "responder" if python_initiates else "initiator"
    peer = subprocess.Popen([peer_path, role, protocol], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(frame):
        peer.stdin.write(struct.pack(">H", len(frame)) + frame)
        peer.stdin.flush()

    def receive():
        size = struct.unpack(">H", peer.stdout.read(2))[0]
        return peer.stdout.read(size)

    dh = X25519DH()
    state = HandshakeState(SymmetricState(CipherState(ChaChaPolyCipher()), Blake2bHash()), dh)
    psks = (b"\x42" * 32,) if "psk" in protocol else None
    state.initialize(pattern, python_initiates, b"pro", s=dh.generate_keypair(), psks=psks)
    ours = python_initiates
    ciphers = None
    while ciphers is None:
        buffer = bytearray()
        if ours:
            ciphers = state.write_message(b"hello", buffer)
            send(bytes(buffer))
        else:
            ciphers = state.read_message(receive(), buffer)
            assert bytes(buffer) == b"hi", bytes(buffer)
        ours = not ours
    out, back = ciphers if python_initiates else (ciphers[1], ciphers[0])
    for _ in range(MESSAGES_EACH):
        payload = os.urandom(1 + random.randrange(60_000))
        send(out.encrypt_with_ad(b"", payload))
        assert back.decrypt_with_ad(b"", receive()) == payload
    send(out.encrypt_with_ad(b"", b""))
    assert receive() == state.symmetricstate.get_handshake_hash(), "transcript hashes differ"
    peer.stdin.close()
    assert peer.wait() == 0


def main():
    done = 0
    for name, pattern in (
        ("XX", XXHandshakePattern()),
        ("XXpsk0", PSKPatternModifier(0).modify(XXHandshakePattern())),
    ):
        protocol = f"Noise_{name}_25519_ChaChaPoly_BLAKE2b"
        for python_initiates in (True, False):
            for _ in range(SESSIONS_EACH):
                session(sys.argv[1], protocol, pattern, python_initiates)
                done += 1
            print(f"{protocol}: {SESSIONS_EACH} sessions, dissononce as "
                  f"{'initiator' if python_initiates else 'responder'}, transcript hashes equal")
    print(f"{done} of {done} sessions")


main()
