#include "transport/handshake.h"

#include "node/base/random.h"
#include "transport/record.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace starling::transport {
namespace {

constexpr TimePoint kHandshakeNow{std::chrono::seconds(1000)};

const SwarmSecret& shared_secret() {
  static const auto secret = SwarmSecret::generate();
  return secret;
}

// One node's side of handshakes.
struct Side {
  explicit Side(SwarmKey swarm_key, std::uint64_t instance = 1) : swarm(std::move(swarm_key)) {
    hello.instance = {instance};
    hello.name = "side";
    hello.addresses = {{"192.0.2.7", 7411}, {"2001:db8::1", 7411}};
  }
  [[nodiscard]] HandshakeContext context() {
    return {identity, noise_static, swarm, replays, hello, check, [this](const KeyId& id) {
              return invite && id_of_key(*invite) == id ? invite : std::nullopt;
            }};
  }

  Identity identity = Identity::generate();
  noise::KeyPair noise_static = noise::KeyPair::generate();
  SwarmKey swarm;
  ReplayMemory replays;
  Hello hello;
  std::function<Result<void>(const Hello&)> check;
  std::optional<noise::Key> invite;
};

// A newcomer and the node that made its invite, and the newcomer's first bytes at that node.
struct Invited {
  Invited() {
    issuer.invite = key;
    REQUIRE(responder.feed(kHandshakeNow, initiator.take_output()));
  }

