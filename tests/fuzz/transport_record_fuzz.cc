// The record stream: the input is cut into plain records, sealed, changed at one place, and fed in
// pieces. Unchanged streams must open completely.
#include "transport/record.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::transport;
  if (size < 4) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  const std::size_t piece = 1U + data[0] * 8U;
  const std::size_t change_at = data[1] * 7U;
  const std::byte change{data[2]};
  noise::CipherState cipher;
  cipher.set_key(noise::Key{std::byte{1}});

  RecordSealer sealer(cipher);
  Bytes stream;
  std::size_t records = 0;
  for (auto rest = input.subspan(3); !rest.empty(); ++records) {
    const auto length = std::min<std::size_t>(rest.size(), std::to_integer<std::size_t>(rest[0]));
    Record record;
    record.type = static_cast<RecordType>(records % (kLastRecordType + 1));
    record.head = to_bytes(rest.first(length));
    sealer.seal(record, stream);
    rest = rest.subspan(std::max<std::size_t>(length, 1));
  }
  const bool changed = change != std::byte{0} && change_at < stream.size();
  if (changed) stream[change_at] ^= change;

  RecordOpener opener(cipher);
  std::size_t opened = 0;
  for (ByteView rest = stream; !rest.empty();) {
    const auto part = rest.first(std::min(piece, rest.size()));
    opener.feed(part);
    rest = rest.subspan(part.size());
    while (true) {
      const auto next = opener.next();
      if (!next) {
        if (!changed) std::abort();
        return 0;
      }
      if (!*next) break;
      ++opened;
    }
  }
  if (changed ? opened == records : opened != records) std::abort();
  return 0;
}
