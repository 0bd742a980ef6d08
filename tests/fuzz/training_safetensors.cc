// An input is taken as a safetensors file, and as changes of a file that is good: what is accepted
// tiles the file exactly, and a model that is read from it has values that may be trained on.
#include "node/base/check.h"
#include "tests/support/temp_folder.h"
#include "training/file_io.h"
#include "training/model_file.h"
#include "training/safetensors.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace {

using namespace starling;
using namespace starling::training;

constexpr std::uint64_t kMaxFile = std::uint64_t{64} << 20;

// Two layers, named as those of a residual net. The smallest of the real ones is a file of 1.2 MB,
// which would make some ten inputs a second.
const Model& model() {
  static const Model made = [] {
    auto layout = gossip::Layout::make({{"conv1.weight", {4, 1, 3, 3}},
                                        {"bn1.weight", {4}},
                                        {"bn1.bias", {4}},
                                        {"layer1.0.downsample.0.weight", {8, 4, 1, 1}},
                                        {"layer1.0.downsample.1.weight", {8}},
                                        {"layer1.0.downsample.1.bias", {8}},
                                        {"fc.weight", {2, 8}},
                                        {"fc.bias", {2}}},
                                       12);
    STARLING_CHECK(layout.has_value());
    return Model{{}, *std::move(layout), {{"bn1", 4, 0}, {"layer1.0.downsample.1", 8, 4}}, 12};
  }();
  return made;
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// Whether it was read as the model.
bool try_file(Bytes bytes) {
  const std::size_t size = bytes.size();
  const auto file = SafetensorsFile::parse(std::move(bytes));
  if (!file) {
    STARLING_CHECK(file.error().code == Errc::corrupt);
    return false;
  }
  std::uint64_t total = 0;
  for (const TensorEntry& tensor : file->tensors()) {
    STARLING_CHECK(tensor.begin == total);
    total = tensor.end;
    STARLING_CHECK(file->find(tensor.name) == &tensor);
    STARLING_CHECK(file->data(tensor).size() == tensor.end - tensor.begin);
    (void)hash_of(file->data(tensor));  // reads every byte
  }
  STARLING_CHECK(total <= size);
  const auto replica = parse_model(*file, model());
  if (!replica) return false;
  STARLING_CHECK(replica->parameters.size() == model().layout.size());
  STARLING_CHECK(all_finite(replica->parameters));
  STARLING_CHECK(all_finite(replica->bn_mean) && all_finite(replica->bn_variance));
  STARLING_CHECK(replica->bn_variance.empty() || std::ranges::min(replica->bn_variance) >= 0);
  STARLING_CHECK(replica->batches_tracked >= 0 && replica->batches_tracked <= kMaxBatchesTracked);
  return true;
}

Bytes good_file() {
  Replica replica;
  replica.parameters.assign(model().layout.size(), 0.0F);
  replica.bn_mean.assign(model().layout.bn_channels(), 0.0F);
  replica.bn_variance.assign(model().layout.bn_channels(), 1.0F);
  const TempFolder folder;
  const auto path = folder.path() / "good";
  STARLING_CHECK(write_model(path, model(), replica, {}).has_value());
  auto bytes = read_whole_file(path, kMaxFile);
  STARLING_CHECK(bytes.has_value());
  STARLING_CHECK(try_file(*bytes));
  return *std::move(bytes);
}

// Writes over the good file, time and again: whether in the header or in the values (one byte),
// where (four), how many bytes (one), and these.
Bytes changed_file(ByteView changes) {
  static const Bytes good = good_file();
  static const std::size_t data_start = parse_safetensors_header(good, good.size())->data_start;
  Bytes file = good;
  ByteReader reader(changes);
  while (reader.left() > 0) {
    const auto kind = reader.read<std::uint8_t>();
    const auto where = reader.read<std::uint32_t>();
    const auto count = reader.read<std::uint8_t>();
    if (!count) break;
    const ByteView put = *reader.take(std::min<std::size_t>(*count, reader.left()));
    auto part = std::span(file);
    part = *kind % 2 == 0 ? part.first(data_start) : part.subspan(data_start);
    part = part.subspan(*where % part.size());
    std::ranges::copy(put.first(std::min(put.size(), part.size())), part.begin());
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ByteView bytes = std::as_bytes(std::span(data, size));
  (void)try_file(to_bytes(bytes));
  (void)try_file(changed_file(bytes));
  return 0;
}
