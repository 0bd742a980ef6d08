#include "transport/secret.h"

#include "node/base/check.h"
#include "node/base/hash.h"
#include "transport/base64.h"
#include "transport/identity.h"
#include "transport/key_text.h"
#include "transport/limits.h"
#include "transport/private_file.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::string_view kSecretLine = "starling-secret 1";
constexpr std::string_view kSwarmDomain = "starling/swarm/1";
constexpr std::string_view kOpenDomain = "starling/open/1";
constexpr std::string_view kOrderDomain = "starling/rotate/1";
constexpr std::string_view kKeyIdDomain = "starling/keyid/1";
constexpr char kPskContext[] = "strlpsk1";
static_assert(sizeof(kPskContext) == crypto_kdf_CONTEXTBYTES + 1);
static_assert(crypto_kdf_KEYBYTES == 32);
constexpr std::size_t kMinPassphrase = 12;
constexpr std::size_t kMinDifferent = 5;
constexpr std::size_t kMaxBareText = 64;  // 44 characters, and white space after them

SwarmId swarm_of(std::string_view domain, ByteView seed) {
  return SwarmId{Hasher{}.add(domain).add(seed).finish().bytes};
}

HandshakeKey key_of(const SwarmSecret& secret) {
  HandshakeKey key;
  key.epoch = secret.epoch();
  const int bad = crypto_kdf_derive_from_key(
      reinterpret_cast<unsigned char*>(key.psk.span().data()), key.psk.span().size(),
      secret.epoch(), kPskContext, reinterpret_cast<const unsigned char*>(secret.bytes().data()));
  STARLING_CHECK_OP(bad, ==, 0);
  key.id = id_of_key(key.psk.view());
  return key;
}

}  // namespace

std::string_view name_of(Mode mode) {
  switch (mode) {
    case Mode::open:
      return "open";
    case Mode::secret:
      return "secret";
    case Mode::invite:
      return "invite";
  }
  return "?";
}

KeyId id_of_key(std::span<const std::byte, 32> psk) {
  const auto hash = Hasher{}.add(kKeyIdDomain).add(ByteView(psk)).finish();
  KeyId id;
  std::copy_n(hash.bytes.begin(), id.size(), id.begin());
  return id;
}

SwarmSecret SwarmSecret::generate() {
  SwarmSecret secret;
  randombytes_buf(secret.bytes_.span().data(), secret.bytes_.span().size());
  secret.swarm_ = swarm_of(kSwarmDomain, secret.bytes());
  return secret;
}

SwarmSecret SwarmSecret::rotated() const {
  SwarmSecret next;
  randombytes_buf(next.bytes_.span().data(), next.bytes_.span().size());
  next.swarm_ = swarm_;
  next.epoch_ = epoch_ + 1;
  return next;
}

Bytes SwarmSecret::ordered_part(std::uint64_t revocations) const {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.append(swarm_.view());
  writer.write(epoch_);
  writer.append(Hasher{}.add(ByteView(bytes_.view())).finish().view());
  writer.write(revocations);
  return bytes;
}

SwarmSecret SwarmSecret::rotated(const Signer& admin, std::uint64_t revocations) const {
  auto next = rotated();
  next.order_ = {revocations, admin.sign(kOrderDomain, next.ordered_part(revocations))};
  return next;
}

bool SwarmSecret::ordered_by(const NodeId& admin) const {
  return order_ && Ed25519Verifier{}.verify(admin, kOrderDomain, ordered_part(order_->revocations),
                                            order_->signature) == Verdict::valid;
}

Result<SwarmSecret> SwarmSecret::from_passphrase(std::string_view passphrase,
                                                 std::string_view swarm_name) {
  const auto weak = [](std::string what) {
    return fail(Errc::bad_argument, Doing::parsing_arguments,
                "the passphrase has " + std::move(what) +
                    ": take several words that nobody would guess, or no passphrase at all, which "
                    "makes a secret of 32 random bytes");
  };
  // Code points: whoever types Greek must not need fewer of them.
  const auto characters = std::ranges::count_if(
      passphrase, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; });
  if (characters < static_cast<std::ptrdiff_t>(kMinPassphrase))
    return weak("only " + std::to_string(characters) + " characters, of at least " +
                std::to_string(kMinPassphrase));
  const std::set<char> different(passphrase.begin(), passphrase.end());
  if (different.size() < kMinDifferent)
    return weak("only " + std::to_string(different.size()) + " different characters, of at least " +
                std::to_string(kMinDifferent));
  std::array<unsigned char, crypto_pwhash_SALTBYTES> salt{};
  crypto_generichash(salt.data(), salt.size(),
                     reinterpret_cast<const unsigned char*>(swarm_name.data()), swarm_name.size(),
                     nullptr, 0);
  SwarmSecret secret;
  const int bad = crypto_pwhash(reinterpret_cast<unsigned char*>(secret.bytes_.span().data()),
                                secret.bytes_.span().size(), passphrase.data(), passphrase.size(),
                                salt.data(), crypto_pwhash_OPSLIMIT_INTERACTIVE,
                                crypto_pwhash_MEMLIMIT_INTERACTIVE, crypto_pwhash_ALG_ARGON2ID13);
  if (bad != 0)
    return fail(Errc::no_memory, Doing::parsing_arguments,
                "64 MiB for hashing the passphrase are not there");
  secret.swarm_ = swarm_of(kSwarmDomain, secret.bytes());
  return secret;
}

