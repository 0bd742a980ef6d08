#include "gossip/membership/member_record.h"

#include "node/base/check.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace starling::gossip {
namespace {

constexpr std::string_view kRecordDomain = "starling/member/1";
constexpr std::string_view kAccusationDomain = "starling/accusation/1";
constexpr std::string_view kReportDomain = "starling/progress/1";
constexpr std::uint8_t kRecordVersion = 1;
constexpr std::size_t kSignatureBytes = 64;

static_assert(1 + 32 + 8 + 8 + 1 + 4 + 4 + 32 + 32 + 1 + kMaxNameBytes + 1 +
                  kMaxAddresses * (1 + kMaxAddressBytes) + kSignatureBytes <=
              kMaxRecordBytes);

void write_text(ByteWriter& writer, std::string_view text) {
  writer.write(static_cast<std::uint8_t>(text.size()));
  writer.append(as_bytes(text));
}

// What the signature covers: the swarm, then the statement without its signature.
Bytes signed_part(const SwarmId& swarm, const Bytes& statement) {
  Bytes message = to_bytes(swarm.view());
  message.insert(message.end(), statement.begin(),
                 statement.end() - static_cast<std::ptrdiff_t>(kSignatureBytes));
  return message;
}

std::unexpected<Error> bad_record(std::string detail) {
  return fail(Errc::bad_message, Doing::reading_message, std::move(detail));
}

// Length of the UTF-8 sequence at the start of `text`; 0 if it is none, or a control character.
std::size_t utf8_length(std::string_view text) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte_at(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  std::uint32_t point = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(i) & 0xc0U) != 0x80U) return 0;
    point = (point << 6U) | (byte_at(i) & 0x3fU);
  }
  const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  const bool control = point < 0xa0;
  return overlong || surrogate || control || point > 0x10ffff ? 0 : length;
}

bool printable_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

bool plausible_address(std::string_view address) {
  return address.size() >= 3 && address.size() <= kMaxAddressBytes &&
         address.find(':') != std::string_view::npos &&
         std::ranges::all_of(address, [](char c) { return c > 0x20 && c < 0x7f; });
}

std::optional<std::string> read_text(ByteReader& reader, std::size_t max) {
  const auto size = reader.read<std::uint8_t>();
  if (!size || *size > max) return std::nullopt;
  const auto text = reader.take(*size);
  if (!text) return std::nullopt;
  return std::string(as_text(*text));
}

template <class Id>
bool read_id(ByteReader& reader, Id& id) {
  const auto raw = reader.take(32);
  if (!raw) return false;
  id = *Id::from(*raw);
  return true;
}

bool read_signature(ByteReader& reader, Signature& signature) {
  const auto raw = reader.take(kSignatureBytes);
  if (!raw) return false;
  signature = *Signature::from(*raw);
  return reader.left() == 0;
}

bool plausible(const Incarnation& incarnation) {
  return incarnation.value >= 1 && incarnation < kMaxIncarnation;
}

bool read_addresses(ByteReader& reader, std::vector<std::string>& addresses) {
  const auto count = reader.read<std::uint8_t>();
  if (!count || *count > kMaxAddresses) return false;
  for (std::uint8_t i = 0; i < *count; ++i) {
    auto address = read_text(reader, kMaxAddressBytes);
    if (!address || !plausible_address(*address)) return false;
    addresses.push_back(std::move(*address));
  }
  return true;
}

}  // namespace

Result<void> check_record(const MemberRecord& record) {
  const auto refuse = [](std::string detail) {
    return fail(Errc::bad_argument, Doing::signing, std::move(detail));
  };
  if (record.name.size() > kMaxNameBytes || !printable_utf8(record.name))
    return refuse("the name of a node is printable UTF-8 of at most " +
                  std::to_string(kMaxNameBytes) + " bytes");
  if (record.addresses.size() > kMaxAddresses)
    return refuse(std::to_string(record.addresses.size()) + " addresses where " +
                  std::to_string(kMaxAddresses) + " are the most");
  for (const auto& address : record.addresses)
    if (!plausible_address(address))
      return refuse("'" + address + "' is no host:port of at most " +
                    std::to_string(kMaxAddressBytes) + " characters");
  if (!plausible(record.incarnation)) return refuse("incarnation out of range");
  return {};
}

