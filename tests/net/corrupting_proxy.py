#!/usr/bin/env python3
"""Carries TCP connections to a node and changes one byte in some of them, behind the handshake.

  corrupting_proxy.py HOST:PORT HOST:PORT SHARE SEED FILE

Listens at the first address and connects to the second. A piece of a connection that was spared so far gets a changed byte with probability SHARE;
each change is a line of FILE: the time, and the addresses of the two machines. TCP's checksum is made after it, so nothing but the records' own can notice.
"""

import asyncio
import random
import sys
import time

SPARED_BYTES = 2_048  # the handshake, whose failures are counted elsewhere
PIECE = 16_384


def endpoint(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


async def carry(reader, writer, share, draw, changed, note):
    passed = 0
    try:
        while piece := await reader.read(PIECE):
            if passed >= SPARED_BYTES and not changed and draw.random() < share:
                changed.append(True)
                note()
                at = draw.randrange(len(piece))
                piece = piece[:at] + bytes([piece[at] ^ draw.randrange(1, 256)]) + piece[at + 1:]
            passed += len(piece)
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def main(listen, target, share, seed, file):
    draw = random.Random(int(seed))
    log = open(file, "a", encoding="ascii", buffering=1)  # noqa: SIM115 (open for as long as the program runs)

    async def on_connection(reader, writer):
        try:
            there_reader, there_writer = await asyncio.open_connection(*endpoint(target))
        except OSError:
            writer.close()
            return
        changed = []  # one change a connection: its session is over then

        def note():
            log.write(f"{time.time()} {writer.get_extra_info('peername')[0]} {endpoint(target)[0]}\n")
        await asyncio.gather(carry(reader, there_writer, float(share), draw, changed, note), carry(there_reader, writer, float(share), draw, changed, note))

    server = await asyncio.start_server(on_connection, *endpoint(listen))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
