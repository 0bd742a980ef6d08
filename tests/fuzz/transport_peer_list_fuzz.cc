// Lists of nodes: what parses, printed one id a line, parses to the same.
#include "transport/peer_rules.h"

#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::transport;
  const auto ids = parse_peer_list({reinterpret_cast<const char*>(data), size});
  if (!ids) return 0;
  if (ids->size() > kMaxListedPeers) std::abort();
  std::string printed;
  for (const auto& id : *ids) printed += to_hex(id.view()) + '\n';
  const auto again = parse_peer_list(printed);
  if (!again || *again != *ids) std::abort();
  return 0;
}
