#include "transport/identity.h"

#include "node/base/check.h"
#include "transport/base64.h"
#include "transport/private_file.h"

#include <sodium.h>

#include <array>
#include <string>

namespace starling::transport {
namespace {

constexpr std::string_view kContext = "starling/sig/1";
constexpr std::string_view kIdentityLine = "starling-identity 1\n";
constexpr std::string_view kIdentityWord = "starling-identity ";
constexpr std::size_t kMaxIdentityFile = 256;

unsigned char* raw(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}
const unsigned char* raw(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// What is signed; see Ed25519Verifier. Ed25519 reads its message twice, so the parts are joined.
Bytes statement(std::string_view domain, ByteView message) {
  STARLING_CHECK(!domain.empty() && domain.size() <= kMaxSigningDomain);
  Bytes bytes;
  bytes.reserve(kContext.size() + 1 + domain.size() + message.size());
  ByteWriter writer(bytes);
  writer.append(as_bytes(kContext));
  writer.write(static_cast<std::uint8_t>(domain.size()));
  writer.append(as_bytes(domain));
  writer.append(message);
  return bytes;
}

}  // namespace

Verdict Ed25519Verifier::verify(const NodeId& signer, std::string_view domain, ByteView message,
                                const Signature& signature) const {
  const auto bytes = statement(domain, message);
  const int bad = crypto_sign_verify_detached(raw(signature.view()), raw(bytes), bytes.size(),
                                              raw(signer.view()));
  return bad == 0 ? Verdict::valid : Verdict::invalid;
}

Identity::Identity(std::span<const std::byte, 32> seed) {
  const int bad =
      crypto_sign_seed_keypair(raw(std::span<std::byte>(id_.bytes)),
                               raw(std::span<std::byte>(secret_.span())), raw(ByteView(seed)));
  STARLING_CHECK_OP(bad, ==, 0);
}

Identity Identity::generate() {
  SecureBytes<32> seed;
  randombytes_buf(seed.span().data(), seed.span().size());
  return Identity(seed.view());
}

Identity Identity::from_seed(std::span<const std::byte, 32> seed) { return Identity(seed); }

Result<Identity> Identity::load(const std::filesystem::path& path) {
  TRY(auto text, read_private_file(path, kMaxIdentityFile, Ownership::own));
  std::string_view rest = text;
  SecureBytes<32> seed;
  const bool known = rest.starts_with(kIdentityLine);
  if (known) rest.remove_prefix(kIdentityLine.size());
  const bool decoded = known && decode_base64(rest, seed.span());
  const bool newer = !known && rest.starts_with(kIdentityWord);
  wipe(std::as_writable_bytes(std::span(text)));
  if (newer)
    return fail(Errc::unsupported, Doing::reading_file,
                path.string() +
                    " is an identity file of a newer program: start that one, or move "
                    "the file away to be a new node");
  if (!decoded)
    return fail(Errc::corrupt, Doing::reading_file, path.string() + " is no identity file");
  return Identity(seed.view());
}

Result<Identity> Identity::create(const std::filesystem::path& path) {
  SecureBytes<32> seed;
  randombytes_buf(seed.span().data(), seed.span().size());
  auto text = std::string(kIdentityLine) + encode_base64(seed.view()) + "\n";
  const auto created = create_private_file(path, text);
  wipe(std::as_writable_bytes(std::span(text)));
  if (!created) return fail(created.error());
  return Identity(seed.view());
}

Result<Identity> Identity::load_or_create(const std::filesystem::path& path) {
  auto loaded = load(path);
  if (loaded || loaded.error().code != Errc::not_found) return loaded;
  auto created = create(path);
  if (created || created.error().code != Errc::already_exists) return created;
  return load(path);
}

Signature Identity::sign(std::string_view domain, ByteView message) const {
  const auto bytes = statement(domain, message);
  Signature signature;
  const int bad = crypto_sign_detached(raw(std::span<std::byte>(signature.bytes)), nullptr,
                                       raw(bytes), bytes.size(), raw(ByteView(secret_.view())));
  STARLING_CHECK_OP(bad, ==, 0);
  return signature;
}

}  // namespace starling::transport
