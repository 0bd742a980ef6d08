// Keys that never change, so that inputs reach behind the cryptography again and again.
#pragma once

#include "transport/handshake.h"
#include "transport/identity.h"
#include "transport/noise.h"
#include "transport/secret.h"

#include <array>
#include <optional>
#include <string>

namespace starling::transport {

inline constexpr TimePoint kFuzzTime{std::chrono::seconds(1000)};

struct FuzzSide {
  explicit FuzzSide(unsigned char number, bool open = true)
      : identity(Identity::from_seed(std::array<std::byte, 32>{std::byte{number}})),
        noise_static(noise::KeyPair::from_secret(noise::Key{std::byte{number}})),
        swarm(open ? SwarmKey::open("fuzz")
                   : SwarmKey::of(SwarmSecret::parse(std::string(43, 'A')).value())) {
    hello.instance = {number};
    hello.name = "fuzz";
    hello.addresses = {{"192.0.2.1", 7411}};
  }
  [[nodiscard]] HandshakeContext context() {
    return {identity, noise_static, swarm, replays, hello, {}, [](const KeyId& id) {
              const noise::Key key{std::byte{3}};
              return id == id_of_key(key) ? std::optional(key) : std::nullopt;
            }};
  }

  Identity identity;
  noise::KeyPair noise_static;
  SwarmKey swarm;
  ReplayMemory replays;
  Hello hello;
};

}  // namespace starling::transport
