// Writes the first inputs of the exchange fuzz targets into the corpus folder named as argument.
#include "gossip/exchange/message_codec.h"
#include "node/base/random.h"
#include "tests/gossip/exchange/sample_messages.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

using namespace starling;

void write(const std::filesystem::path& path, const Bytes& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << as_text(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path corpus(argv[1]);
  int number = 0;
  for (const auto& message : gossip::sample_messages()) {
    const auto wire = gossip::encode_exchange(message);
    Bytes bytes;
    ByteWriter writer(bytes);
    writer.write(wire.type);
    writer.write(static_cast<std::uint16_t>(wire.body.size()));
    writer.append(wire.body);
    writer.append(wire.attached());
    write(corpus / "exchange_messages" / ("sample-" + std::to_string(number++)), bytes);
  }
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Rng rng(seed);
    // Both sessions come up and two jobs are done, then anything happens.
    Bytes bytes;
    for (const int value : {0, 0, 0, 0, 1, 0, 6, 1, 6, 1})
      bytes.push_back(static_cast<std::byte>(value));
    for (int i = 0; i < 600; ++i) bytes.push_back(static_cast<std::byte>(rng() & 0xff));
    write(corpus / "exchange_events" / ("walk-" + std::to_string(seed)), bytes);
  }
  return 0;
}