Bytes encode_record(const MemberRecord& record) {
  STARLING_CHECK(check_record(record).has_value());
  Bytes bytes;
  bytes.reserve(kMaxRecordBytes);
  ByteWriter writer(bytes);
  writer.write(kRecordVersion);
  writer.append(record.id.view());
  writer.write(record.incarnation.value);
  writer.write(record.instance.value);
  writer.write(static_cast<std::uint8_t>(record.state));
  writer.write(record.roles);
  writer.write(record.capabilities);
  writer.append(record.data_set.view());
  writer.append(record.settings.view());
  write_text(writer, record.name);
  writer.write(static_cast<std::uint8_t>(record.addresses.size()));
  for (const auto& address : record.addresses) write_text(writer, address);
  writer.append(record.signature.view());
  return bytes;
}

Bytes encode_accusation(const Accusation& accusation) {
  Bytes bytes;
  bytes.reserve(kAccusationBytes);
  ByteWriter writer(bytes);
  writer.append(accusation.subject.view());
  writer.write(accusation.incarnation.value);
  writer.append(accusation.accuser.view());
  writer.write(static_cast<std::uint8_t>(accusation.kind));
  writer.write(static_cast<std::uint8_t>(accusation.evidence));
  writer.append(accusation.signature.view());
  return bytes;
}

Bytes encode_report(const ProgressReport& report) {
  Bytes bytes;
  bytes.reserve(kProgressReportBytes);
  ByteWriter writer(bytes);
  writer.append(report.id.view());
  writer.write(report.incarnation.value);
  writer.write(report.samples);
  writer.write(report.rate_millisamples);
  writer.write(report.run_age_ms);
  writer.append(report.signature.view());
  return bytes;
}

Result<MemberRecord> parse_record(ByteView bytes) {
  if (bytes.size() > kMaxRecordBytes)
    return fail(Errc::too_large, Doing::reading_message,
                "a member record of " + std::to_string(bytes.size()) + " bytes");
  ByteReader reader(bytes);
  MemberRecord record;
  if (reader.read<std::uint8_t>() != kRecordVersion)
    return bad_record("a record of unknown version");
  if (!read_id(reader, record.id)) return bad_record("a record without id");
  const auto incarnation = reader.read<std::uint64_t>();
  const auto instance = reader.read<std::uint64_t>();
  const auto state = reader.read<std::uint8_t>();
  const auto roles = reader.read<std::uint32_t>();
  const auto capabilities = reader.read<std::uint32_t>();
  if (!capabilities || !read_id(reader, record.data_set) || !read_id(reader, record.settings))
    return bad_record("a record that ends early");
  record.incarnation = {*incarnation};
  record.instance = {*instance};
  record.roles = *roles;
  record.capabilities = *capabilities;
  if (!plausible(record.incarnation)) return bad_record("a record with an impossible incarnation");
  if (*state < 1 || *state > 3) return bad_record("a record with state " + std::to_string(*state));
  record.state = static_cast<RecordState>(*state);
  auto name = read_text(reader, kMaxNameBytes);
  if (!name || !printable_utf8(*name)) return bad_record("a record with an unprintable name");
  record.name = std::move(*name);
  if (!read_addresses(reader, record.addresses)) return bad_record("a record with wrong addresses");
  if (!read_signature(reader, record.signature)) return bad_record("a record of a wrong length");
  return record;
}

