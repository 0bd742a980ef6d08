// Any bytes as a safetensors file: what is accepted tiles the file exactly, and reading every
// tensor stays inside it.
#include "node/base/check.h"
#include "training/model_file.h"
#include "training/safetensors.h"

#include <cstddef>
#include <cstdint>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace starling;
  using namespace starling::training;
  const ByteView bytes = std::as_bytes(std::span(data, size));
  const auto file = SafetensorsFile::parse(to_bytes(bytes));
  if (!file) {
    STARLING_CHECK(file.error().code == Errc::corrupt);
    return 0;
  }
  std::uint64_t total = 0;
  unsigned sum = 0;
  for (const TensorEntry& tensor : file->tensors()) {
    STARLING_CHECK(tensor.begin == total);
    total = tensor.end;
    STARLING_CHECK(file->find(tensor.name) == &tensor);
    for (const std::byte byte : file->data(tensor)) sum += static_cast<unsigned>(byte);
  }
  STARLING_CHECK(total <= size);
  // Reading it as a model must refuse it or give the model's sizes.
  if (const auto model = make_model({"small", 2, 1, 8})) {
    const auto replica = parse_model(*file, *model);
    STARLING_CHECK(!replica || replica->parameters.size() == model->layout.size());
  }
  return sum == 0xffff'ffffU ? 1 : 0;  // keeps the reads
}
