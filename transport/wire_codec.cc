// The compiler shim comes first: Cap'n Proto's headers need it.
#include "transport/wire_codec.h"

#include "node/base/check.h"
#include "transport/capnp_compiler.h"
#include "transport/capnp_message.h"
#include "transport/limits.h"
#include "transport/wire.capnp.h"

#include <algorithm>
#include <utility>

namespace starling::transport {
namespace {

std::unexpected<Error> bad_payload(std::string what) {
  return fail(Errc::bad_message, Doing::handshaking, std::move(what));
}

Result<std::vector<Endpoint>> copy_addresses(::capnp::List<wire::Address>::Reader list) {
  if (list.size() > limits::kMaxAdvertised) return bad_payload("too many addresses in a hello");
  std::vector<Endpoint> addresses;
  for (const auto address : list) {
    const auto host = address.getHost();
    if (host.size() == 0 || host.size() > limits::kMaxAdvertisedHost)
      return bad_payload("an address in a hello is empty or too long");
    // What a peer advertises is dialled and shown later, so it obeys the same rules as what a
    // person types.
    Endpoint endpoint{std::string(host.begin(), host.size()), address.getPort()};
    const auto parsed = parse_endpoint(to_string(endpoint));
    if (!parsed || *parsed != endpoint) return bad_payload("an address in a hello is malformed");
    addresses.push_back(std::move(endpoint));
  }
  return addresses;
}

Result<Hello> copy_hello(wire::Hello::Reader reader) {
  Hello hello;
  const auto identity = NodeId::from(view_of(reader.getIdentity()));
  const auto signature = Signature::from(view_of(reader.getSignature()));
  const auto swarm = SwarmId::from(view_of(reader.getSwarm()));
  if (!identity || !signature || !swarm)
    return bad_payload("a key in a hello has the wrong length");
  hello.identity = *identity;
  hello.signature = *signature;
  hello.swarm = *swarm;
  hello.instance = {reader.getInstance()};
  if (reader.getPurpose() > static_cast<std::uint8_t>(Purpose::renew))
    return bad_payload("purpose " + std::to_string(reader.getPurpose()) + " in a hello is unknown");
  hello.purpose = static_cast<Purpose>(reader.getPurpose());
  const auto name = reader.getName();
  if (name.size() > limits::kMaxName) return bad_payload("the name in a hello is too long");
  hello.name.assign(name.begin(), name.size());
  TRY(hello.addresses, copy_addresses(reader.getAddresses()));
  if (const auto certificate = view_of(reader.getCertificate()); !certificate.empty()) {
    TRY(hello.certificate, decode_chain(hello.identity, certificate));
  }
  return hello;
}

Result<Error> copy_bye(wire::Bye::Reader reader) {
  const auto detail = reader.getDetail();
  if (detail.size() > limits::kMaxByeText) return bad_payload("the text of a bye is too long");
  Error why;
  why.doing = Doing::reading_record;
  why.detail.assign(detail.begin(), detail.size());
  const auto code = reader.getCode();
  if (code == 0) {
    why.code = Errc::closed;
    if (why.detail.empty()) why.detail = "the peer said goodbye";
  } else if (code <= static_cast<std::uint8_t>(Errc::internal) &&
             code != static_cast<std::uint8_t>(Errc::cancelled)) {  // which only we can say of us
    why.code = static_cast<Errc>(code);
  } else {
    why.code = Errc::refused;
  }
  return why;
}

}  // namespace

Bytes encode_hello(const Hello& hello) {
  STARLING_CHECK_OP(hello.name.size(), <=, limits::kMaxName);
  STARLING_CHECK_OP(hello.addresses.size(), <=, limits::kMaxAdvertised);
  auto bytes = write_capnp<wire::Hello>([&](wire::Hello::Builder builder) {
    builder.setIdentity(data_of(hello.identity.view()));
    builder.setSignature(data_of(hello.signature.view()));
    builder.setSwarm(data_of(hello.swarm.view()));
    builder.setInstance(hello.instance.value);
    builder.setPurpose(static_cast<std::uint8_t>(hello.purpose));
    builder.setName(hello.name.c_str());
    auto list = builder.initAddresses(static_cast<unsigned>(hello.addresses.size()));
    if (hello.certificate) {
      const auto certificate = encode_chain(*hello.certificate);
      builder.setCertificate(data_of(certificate));
    }
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setHost(hello.addresses[i].host.c_str());
      list[i].setPort(hello.addresses[i].port);
    }
  });
  STARLING_CHECK_OP(bytes.size(), <=, limits::kMaxHandshakePayload);
  return bytes;
}

Result<Hello> decode_hello(ByteView payload) {
  return read_capnp<wire::Hello, Hello>(payload, limits::kMaxHandshakePayload, copy_hello);
}

Bytes encode_bye(const Error& why) {
  return write_capnp<wire::Bye>([&](wire::Bye::Builder builder) {
    const bool orderly = why.code == Errc::cancelled || why.code == Errc::closed;
    builder.setCode(orderly ? std::uint8_t{0} : static_cast<std::uint8_t>(why.code));
    builder.setDetail(why.detail.substr(0, limits::kMaxByeText).c_str());
  });
}

Result<Error> decode_bye(ByteView body) {
  return read_capnp<wire::Bye, Error>(body, limits::kMaxByeText + 128, copy_bye);
}

}  // namespace starling::transport
