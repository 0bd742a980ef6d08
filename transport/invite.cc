#include "transport/invite.h"

#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/base/hash.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::uint8_t kInviteVersion = 1;
constexpr std::size_t kChecksum = 4;
constexpr std::string_view kDigits = "abcdefghijklmnopqrstuvwxyz234567";

std::unexpected<Error> bad_invite(std::string_view what, Errc code = Errc::bad_argument) {
  return fail(code, Doing::parsing_arguments,
              "the invite " + std::string(what) +
                  "; ask for it again: it is one string from "
                  "starling1: to its last letter");
}

std::array<std::byte, kChecksum> checksum(ByteView bytes) {
  const auto hash = Hasher{}.add(std::string_view("starling/invite/1")).add(bytes).finish();
  std::array<std::byte, kChecksum> sum{};
  std::copy_n(hash.bytes.begin(), sum.size(), sum.begin());
  return sum;
}

std::string encode_base32(ByteView bytes) {
  std::string text;
  unsigned bits = 0;
  unsigned kept = 0;
  for (const auto byte : bytes) {
    bits = (bits << 8U) | std::to_integer<unsigned>(byte);
    kept += 8;
    for (; kept >= 5; kept -= 5) text += kDigits[(bits >> (kept - 5)) & 31U];
  }
  if (kept > 0) text += kDigits[(bits << (5 - kept)) & 31U];
  return text;
}

// Nothing for another character, a length that no bytes have, or bits left over that are not zero:
// every invite has one text.
std::optional<Bytes> decode_base32(std::string_view text) {
  Bytes bytes;
  unsigned bits = 0;
  unsigned kept = 0;
  for (const char c : text) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const auto digit = kDigits.find(lower);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 5U) | static_cast<unsigned>(digit);
    kept += 5;
    if (kept < 8) continue;
    kept -= 8;
    bytes.push_back(static_cast<std::byte>((bits >> kept) & 0xffU));
    bits &= (1U << kept) - 1;
  }
  if (kept >= 5 || bits != 0) return std::nullopt;
  return bytes;
}

Result<std::vector<Endpoint>> read_addresses(ByteReader& reader) {
  const auto count = reader.read<std::uint8_t>();
  if (!count || *count == 0 || *count > limits::kMaxAdvertised)
    return bad_invite("has no address, or too many");
  std::vector<Endpoint> addresses;
  for (unsigned i = 0; i < *count; ++i) {
    const auto size = reader.read<std::uint8_t>();
    const auto host = size ? reader.take(*size) : std::nullopt;
    const auto port = reader.read<std::uint16_t>();
    if (!port || host->size() > limits::kMaxAdvertisedHost)
      return bad_invite("has a broken address");
    // The same rules as for what a person types.
    Endpoint endpoint{std::string(as_text(*host)), *port};
    const auto parsed = parse_endpoint(to_string(endpoint));
    if (!parsed || *parsed != endpoint) return bad_invite("has a broken address");
    addresses.push_back(std::move(endpoint));
  }
  return addresses;
}

}  // namespace

noise::Key make_invite_key() {
  noise::Key key{};
  randombytes_buf(key.data(), key.size());
  return key;
}

std::string print_invite(const Invite& invite) {
  STARLING_CHECK(!invite.issuer.empty() && invite.issuer.size() <= limits::kMaxAdvertised);
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.write(kInviteVersion);
  writer.append(invite.swarm.view());
  writer.append(invite.key);
  writer.write(invite.expires_s);
  writer.write(static_cast<std::uint8_t>(invite.issuer.size()));
  for (const auto& endpoint : invite.issuer) {
    STARLING_CHECK_OP(endpoint.host.size(), <=, limits::kMaxAdvertisedHost);
    writer.write(static_cast<std::uint8_t>(endpoint.host.size()));
    writer.append(as_bytes(endpoint.host));
    writer.write(endpoint.port);
  }
  const auto sum = checksum(bytes);
  writer.append(sum);
  return std::string(kInvitePrefix) + encode_base32(bytes);
}

Result<Invite> parse_invite(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  if (const auto last = text.find_last_not_of(kBlanks); last != std::string_view::npos)
    text = text.substr(0, last + 1);
  if (!text.starts_with(kInvitePrefix)) return bad_invite("does not begin with starling1:");
  if (text.size() > kMaxInviteText) return bad_invite("is too long");
  const auto bytes = decode_base32(text.substr(kInvitePrefix.size()));
  if (!bytes) return bad_invite("has a letter that no invite has, or its end is missing");
  if (bytes->size() < kChecksum) return bad_invite("is too short");
  const auto body = ByteView(*bytes).first(bytes->size() - kChecksum);
  if (!std::ranges::equal(checksum(body), ByteView(*bytes).last(kChecksum)))
    return bad_invite("has a letter wrong or missing");
  ByteReader reader(body);
  const auto version = reader.read<std::uint8_t>();
  if (!version) return bad_invite("is too short");
  if (*version != kInviteVersion)
    return bad_invite("is of another version of starling", Errc::version_mismatch);
  const auto swarm = reader.take(32);
  const auto key = reader.take(noise::Key{}.size());
  const auto expires = reader.read<std::uint64_t>();
  if (!expires) return bad_invite("is too short");
  Invite invite;
  invite.swarm = *SwarmId::from(*swarm);
  std::ranges::copy(*key, invite.key.begin());
  invite.expires_s = *expires;
  TRY(invite.issuer, read_addresses(reader));
  if (reader.left() != 0) return bad_invite("has bytes behind its end");
  return invite;
}

}  // namespace starling::transport