Result<Accusation> parse_accusation(ByteView bytes) {
  ByteReader reader(bytes);
  Accusation accusation;
  if (bytes.size() != kAccusationBytes || !read_id(reader, accusation.subject))
    return bad_record("an accusation of " + std::to_string(bytes.size()) + " bytes");
  accusation.incarnation = {reader.read<std::uint64_t>().value_or(0)};
  const bool has_accuser = read_id(reader, accusation.accuser);
  const auto kind = reader.read<std::uint8_t>().value_or(0);
  const auto evidence = reader.read<std::uint8_t>().value_or(0);
  if (!has_accuser || !plausible(accusation.incarnation) || kind < 1 || kind > 2 || evidence < 1 ||
      evidence > 5)
    return bad_record("an accusation with values out of range");
  accusation.kind = static_cast<AccusationKind>(kind);
  accusation.evidence = static_cast<Evidence>(evidence);
  if (!read_signature(reader, accusation.signature))
    return bad_record("an accusation without signature");
  return accusation;
}

Result<ProgressReport> parse_report(ByteView bytes) {
  ByteReader reader(bytes);
  ProgressReport report;
  if (bytes.size() != kProgressReportBytes || !read_id(reader, report.id))
    return bad_record("a progress report of " + std::to_string(bytes.size()) + " bytes");
  report.incarnation = {reader.read<std::uint64_t>().value_or(0)};
  report.samples = reader.read<std::uint64_t>().value_or(0);
  report.rate_millisamples = reader.read<std::uint64_t>().value_or(0);
  report.run_age_ms = reader.read<std::uint64_t>().value_or(0);
  if (!read_signature(reader, report.signature) || !plausible(report.incarnation))
    return bad_record("a progress report with values out of range");
  return report;
}

bool says_the_same(const MemberRecord& one, const MemberRecord& other) {
  MemberRecord same = one;
  same.incarnation = other.incarnation;
  same.signature = other.signature;
  return same == other;
}

void sign_record(MemberRecord& record, const SwarmId& swarm, const Signer& signer) {
  STARLING_CHECK(record.id == signer.id());
  record.signature = signer.sign(kRecordDomain, signed_part(swarm, encode_record(record)));
}

void sign_accusation(Accusation& accusation, const SwarmId& swarm, const Signer& signer) {
  STARLING_CHECK(accusation.accuser == signer.id());
  accusation.signature =
      signer.sign(kAccusationDomain, signed_part(swarm, encode_accusation(accusation)));
}

void sign_report(ProgressReport& report, const SwarmId& swarm, const Signer& signer) {
  STARLING_CHECK(report.id == signer.id());
  report.signature = signer.sign(kReportDomain, signed_part(swarm, encode_report(report)));
}

Verdict verify_record(const MemberRecord& record, const SwarmId& swarm, const Verifier& verifier) {
  return verifier.verify(record.id, kRecordDomain, signed_part(swarm, encode_record(record)),
                         record.signature);
}

Verdict verify_accusation(const Accusation& accusation, const SwarmId& swarm,
                          const Verifier& verifier) {
  return verifier.verify(accusation.accuser, kAccusationDomain,
                         signed_part(swarm, encode_accusation(accusation)), accusation.signature);
}

Verdict verify_report(const ProgressReport& report, const SwarmId& swarm,
                      const Verifier& verifier) {
  return verifier.verify(report.id, kReportDomain, signed_part(swarm, encode_report(report)),
                         report.signature);
}

std::string_view name_of(RecordState state) {
  switch (state) {
    case RecordState::joining:
      return "joining";
    case RecordState::alive:
      return "alive";
    case RecordState::left:
      return "left";
  }
  return "unknown";
}

std::string_view name_of(Evidence evidence) {
  switch (evidence) {
    case Evidence::no_answer:
      return "heartbeats without answer";
    case Evidence::session_lost:
      return "session lost";
    case Evidence::connection_refused:
      return "connection refused";
    case Evidence::dial_timed_out:
      return "dial timed out";
    case Evidence::indirect_silence:
      return "not reached through others";
  }
  return "unknown";
}

}  // namespace starling::gossip
