// The parsers of /proc: any text is numbers or nothing.
#include "node/base/bytes.h"
#include "node/base/check.h"
#include "node/observe/host_sampler.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::node;
  const auto text = as_text(std::as_bytes(std::span(data, size)));
  (void)parse_process_stat(text);
  (void)parse_process_io(text);
  (void)parse_network(text);
  (void)parse_disks(text);
  (void)parse_available_memory(text);
  (void)parse_host_cpu(text);
  return 0;
}
