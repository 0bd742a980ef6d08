#include "transport/aead.h"

#include "node/base/check.h"
#include "transport/secure_memory.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <limits>

namespace starling::transport {
namespace {

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// Looked up once: a look-up takes a lock and as long as a small message.
const EVP_CIPHER* cipher() {
  static const EVP_CIPHER* const chosen = [] {
    // No file of this machine may choose the algorithms, and nothing is taken down while threads
    // may still seal.
    constexpr std::uint64_t kOptions = OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT;
    STARLING_CHECK(OPENSSL_init_crypto(kOptions, nullptr) == 1);
    const EVP_CIPHER* const found = EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr);
    STARLING_CHECK(found != nullptr);
    return found;
  }();
  return chosen;
}

int int_of(std::size_t size) {
  STARLING_CHECK_OP(size, <=, static_cast<std::size_t>(std::numeric_limits<int>::max()));
  return static_cast<int>(size);
}

}  // namespace

void Aead::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

Aead::~Aead() { wipe(key_); }

Aead& Aead::operator=(const Aead& other) {
  key_ = other.key_;
  return *this;
}

evp_cipher_ctx_st* Aead::begin(const AeadNonce& nonce, ByteView ad, bool sealing) {
  const bool first = context_ == nullptr;
  if (first) context_.reset(EVP_CIPHER_CTX_new());
  auto* const context = context_.get();
  STARLING_CHECK(context != nullptr);
  STARLING_CHECK(EVP_CipherInit_ex(context, first ? cipher() : nullptr, nullptr, raw(key_.data()),
                                   raw(nonce.data()), sealing ? 1 : 0) == 1);
  int done = 0;
  if (!ad.empty())
    STARLING_CHECK(EVP_CipherUpdate(context, nullptr, &done, raw(ad.data()), int_of(ad.size())) ==
                   1);
  return context;
}

void Aead::seal(const AeadNonce& nonce, ByteView ad, ByteView plain, std::span<std::byte> out) {
  STARLING_CHECK_OP(out.size(), ==, plain.size() + kAeadTagSize);
  auto* const context = begin(nonce, ad, true);
  int done = 0;
  if (!plain.empty())
    STARLING_CHECK(EVP_EncryptUpdate(context, raw(out.data()), &done, raw(plain.data()),
                                     int_of(plain.size())) == 1);
  std::byte* const tag = out.data() + plain.size();
  STARLING_CHECK(EVP_EncryptFinal_ex(context, raw(tag), &done) == 1);
  STARLING_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kAeadTagSize, tag) == 1);
}

bool Aead::open(const AeadNonce& nonce, ByteView ad, ByteView sealed, std::span<std::byte> out) {
  STARLING_CHECK_OP(out.size() + kAeadTagSize, ==, sealed.size());
  std::array<std::byte, kAeadTagSize> tag;
  std::ranges::copy(sealed.last(kAeadTagSize), tag.begin());
  auto* const context = begin(nonce, ad, false);
  STARLING_CHECK(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kAeadTagSize, tag.data()) ==
                 1);
  int done = 0;
  // The update may fail as well as the end: either way the bytes are not what they should be.
  bool good = out.empty() || EVP_DecryptUpdate(context, raw(out.data()), &done, raw(sealed.data()),
                                               int_of(out.size())) == 1;
  std::array<unsigned char, kAeadTagSize> end;
  good = good && EVP_DecryptFinal_ex(context, end.data(), &done) == 1;
  if (!good) wipe(out);  // what does not carry its tag is nobody's to read
  return good;
}

}  // namespace starling::transport