  noise::Key key{std::byte{3}};
  Side newcomer{SwarmKey::invited(SwarmKey::of(shared_secret()).swarm(), key), 1};
  Side issuer{SwarmKey::of(shared_secret()), 2};
  Handshake initiator = Handshake::initiate(newcomer.context(), {});
  Handshake responder = Handshake::respond(issuer.context());
};

struct Ended {
  std::optional<Error> initiator;
  std::optional<Error> responder;
};

// How often, in the long form of a test.
std::size_t count_from(const char* variable, std::size_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Feeds bytes in random pieces until an error or the end.
std::optional<Error> feed_pieces(Handshake& to, const Bytes& bytes, Rng& rng) {
  ByteView rest = bytes;
  while (!rest.empty()) {
    const auto size = std::min<std::size_t>(rest.size(), 1 + rng.below(60));
    if (auto fed = to.feed(kHandshakeNow, rest.first(size)); !fed) return fed.error();
    rest = rest.subspan(size);
  }
  return std::nullopt;
}

// Runs a handshake; `change` may edit what the initiator (0, 2) or responder (1) sends.
Ended run(Handshake& initiator, Handshake& responder, std::uint64_t seed,
          const std::function<void(int, Bytes&)>& change = {}) {
  Rng rng(seed);
  Ended ended;
  for (int message = 0; message < 3; ++message) {
    auto& from = message % 2 == 0 ? initiator : responder;
    auto& to = message % 2 == 0 ? responder : initiator;
    auto bytes = from.take_output();
    if (change) change(message, bytes);
    if (auto error = feed_pieces(to, bytes, rng)) {
      (message % 2 == 0 ? ended.responder : ended.initiator) = error;
      break;
    }
  }
  return ended;
}

TEST_SUITE("transport/handshake") {
  TEST_CASE("both sides learn who is there, whatever the fragmentation") {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      CAPTURE(seed);
      Side left(SwarmKey::of(shared_secret()), 1);
      Side right(seed % 2 == 0 ? SwarmKey::of(shared_secret()) : SwarmKey::open("x"), 2);
      if (seed % 2 == 1) left.swarm = SwarmKey::open("x");
      auto initiator = Handshake::initiate(left.context(), right.identity.id());
      auto responder = Handshake::respond(right.context());

      const auto ended = run(initiator, responder, seed);

      CHECK_FALSE(ended.initiator);
      CHECK_FALSE(ended.responder);
      REQUIRE(initiator.done());
      REQUIRE(responder.done());
      auto a = initiator.take_outcome();
      auto b = responder.take_outcome();
      CHECK(a.peer.identity == right.identity.id());
      CHECK(b.peer.identity == left.identity.id());
      CHECK(b.peer.addresses == left.hello.addresses);
      CHECK(b.peer.name == "side");
      Bytes sealed(4 + limits::kTag);
      Bytes opened(4);
      a.send.encrypt({}, as_bytes("ping"), sealed);
      REQUIRE(b.receive.decrypt({}, sealed, opened));
      CHECK(as_text(opened) == "ping");
    }
  }

  TEST_CASE("no key is used twice with one nonce in a thousand sessions") {
    // Two records with the same content that are sealed alike show a pair that was used twice.
    Side left(SwarmKey::of(shared_secret()), 1);
    Side right(SwarmKey::of(shared_secret()), 2);
    std::set<std::string> seen;
    std::size_t sealed = 0;
    const std::size_t sessions = count_from("STARLING_SESSIONS", 1'000);
    for (std::size_t session = 0; session < sessions; ++session) {
      const TimePoint now = kHandshakeNow + std::chrono::seconds(session);
      auto initiator = Handshake::initiate(left.context(), {});
      auto responder = Handshake::respond(right.context());
      REQUIRE(responder.feed(now, initiator.take_output()));
      REQUIRE(initiator.feed(now, responder.take_output()));
      REQUIRE(responder.feed(now, initiator.take_output()));
      RecordSealer ends[] = {RecordSealer(initiator.take_outcome().send),
                             RecordSealer(responder.take_outcome().send)};
      // Now and then beyond the first new keys.
      const std::size_t records = session % 200 == 0 ? limits::kRekeyRecords + 4 : 4;
      for (auto& end : ends)
        for (std::size_t record = 0; record < records; ++record) {
          Bytes out;
          end.seal({.type = RecordType::ping, .head = Bytes(32), .tail = {}}, out);
          seen.emplace(as_text(ByteView(out).subspan(limits::kLengthPrefix, 24)));
          ++sealed;
        }
    }
    CHECK(seen.size() == sealed);
  }

  TEST_CASE("a mutated first message gets no byte, whatever was done to it") {
    Rng rng(4);
    Side stranger(SwarmKey::of(shared_secret()), 1);
    Side node(SwarmKey::of(shared_secret()), 2);
    std::vector<Bytes> recorded;
    for (int i = 0; i < 16; ++i)
      recorded.push_back(Handshake::initiate(stranger.context(), {}).take_output());
    const std::size_t mutations = count_from("STARLING_MUTATIONS", 20'000);
    std::size_t answered = 0;
    std::size_t believed = 0;
    for (std::size_t i = 0; i < mutations; ++i) {
      const auto& good = recorded[rng.below(recorded.size())];
      auto bytes = good;
      // A few bits, a stretch of noise, or noise to the end; sometimes cut short.
      const auto at = rng.below(bytes.size());
      if (rng.chance(0.5)) {
        for (auto flips = 1 + rng.below(4); flips > 0; --flips)
          bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1U << rng.below(8));
      } else {
        const auto end = rng.chance(0.5) ? bytes.size() : at + 1 + rng.below(bytes.size() - at);
        for (auto k = at; k < end; ++k) bytes[k] = static_cast<std::byte>(rng.below(256));
      }
      if (rng.chance(0.1)) bytes.resize(at);
      if (bytes == good) continue;
      auto responder = Handshake::respond(node.context());
      (void)responder.feed(kHandshakeNow, bytes);
      answered += responder.take_output().empty() ? 0U : 1U;
      believed += responder.done() ? 1U : 0U;
    }
    CHECK(answered == 0);
    CHECK(believed == 0);
  }

  TEST_CASE("bytes behind the last message are kept for the records") {
    Side left(SwarmKey::of(shared_secret()), 1);
    Side right(SwarmKey::of(shared_secret()), 2);
    auto initiator = Handshake::initiate(left.context(), {});
    auto responder = Handshake::respond(right.context());
    REQUIRE(responder.feed(kHandshakeNow, initiator.take_output()));
    REQUIRE(initiator.feed(kHandshakeNow, responder.take_output()));
    auto last = initiator.take_output();
    last.push_back(std::byte{42});
    REQUIRE(responder.feed(kHandshakeNow, last));
    CHECK(responder.take_outcome().rest == Bytes{std::byte{42}});
  }

  TEST_CASE("a flipped bit anywhere ends the handshake before anybody is believed") {
    for (int message = 0; message < 3; ++message) {
      std::size_t size = 1;
      for (std::size_t at = 0; at < size; ++at) {
        Side left(SwarmKey::of(shared_secret()), 1);
        Side right(SwarmKey::of(shared_secret()), 2);
        auto initiator = Handshake::initiate(left.context(), {});
        auto responder = Handshake::respond(right.context());
        const auto flip = [&](int index, Bytes& bytes) {
          if (index != message) return;
          size = bytes.size();
          bytes[at] ^= std::byte{1};
        };
        const auto ended = run(initiator, responder, at, flip);
        CAPTURE(message);
        CAPTURE(at);
        const auto& victim = message == 1 ? initiator : responder;
        CHECK_FALSE(victim.done());
        // A longer length waits for more bytes, which never come; everything else is an error.
        const auto& error = message == 1 ? ended.initiator : ended.responder;
        const auto length = message == 0 ? limits::kPreamble : 0;
        if (at != length && at != length + 1) CHECK(error);
      }
    }
  }

  TEST_CASE("whether there is an answer is asked of holders of the secret alone, before its cost") {
    Side left(SwarmKey::of(shared_secret()), 1);
    Side stranger(SwarmKey::of(SwarmSecret::generate()), 3);
    Side right(SwarmKey::of(shared_secret()), 2);
    int asked = 0;
    bool room = false;
    const auto first_message = [&](Bytes bytes) {
      auto context = right.context();
      context.may_answer = [&] {
        ++asked;
        return room;
      };
      auto responder = Handshake::respond(std::move(context));
      const auto fed = responder.feed(kHandshakeNow, bytes);
      return std::pair(fed ? Errc::cancelled : fed.error().code, !responder.take_output().empty());
    };
    const auto bytes_of = [](Side& side) {
      return Handshake::initiate(side.context(), {}).take_output();
    };
    auto guessed = bytes_of(left);
    guessed.back() ^= std::byte{1};

    CHECK(first_message(bytes_of(stranger)) == std::pair(Errc::wrong_swarm, false));
    CHECK(first_message(guessed) == std::pair(Errc::wrong_swarm, false));
    CHECK(asked == 0);
    CHECK(first_message(bytes_of(left)) == std::pair(Errc::too_many, false));
    CHECK(asked == 1);
    room = true;
    const auto good = bytes_of(left);
    CHECK(first_message(good) == std::pair(Errc::cancelled, true));
    CHECK(first_message(good) == std::pair(Errc::already_exists, false));
    CHECK(asked == 2);
  }

  TEST_CASE("another secret is met with silence, and the dialler says what that means") {
    Side left(SwarmKey::of(SwarmSecret::generate()), 1);
    Side right(SwarmKey::of(shared_secret()), 2);
    auto initiator = Handshake::initiate(left.context(), {});
    auto responder = Handshake::respond(right.context());
    const auto fed = responder.feed(kHandshakeNow, initiator.take_output());
    REQUIRE_FALSE(fed);
    CHECK(fed.error().code == Errc::wrong_swarm);
    CHECK(responder.take_output().empty());
    CHECK_FALSE(responder.answered());
    const auto silence = initiator.on_end_of_stream();
    CHECK(silence.code == Errc::wrong_swarm);
    CHECK(silence.detail ==
          "closed without a reply: wrong secret, another swarm or version, or busy");
  }

  TEST_CASE("a recorded message 1 gets no answer for two minutes") {
    Side left(SwarmKey::of(shared_secret()), 1);
    Side right(SwarmKey::of(shared_secret()), 2);
    const auto recording = Handshake::initiate(left.context(), {}).take_output();
    auto first = Handshake::respond(right.context());
    REQUIRE(first.feed(kHandshakeNow, recording));
    auto second = Handshake::respond(right.context());
    const auto fed = second.feed(kHandshakeNow + std::chrono::seconds(119), recording);
    REQUIRE_FALSE(fed);
    CHECK(fed.error().code == Errc::already_exists);
    CHECK(second.take_output().empty());
  }

  TEST_CASE("the memory of message 1 is bounded in time and number") {
    ReplayMemory memory;
    noise::Key key{};
    CHECK(memory.remember(kHandshakeNow, key));
    CHECK_FALSE(memory.remember(kHandshakeNow, key));
    CHECK(memory.remember(kHandshakeNow + std::chrono::seconds(121), key));
    CHECK(memory.size() == 1);
    for (int i = 0; i < 10'000; ++i) {
      key[0] = static_cast<std::byte>(i & 0xff);
      key[1] = static_cast<std::byte>(i >> 8);
      key[2] = std::byte{1};
      CHECK(memory.remember(kHandshakeNow + std::chrono::seconds(122), key));
    }
    CHECK(memory.size() == limits::kReplayEntries);
  }

  TEST_CASE("a pinned identity, ourselves and a clone of ourselves are told apart") {
    const std::array<std::byte, 32> seed{std::byte{1}};
    const auto dial = [&](std::uint64_t instance, bool same_key, std::optional<NodeId> pin) {
      Side left(SwarmKey::of(shared_secret()), 1);
      Side right(SwarmKey::of(shared_secret()), instance);
      left.identity = Identity::from_seed(seed);
      if (same_key) right.identity = Identity::from_seed(seed);
      auto initiator = Handshake::initiate(left.context(), pin);
      auto responder = Handshake::respond(right.context());
      return run(initiator, responder, 1).initiator.value().code;
    };
    CHECK(dial(2, false, NodeId{}) == Errc::wrong_identity);
    CHECK(dial(1, true, {}) == Errc::already_exists);
    CHECK(dial(2, true, {}) == Errc::duplicate_identity);
  }

  TEST_CASE("the dialler may refuse the peer before it says who it is itself") {
    Side left(SwarmKey::of(shared_secret()), 1);
    Side right(SwarmKey::of(shared_secret()), 2);
    left.check = [](const Hello&) -> Result<void> {
      return fail(Errc::refused, Doing::handshaking, "revoked");
    };
    auto initiator = Handshake::initiate(left.context(), {});
    auto responder = Handshake::respond(right.context());
    CHECK(run(initiator, responder, 3).initiator.value().code == Errc::refused);
    CHECK(initiator.take_output().empty());
  }

  TEST_CASE("a length above the limit ends the handshake before anything is kept") {
    Side right(SwarmKey::open("x"), 2);
    auto responder = Handshake::respond(right.context());
    Preamble preamble;
    const auto clear = encode_preamble(preamble);
    Bytes bytes(clear.begin(), clear.end());
    bytes.push_back(std::byte{0x08});
    bytes.push_back(std::byte{0x01});
    const auto fed = responder.feed(kHandshakeNow, bytes);
    REQUIRE_FALSE(fed);
    CHECK(fed.error().code == Errc::too_large);
  }

  TEST_CASE("an invite is answered when its use was counted, and both sides know") {
    Invited pair;
    REQUIRE(pair.responder.redeeming() == id_of_key(pair.key));
    CHECK_FALSE(pair.responder.answered());
    CHECK(pair.responder.take_output().empty());

    REQUIRE(pair.responder.on_redeemed(true));

    CHECK_FALSE(pair.responder.redeeming());
    REQUIRE(pair.initiator.feed(kHandshakeNow, pair.responder.take_output()));
    REQUIRE(pair.responder.feed(kHandshakeNow, pair.initiator.take_output()));
    REQUIRE(pair.responder.done());
    CHECK(pair.initiator.take_outcome().invited);
    const auto outcome = pair.responder.take_outcome();
    CHECK(outcome.invited);
    CHECK(outcome.peer.identity == pair.newcomer.identity.id());
  }

  TEST_CASE("an invite whose use was not counted gets no byte, and the newcomer says why") {
    Invited pair;
    CHECK(pair.responder.on_redeemed(false).error().code == Errc::refused);
    CHECK(pair.responder.take_output().empty());
    CHECK(pair.initiator.on_end_of_stream().code == Errc::wrong_swarm);
    CHECK(pair.initiator.on_end_of_stream().detail.find("invite") != std::string::npos);
  }

  TEST_CASE("bytes that come while the use of an invite is counted end the handshake") {
    Invited pair;
    CHECK(pair.responder.feed(kHandshakeNow, Bytes(1)).error().code == Errc::bad_message);
    CHECK_FALSE(pair.responder.redeeming());
  }

  TEST_CASE("an invite opens no door but its issuer's, and an open swarm knows none") {
    const noise::Key key{std::byte{3}};
    const auto newcomers_key = [&] {
      return SwarmKey::invited(SwarmKey::of(shared_secret()).swarm(), key);
    };
    Side newcomer(newcomers_key(), 1);
    auto initiator = Handshake::initiate(newcomer.context(), {});
    const auto bytes = initiator.take_output();
    Side unknown(SwarmKey::of(shared_secret()), 2);
    unknown.invite = noise::Key{std::byte{4}};
    Side open(SwarmKey::open("x"), 3);
    open.invite = key;
    Side other_newcomer(newcomers_key(), 4);
    other_newcomer.invite = key;
    for (auto* side : {&unknown, &open, &other_newcomer}) {
      auto responder = Handshake::respond(side->context());
      CHECK(responder.feed(kHandshakeNow, bytes).error().code == Errc::wrong_swarm);
      CHECK(responder.take_output().empty());
    }
    // The right key id with the wrong key behind it: somebody saw a preamble.
    Side guesser(SwarmKey::invited(newcomer.swarm.swarm(), noise::Key{std::byte{5}}), 5);
    auto guess = Handshake::initiate(guesser.context(), {}).take_output();
    std::copy_n(bytes.begin(), limits::kPreamble, guess.begin());
    Side issuer(SwarmKey::of(shared_secret()), 2);
    issuer.invite = key;
    auto responder = Handshake::respond(issuer.context());
    CHECK(responder.feed(kHandshakeNow, guess).error().code == Errc::wrong_swarm);
    CHECK_FALSE(responder.redeeming());
  }

  TEST_CASE("preambles of other versions, modes and protocols are refused") {
    const auto good = encode_preamble({});
    CHECK(decode_preamble(good).value() == Preamble{});
    for (const std::size_t at : {0U, 4U, 5U, 6U, 7U, 8U}) {
      auto bad = good;
      bad[at] ^= std::byte{0x40};
      CAPTURE(at);
      CHECK_FALSE(decode_preamble(bad));
    }
    auto other_version = good;
    other_version[4] = std::byte{2};
    CHECK(decode_preamble(other_version).error().code == Errc::version_mismatch);
  }
}

}  // namespace
}  // namespace starling::transport
