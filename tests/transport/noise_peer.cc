// One side of a Noise session on stdin and stdout, for tests against another implementation.
//
//   noise_peer initiator|responder PROTOCOL
//
// Every message follows its length (u16, big-endian). The psk is 32 bytes of 0x42, the prologue
// "pro"; payloads of the handshake are "hi" from here, "hello" from there. After the handshake
// every message that comes is sent back, until an empty one comes; then the transcript hash follows
// in clear.
#include "transport/noise.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>

namespace starling::transport::noise {
namespace {

void write_frame(ByteView bytes) {
  std::cout.put(static_cast<char>(bytes.size() >> 8));
  std::cout.put(static_cast<char>(bytes.size() & 0xffU));
  std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
  std::cout.flush();
}

std::optional<Bytes> read_frame() {
  std::array<char, 2> length{};
  if (!std::cin.read(length.data(), 2)) return std::nullopt;
  const auto size = (std::size_t{static_cast<std::uint8_t>(length[0])} << 8) |
                    std::size_t{static_cast<std::uint8_t>(length[1])};
  Bytes bytes(size);
  if (!std::cin.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size)))
    return std::nullopt;
  return bytes;
}

int run(Role role, const std::string& protocol) {
  HandshakeSetup setup;
  setup.protocol = protocol;
  setup.role = role;
  setup.prologue = to_bytes(as_bytes("pro"));
  setup.own_static = KeyPair::generate();
  if (protocol.find("psk") != std::string::npos) {
    Key psk;
    psk.fill(std::byte{0x42});
    setup.psks.push_back(psk);
  }
  auto handshake = HandshakeState::make(std::move(setup));
  if (!handshake) return 2;
  while (!handshake->done()) {
    if (handshake->our_turn()) {
      const auto message = handshake->write_message(as_bytes("hi"));
      if (!message) return 3;
      write_frame(*message);
      continue;
    }
    const auto message = read_frame();
    if (!message) return 4;
    const auto payload = handshake->read_message(*message);
    if (!payload || as_text(*payload) != "hello") return 5;
  }
  auto ciphers = handshake->split();
  while (true) {
    const auto sealed = read_frame();
    if (!sealed || sealed->size() < kTagSize) return 6;
    Bytes plain(sealed->size() - kTagSize);
    if (!ciphers.receive.decrypt({}, *sealed, plain)) return 7;
    if (plain.empty()) break;
    Bytes answer(plain.size() + kTagSize);
    ciphers.send.encrypt({}, plain, answer);
    write_frame(answer);
  }
  write_frame(handshake->hash());
  return 0;
}

}  // namespace
}  // namespace starling::transport::noise

int main(int argc, char** argv) {
  using namespace starling::transport::noise;
  if (argc != 3) return 1;
  const auto role = std::string(argv[1]) == "initiator" ? Role::initiator : Role::responder;
  return run(role, argv[2]);
}