Result<SwarmSecret> SwarmSecret::parse(std::string_view text) {
  const auto bad = [](std::string_view what) {
    return fail(Errc::corrupt, Doing::reading_file, "the swarm secret " + std::string(what));
  };
  // Locked memory is dear: it is asked for when everything else fits.
  if (!text.starts_with(kSecretLine)) {
    constexpr std::string_view kNeither = "is neither a secret file nor the base64 of 32 bytes";
    if (text.size() > kMaxBareText) return bad(kNeither);
    SwarmSecret secret;
    if (!decode_base64(text, secret.bytes_.span())) return bad(kNeither);
    secret.swarm_ = swarm_of(kSwarmDomain, secret.bytes());
    return secret;
  }
  const auto version = take_line(text, "starling-secret");
  if (!version || *version != "1") return bad("has a version other than 1");
  const auto id = take_hex_line<SwarmId>(text, "swarm");
  if (!id) return bad("has no valid line 'swarm'");
  const auto epoch = take_number_line(text, "epoch");
  if (!epoch) return bad("has no valid line 'epoch'");
  const auto bytes = take_line(text, "secret");
  std::optional<SecretOrder> order;
  if (const auto revocations = take_number_line(text, "revocations")) {
    const auto encoded = take_line(text, "order");
    order = {*revocations, {}};
    if (!encoded || !decode_base64(*encoded, order->signature.bytes))
      return bad("has no valid line 'order'");
  }
  if (text.find_first_not_of(" \t\r\n") != std::string_view::npos) return bad("has further lines");
  SwarmSecret secret;
  if (!bytes || !decode_base64(*bytes, secret.bytes_.span()))
    return bad("has no valid line 'secret'");
  secret.swarm_ = *id;
  secret.epoch_ = *epoch;
  secret.order_ = order;
  if (*epoch == 0 && secret.swarm_ != swarm_of(kSwarmDomain, secret.bytes()))
    return bad("of epoch 0 does not match its swarm id");
  return secret;
}

std::string SwarmSecret::print() const {
  return std::string(kSecretLine) + "\nswarm " + to_hex(swarm_.view()) + "\nepoch " +
         std::to_string(epoch_) + "\nsecret " + encode_base64(bytes()) + "\n" +
         (order_ ? "revocations " + std::to_string(order_->revocations) + "\norder " +
                       encode_base64(order_->signature.view()) + "\n"
                 : "");
}

Result<SwarmSecret> SwarmSecret::load(const std::filesystem::path& path) {
  TRY(auto text, read_private_file(path, limits::kMaxSecretText, Ownership::mounted));
  auto secret = parse(text);
  wipe(std::as_writable_bytes(std::span(text)));
  if (!secret)
    return fail(secret.error().code, Doing::reading_file,
                path.string() + ": " + secret.error().detail);
  return secret;
}

Result<void> SwarmSecret::create(const std::filesystem::path& path) const {
  auto text = print();
  auto created = create_private_file(path, text);
  wipe(std::as_writable_bytes(std::span(text)));
  return created;
}

SwarmKey SwarmKey::open(std::string_view swarm_name) {
  SwarmKey key;
  key.swarm_ = swarm_of(kOpenDomain, as_bytes(swarm_name));
  return key;
}

SwarmKey SwarmKey::of(const SwarmSecret& current) {
  SwarmKey key;
  key.mode_ = Mode::secret;
  key.swarm_ = current.swarm();
  key.current_ = key_of(current);
  return key;
}

SwarmKey SwarmKey::invited(const SwarmId& swarm, std::span<const std::byte, 32> one_time_key) {
  SwarmKey key;
  key.mode_ = Mode::invite;
  key.swarm_ = swarm;
  key.current_.emplace();
  key.current_->id = id_of_key(one_time_key);
  std::ranges::copy(one_time_key, key.current_->psk.span().begin());
  return key;
}

void SwarmKey::also_accept(const SwarmSecret& other) {
  STARLING_CHECK(mode_ == Mode::secret && other.swarm() == swarm_);
  STARLING_CHECK_OP(others_.size(), <, 2U);
  others_.push_back(key_of(other));
}

const HandshakeKey* SwarmKey::find(const KeyId& id) const {
  if (current_ && current_->id == id) return &*current_;
  const auto found = std::ranges::find(others_, id, &HandshakeKey::id);
  return found == others_.end() ? nullptr : &*found;
}

}  // namespace starling::transport
