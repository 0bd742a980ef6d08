// Texts that people write: endpoints, dial targets, secrets. What parses must print to the same.
#include "transport/endpoint.h"
#include "transport/secret.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::transport;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto endpoint = parse_endpoint(text, 7411)) {
    const auto again = parse_endpoint(to_string(*endpoint));
    if (!again || *again != *endpoint) std::abort();
  }
  (void)parse_dial_target(text);
  if (const auto secret = SwarmSecret::parse(text)) {
    const auto again = SwarmSecret::parse(secret->print());
    if (!again || again->swarm() != secret->swarm() || again->epoch() != secret->epoch())
      std::abort();
  }
  return 0;
}
