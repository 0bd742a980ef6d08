#include "bootstrap/message_codec.h"

// clang-format off: the first of the two adds what headers of Cap'n Proto need to compile.
#include "transport/capnp_message.h"
#include "bootstrap/messages.capnp.h"
// clang-format on

#include "node/base/check.h"

#include <algorithm>
#include <string>
#include <utility>

namespace starling::bootstrap {
namespace {

namespace wire = bootstrap_wire;
using transport::data_of;
using transport::read_capnp;
using transport::view_of;
using transport::write_capnp;

constexpr std::size_t kCounterBytes = 40;
constexpr std::size_t kIdBytes = 32;

std::unexpected<Error> bad_message(std::string detail) {
  return fail(Errc::bad_message, Doing::reading_message, std::move(detail));
}

transport::Message pack(BootstrapType type, Bytes body, SharedBytes attachment = nullptr) {
  STARLING_CHECK_OP(body.size(), <=, kMaxBootstrapBody);
  return {static_cast<std::uint16_t>(type), std::move(body), std::move(attachment)};
}

// Only what a terminal can show, and not too long.
std::string plain(std::string_view text) {
  std::string shown(text.substr(0, kMaxReasonBytes));
  std::ranges::replace_if(shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

Bytes ids_to_bytes(const std::vector<NodeId>& ids) {
  Bytes bytes;
  ByteWriter writer(bytes);
  for (std::size_t i = 0; i < std::min(ids.size(), kMaxDonors); ++i) writer.append(ids[i].view());
  return bytes;
}

// ---- writing

transport::Message write(const Hello& m) {
  const auto text = m.settings.text();
  return pack(BootstrapType::hello, write_capnp<wire::Hello>([&](auto out) {
                out.setSettings(data_of(as_bytes(text)));
                auto forced = out.initForced(static_cast<unsigned>(m.forced.size()));
                unsigned i = 0;
                for (const auto& key : m.forced) forced.set(i++, data_of(as_bytes(key)));
                out.setAlive(m.alive);
                out.setSamples(m.samples);
                out.setAge(m.age);
                out.setPhase(static_cast<std::uint8_t>(m.phase));
                out.setLoad(m.load);
                if (!m.certificate.is_zero()) out.setCertificate(data_of(m.certificate.view()));
              }));
}

transport::Message write(const StateRequest& m) {
  return pack(BootstrapType::state_request, write_capnp<wire::StateRequest>([&](auto out) {
                out.setFingerprint(data_of(m.fingerprint.view()));
                if (!m.snapshot.is_zero()) out.setSnapshot(data_of(m.snapshot.view()));
              }));
}

transport::Message write(const StateManifest& m) {
  Bytes hashes;
  for (const auto& hash : m.manifest.chunk_hashes) ByteWriter(hashes).append(hash.view());
  Bytes counters;
  counters.reserve(m.counters.size() * kCounterBytes);
  ByteWriter writer(counters);
  for (const auto& counter : m.counters) {
    writer.append(counter.id.view());
    writer.write(counter.samples);
  }
  const Bytes donors = ids_to_bytes(m.donors);
  auto body = write_capnp<wire::StateManifest>([&](auto out) {
    out.setFingerprint(data_of(m.manifest.fingerprint.view()));
    out.setStep(m.manifest.step);
    out.setAge(m.manifest.age);
    out.setTotalBytes(m.manifest.total_bytes);
    out.setChunkHashes(data_of(hashes));
    out.setRunAgeMs(m.run_age_ms);
    out.setDonors(data_of(donors));
  });
  return pack(BootstrapType::state_manifest, std::move(body),
              counters.empty() ? nullptr : share(std::move(counters)));
}

transport::Message write(const StateRefused& m) {
  return pack(BootstrapType::state_refused, write_capnp<wire::StateRefused>([&](auto out) {
                if (!m.snapshot.is_zero()) out.setSnapshot(data_of(m.snapshot.view()));
                out.setReason(static_cast<std::uint8_t>(m.reason));
              }));
}

transport::Message write(const ChunkRequest& m) {
  return pack(BootstrapType::chunk_request, write_capnp<wire::ChunkRequest>([&](auto out) {
                out.setSnapshot(data_of(m.snapshot.view()));
                out.setIndex(m.index);
              }));
}

transport::Message write(const Chunk& m) {
  return pack(BootstrapType::chunk, write_capnp<wire::Chunk>([&](auto out) {
                out.setSnapshot(data_of(m.snapshot.view()));
                out.setIndex(m.index);
              }),
              m.bytes);
}

transport::Message write(const StateDone& m) {
  return pack(BootstrapType::state_done, write_capnp<wire::StateDone>([&](auto out) {
                out.setSnapshot(data_of(m.snapshot.view()));
              }));
}

transport::Message write(const DialBackRequest& m) {
  return pack(BootstrapType::dial_back_request,
              write_capnp<wire::DialBackRequest>([&](auto out) { out.setPort(m.port); }));
}

transport::Message write(const DialBackReply& m) {
  const auto address = plain(m.address);
  const auto detail = plain(m.detail);
  return pack(BootstrapType::dial_back_reply, write_capnp<wire::DialBackReply>([&](auto out) {
                out.setPort(m.port);
                out.setReachable(m.reachable);
                out.setAddress(data_of(as_bytes(address)));
                out.setDetail(data_of(as_bytes(detail)));
              }));
}

// ---- reading

Result<Hash> read_hash(::capnp::Data::Reader data) {
  const auto hash = Hash::from(view_of(data));
  if (!hash) return bad_message("a hash of " + std::to_string(data.size()) + " bytes");
  return *hash;
}

// An empty field stands for the hash of zeros, and never the other way round.
Result<Hash> read_optional_hash(::capnp::Data::Reader data) {
  if (data.size() == 0) return Hash{};
  TRY(const auto hash, read_hash(data));
  if (hash.is_zero()) return bad_message("a hash of zeros");
  return hash;
}

Result<std::vector<NodeId>> read_ids(::capnp::Data::Reader data) {
  const auto bytes = view_of(data);
  if (bytes.size() % kIdBytes != 0 || bytes.size() > kMaxDonors * kIdBytes)
    return bad_message("a list of ids of " + std::to_string(bytes.size()) + " bytes");
  std::vector<NodeId> ids;
  for (std::size_t at = 0; at < bytes.size(); at += kIdBytes)
    ids.push_back(*NodeId::from(bytes.subspan(at, kIdBytes)));
  return ids;
}

Result<std::string> read_plain(::capnp::Data::Reader data) {
  const auto text = as_text(view_of(data));
  if (plain(text) != text) return bad_message("a text that cannot be shown");
  return std::string(text);
}

Result<BootstrapMessage> read_hello(wire::Hello::Reader in) {
  Hello hello;
  TRY(hello.settings, Settings::parse(as_text(view_of(in.getSettings()))));
  const auto forced = in.getForced();
  if (forced.size() > Settings::kMaxKeys) return bad_message("too many forced keys");
  for (const auto key : forced) hello.forced.emplace(as_text(view_of(key)));
  if (hello.forced.size() != forced.size() || !valid_keys(hello.forced))
    return bad_message("forced keys that are none");
  hello.alive = in.getAlive();
  hello.samples = in.getSamples();
  hello.age = in.getAge();
  if (!valid_age(hello.age)) return bad_message("a replica without an age");
  if (in.getPhase() < 1 || in.getPhase() > 5)
    return bad_message("a node in phase " + std::to_string(in.getPhase()));
  hello.phase = static_cast<RunPhase>(in.getPhase());
  hello.load = in.getLoad();
  TRY(hello.certificate, read_optional_hash(in.getCertificate()));
  return hello;
}

Result<BootstrapMessage> read_request(wire::StateRequest::Reader in) {
  StateRequest request;
  TRY(request.fingerprint, read_hash(in.getFingerprint()));
  TRY(request.snapshot, read_optional_hash(in.getSnapshot()));
  return request;
}

Result<std::vector<gossip::SavedCounter>> read_counters(ByteView bytes) {
  if (bytes.size() % kCounterBytes != 0 || bytes.size() / kCounterBytes > kMaxSavedCounters)
    return bad_message("counters in " + std::to_string(bytes.size()) + " bytes");
  std::vector<gossip::SavedCounter> counters;
  counters.reserve(bytes.size() / kCounterBytes);
  ByteReader reader(bytes);
  while (reader.left() > 0) {
    gossip::SavedCounter counter;
    counter.id = *NodeId::from(*reader.take(kIdBytes));
    counter.samples = *reader.read<std::uint64_t>();
    if (!counters.empty() && !(counters.back().id < counter.id))
      return bad_message("counters out of order");
    counters.push_back(counter);
  }
  return counters;
}

Result<BootstrapMessage> read_manifest(wire::StateManifest::Reader in, ByteView attachment) {
  StateManifest message;
  Manifest& manifest = message.manifest;
  TRY(manifest.fingerprint, read_hash(in.getFingerprint()));
  manifest.step = in.getStep();
  manifest.age = in.getAge();
  manifest.total_bytes = in.getTotalBytes();
  const auto hashes = view_of(in.getChunkHashes());
  if (hashes.size() % kIdBytes != 0 || hashes.size() > kMaxChunks * kIdBytes)
    return bad_message("chunk hashes of " + std::to_string(hashes.size()) + " bytes");
  for (std::size_t at = 0; at < hashes.size(); at += kIdBytes)
    manifest.chunk_hashes.push_back(*Hash::from(hashes.subspan(at, kIdBytes)));
  TRY_VOID(check_manifest(manifest));
  message.run_age_ms = in.getRunAgeMs();
  TRY(message.donors, read_ids(in.getDonors()));
  TRY(message.counters, read_counters(attachment));
  return message;
}

Result<BootstrapMessage> read_refused(wire::StateRefused::Reader in) {
  StateRefused refused;
  TRY(refused.snapshot, read_optional_hash(in.getSnapshot()));
  if (in.getReason() < 1 || in.getReason() > 5)
    return bad_message("a refusal for reason " + std::to_string(in.getReason()));
  refused.reason = static_cast<RefusalReason>(in.getReason());
  return refused;
}

Result<BootstrapMessage> read_reply(wire::DialBackReply::Reader in) {
  DialBackReply reply;
  reply.port = in.getPort();
  reply.reachable = in.getReachable();
  TRY(reply.address, read_plain(in.getAddress()));
  TRY(reply.detail, read_plain(in.getDetail()));
  return reply;
}

}  // namespace

transport::Message encode(const BootstrapMessage& message) {
  return std::visit([](const auto& content) { return write(content); }, message);
}

std::size_t max_attachment(std::uint16_t type) {
  switch (static_cast<BootstrapType>(type)) {
    case BootstrapType::state_manifest:
      return kMaxSavedCounters * kCounterBytes;
    case BootstrapType::chunk:
      return kChunkBytes;
    default:
      return 0;
  }
}

Result<BootstrapMessage> decode_bootstrap(const transport::Message& message) {
  const auto attached = message.attached();
  if (attached.size() > max_attachment(message.type))
    return fail(Errc::too_large, Doing::reading_message,
                "an attachment of " + std::to_string(attached.size()) + " bytes");
  const auto read = [&]<class Schema>(auto copy) {
    return read_capnp<Schema, BootstrapMessage>(message.body, kMaxBootstrapBody, copy);
  };
  using Out = Result<BootstrapMessage>;
  switch (static_cast<BootstrapType>(message.type)) {
    case BootstrapType::hello:
      return read.template operator()<wire::Hello>(read_hello);
    case BootstrapType::state_request:
      return read.template operator()<wire::StateRequest>(read_request);
    case BootstrapType::state_manifest:
      return read.template operator()<wire::StateManifest>(
          [&](auto in) { return read_manifest(in, attached); });
    case BootstrapType::state_refused:
      return read.template operator()<wire::StateRefused>(read_refused);
    case BootstrapType::chunk_request:
      return read.template operator()<wire::ChunkRequest>([](auto in) -> Out {
        TRY(const auto snapshot, read_hash(in.getSnapshot()));
        return ChunkRequest{snapshot, in.getIndex()};
      });
    case BootstrapType::chunk:
      return read.template operator()<wire::Chunk>([&](auto in) -> Out {
        TRY(const auto snapshot, read_hash(in.getSnapshot()));
        return Chunk{snapshot, in.getIndex(), message.attachment};
      });
    case BootstrapType::state_done:
      return read.template operator()<wire::StateDone>([](auto in) -> Out {
        TRY(const auto snapshot, read_hash(in.getSnapshot()));
        return StateDone{snapshot};
      });
    case BootstrapType::dial_back_request:
      return read.template operator()<wire::DialBackRequest>(
          [](auto in) -> Out { return DialBackRequest{in.getPort()}; });
    case BootstrapType::dial_back_reply:
      return read.template operator()<wire::DialBackReply>(read_reply);
  }
  return bad_message("bootstrap message of unknown type " + std::to_string(message.type));
}

}  // namespace starling::bootstrap
