#include "training/cuda/space_to_depth.h"

#include "training/cuda/input_passes.h"

namespace starling::training::cuda {
namespace {

constexpr std::int64_t kKernel = 7;
constexpr std::int64_t kBlockKernel = 4;
constexpr std::int64_t kChannels = kBlockChannels;
constexpr std::int64_t kBlockValues = kBlockKernel * kBlockKernel * kChannels;

// O,H,W,I in memory as a matrix of O rows.
at::Tensor rows_of_weight(const at::Tensor& weight) {
  return weight.permute({0, 2, 3, 1}).view({weight.size(0), -1});
}

// In the order of a row of the model's weight: H, W, I.
std::vector<std::int64_t> places_in_blocks(std::int64_t channels) {
  std::vector<std::int64_t> places;
  for (std::int64_t row = 1; row <= kKernel; ++row)
    for (std::int64_t column = 1; column <= kKernel; ++column)
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t block = row / 2 * kBlockKernel + column / 2;
        const std::int64_t pixel = row % 2 * 2 + column % 2;
        places.push_back(block * kChannels + pixel * channels + c);
      }
  return places;
}

}  // namespace

bool SpaceToDepth::fits(const ModelPlan& plan, std::int64_t side) {
  const ConvPlan& conv = plan.stem.conv;
  return conv.kernel == kKernel && conv.stride == 2 && 4 * conv.in <= kChannels && side % 2 == 0;
}

SpaceToDepth::SpaceToDepth(UnitWiring& stem, std::vector<at::Tensor>& weights,
                           std::vector<at::Tensor>& gradients) {
  at::Tensor& weight = weights[stem.conv];
  at::Tensor& gradient = gradients[stem.conv];
  weight_ = rows_of_weight(weight);
  gradient_ = rows_of_weight(gradient);
  places_ = at::tensor(places_in_blocks(weight.size(1)), at::kLong).to(weight.device());
  // Where no value of the model's lies there are zeros for good.
  block_weight_ = at::zeros({weight.size(0), kBlockValues}, weight.options());
  block_gradient_ = at::zeros_like(block_weight_);
  const auto as_weight = [&](const at::Tensor& rows) {
    return rows.view({-1, kBlockKernel, kBlockKernel, kChannels}).permute({0, 3, 1, 2});
  };
  weight = as_weight(block_weight_);
  gradient = as_weight(block_gradient_);
  stem.stride = 1;
  stem.padding = 0;
}

void SpaceToDepth::write_weight() { block_weight_.index_copy_(1, places_, weight_); }

void SpaceToDepth::read_gradient() { at::index_select_out(gradient_, block_gradient_, 1, places_); }

at::Tensor SpaceToDepth::make_images(std::int64_t count, std::int64_t side,
                                     const at::TensorOptions& options) {
  const std::int64_t positions = side / 2 + kBlockBorder;
  return at::zeros({count, positions, positions, kChannels}, options).permute({0, 3, 1, 2});
}

void SpaceToDepth::write_images(const at::Tensor& images, const at::Tensor& blocks) {
  const std::int64_t channels = images.size(1);
  const std::int64_t half = images.size(2) / 2;
  // Rounded and moved as they lie: the device has the blocks made faster than the host.
  const at::Tensor there = images.to(blocks.device(), blocks.scalar_type(), /*non_blocking=*/true);
  blocks.narrow(1, 0, 4 * channels)
      .narrow(2, kBlocksBefore, half)
      .narrow(3, kBlocksBefore, half)
      .unflatten(1, {2, 2, channels})
      .copy_(there.unflatten(3, {half, 2}).unflatten(2, {half, 2}).permute({0, 3, 5, 1, 2, 4}));
}

}  // namespace starling::training::cuda
