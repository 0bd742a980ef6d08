// Writes DIR/model.safetensors, a ResNet-50 with made-up statistics, and DIR/io.safetensors: images
// and the logits that this project's evaluation gets for them. torchvision_check.py runs it and
// compares.
#include "node/base/random.h"
#include "training/genesis.h"
#include "training/model_file.h"
#include "training/models/network.h"
#include "training/safetensors.h"
#include "training/working_copy.h"

#include <torch/torch.h>

#include <filesystem>
#include <span>

namespace {

using namespace starling;
using namespace starling::training;

ByteView bytes_of_floats(const at::Tensor& tensor) { return std::as_bytes(floats_of(tensor)); }

Result<void> run(const std::filesystem::path& folder) {
  TRY(const Model model, make_model({"resnet50", 1'000, 3, 96}));
  Replica replica = make_genesis(model, 1).replica;
  Rng rng(1);
  for (float& x : replica.bn_mean) x = static_cast<float>(rng.unit() - 0.5);
  for (float& x : replica.bn_variance) x = static_cast<float>(1 + rng.unit());
  replica.batches_tracked = 3;
  TRY_VOID(write_model(folder / "model.safetensors", model, replica, {}));

  WorkingCopy working(model, {});
  working.load(replica);
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  const at::Tensor images = at::randn({4, 3, 96, 96});
  const at::Tensor logits =
      Network(model)
          .forward(working.weights(), images.contiguous(at::MemoryFormat::ChannelsLast),
                   Mode::evaluation)
          .contiguous();
  TRY(SafetensorsWriter writer,
      SafetensorsWriter::create(
          folder / "io.safetensors",
          {{"images", DType::f32, {4, 3, 96, 96}, 0, 0}, {"logits", DType::f32, {4, 1'000}, 0, 0}},
          {}));
  TRY_VOID(writer.append(bytes_of_floats(images)));
  TRY_VOID(writer.append(bytes_of_floats(logits)));
  TRY_VOID(writer.finish());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  return run(argv[1]).has_value() ? 0 : 1;
}
