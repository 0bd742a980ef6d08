// Writes the first inputs of transport's corpora into the folder named on the command line.
#include "node/base/hash.h"
#include "tests/fuzz/transport_keys.h"
#include "tests/transport/certificates.h"
#include "transport/channel.h"
#include "transport/finish_order.h"
#include "transport/wire_codec.h"

#include <filesystem>
#include <fstream>
#include <string>

namespace starling::transport {
namespace {

void write(const std::filesystem::path& path, ByteView bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

Bytes with_first(unsigned char first, ByteView rest) {
  Bytes bytes{std::byte{first}};
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

void handshakes(const std::filesystem::path& folder) {
  for (const bool open : {true, false}) {
    FuzzSide left(1, open);
    FuzzSide right(2, open);
    auto initiator = Handshake::initiate(left.context(), {});
    auto responder = Handshake::respond(right.context());
    auto sent = initiator.take_output();
    const std::string mode = open ? "open" : "secret";
    const unsigned char flags = open ? 0xfc : 0xfd;
    write(folder / ("message1-" + mode), with_first(flags, sent));
    (void)responder.feed(kFuzzTime, sent);
    const auto reply = responder.take_output();
    write(folder / ("message2-" + mode), with_first(flags | 2U, reply));
    (void)initiator.feed(kFuzzTime, reply);
    const auto last = initiator.take_output();
    sent.insert(sent.end(), last.begin(), last.end());
    write(folder / ("message3-" + mode), with_first(flags, sent));
  }
  FuzzSide newcomer(1);
  const noise::Key invite{std::byte{3}};
  newcomer.swarm = SwarmKey::invited(FuzzSide(2, false).swarm.swarm(), invite);
  auto initiator = Handshake::initiate(newcomer.context(), {});
  write(folder / "message1-invite", with_first(0xfd, initiator.take_output()));
}

void channels(const std::filesystem::path& folder) {
  TransferBudget budget;
  Channel channel(End::responder, budget);
  channel.say_welcome();
  channel.ping(7);
  for (const std::size_t size : {0U, 100U, 20'000U}) {
    Message message;
    message.type = 0x0202;
    message.body = Bytes(5, std::byte{1});
    if (size > 0) message.attachment = share(Bytes(size, std::byte{2}));
    (void)channel.send(std::move(message));
  }
  Bytes stream{std::byte{1}};
  ByteWriter writer(stream);
  while (const auto record = channel.next_record(kFuzzTime, limits::kMinBulkRecord)) {
    writer.write(static_cast<std::uint8_t>(record->type));
    writer.write(static_cast<std::uint16_t>(record->body_size()));
    writer.append(record->head);
    writer.append(record->tail);
  }
  write(folder / "messages", stream);
}

void certificates(const std::filesystem::path& folder) {
  const Admin admin;
  const auto inviter = identity_of(1);
  const auto node = identity_of(2).id();
  const auto word = admin.inviter(inviter.id(), 1000);
  const auto list = admin.revoke(3, {node, inviter.id()}, {5, 1001});
  write(folder / "chain-member", with_first(0, encode_chain(admin.member(node, 5))));
  write(folder / "chain-inviter", with_first(0, encode_chain(word)));
  write(folder / "chain-invited",
        with_first(0, encode_chain(admin.invited(word, inviter, node, 1001))));
  write(folder / "list", with_first(1, encode_revocations(list).value()));
  write(folder / "list-text", with_first(2, as_bytes(print_revocations(list).value())));
  write(folder / "order-text",
        with_first(2, as_bytes(print_finish_order(
                          order_finish(admin.swarm, hash_of(as_bytes("settings")), admin.key)))));
  write(folder / "membership-text",
        with_first(2, as_bytes(print_membership({admin.swarm, admin.key.id(),
                                                 admin.invited(word, inviter, node, 1001)}))));
}

}  // namespace
}  // namespace starling::transport

int main(int argc, char** argv) {
  using namespace starling;
  using namespace starling::transport;
  const std::filesystem::path corpus = argc > 1 ? argv[1] : "corpus";
  handshakes(corpus / "transport_handshake");
  channels(corpus / "transport_channel");
  certificates(corpus / "transport_certificate");
  FuzzSide side(1);
  side.hello.identity = side.identity.id();
  write(corpus / "transport_wire_codec" / "hello", encode_hello(side.hello));
  write(corpus / "transport_wire_codec" / "bye",
        encode_bye({Errc::refused, Doing::handshaking, "no"}));
  using namespace std::string_literals;
  const auto text =
      "\3ab\x10"
      "0123456789abcdef"s;
  write(corpus / "transport_record" / "plain", as_bytes("\5\0\0"s + text));
  write(corpus / "transport_record" / "changed", as_bytes("\5\3\1"s + text));
  write(corpus / "transport_address" / "name", as_bytes("example.org:7411"));
  write(corpus / "transport_address" / "v6", as_bytes("[2001:db8::1]:7411"));
  write(corpus / "transport_address" / "pinned", as_bytes(std::string(64, 'a') + "@10.0.0.1:7411"));
  write(corpus / "transport_address" / "bare-secret", as_bytes(std::string(43, 'A')));
  write(corpus / "transport_address" / "secret",
        as_bytes(SwarmSecret::parse(std::string(43, 'A')).value().print()));
  return 0;
}
