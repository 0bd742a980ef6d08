#include "transport/admin_key.h"

#include "transport/base64.h"
#include "transport/key_text.h"
#include "transport/private_file.h"
#include "transport/secure_memory.h"

#include <sodium.h>

#include <string>
#include <utility>

namespace starling::transport {
namespace {

constexpr std::size_t kMaxAdminFile = 256;

}  // namespace

Result<AdminKey> AdminKey::create(const std::filesystem::path& path, const SwarmId& swarm) {
  SecureBytes<32> seed;
  randombytes_buf(seed.span().data(), seed.span().size());
  auto text = "starling-admin 1\nswarm " + to_hex(swarm.view()) + "\nkey " +
              encode_base64(seed.view()) + "\n";
  const auto created = create_private_file(path, text);
  wipe(std::as_writable_bytes(std::span(text)));
  if (!created) return fail(created.error());
  return AdminKey{swarm, Identity::from_seed(seed.view())};
}

Result<AdminKey> AdminKey::load(const std::filesystem::path& path) {
  TRY(auto text, read_private_file(path, kMaxAdminFile, Ownership::mounted));
  std::string_view rest = text;
  const bool known = take_line(rest, "starling-admin") == "1";
  const auto swarm = known ? take_hex_line<SwarmId>(rest, "swarm") : std::nullopt;
  const auto encoded = swarm ? take_line(rest, "key") : std::nullopt;
  SecureBytes<32> seed;
  const bool decoded = encoded && decode_base64(*encoded, seed.span());
  wipe(std::as_writable_bytes(std::span(text)));
  if (!decoded) return fail(Errc::corrupt, Doing::reading_file, path.string() + " is no admin key");
  return AdminKey{*swarm, Identity::from_seed(seed.view())};
}

std::uint64_t fresh_serial() {
  std::uint64_t serial = 0;
  do {
    randombytes_buf(&serial, sizeof serial);
    serial &= ~std::uint64_t{kSerialsOfAnInviter - 1};
  } while (serial == 0);
  return serial;
}

}  // namespace starling::transport
