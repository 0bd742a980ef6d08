#include "training/cuda/working_set.h"

#include "training/working_copy.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstddef>

namespace starling::training::cuda {
namespace {

// Views begin at multiples of this: more than any load of a kernel needs.
constexpr std::int64_t kAlignment = 512;
constexpr std::int64_t kLineCount = sizeof(NormLines) / sizeof(float*);

std::int64_t bytes_of(const WorkingSet::Want& want) {
  return want.count * static_cast<std::int64_t>(at::elementSize(want.type));
}

// Cuts all from one allocation, filled with zeros, which is returned.
at::Tensor cut(at::Device device, const std::vector<WorkingSet::Want>& wanted) {
  const auto room_of = [](const WorkingSet::Want& want) {
    return (bytes_of(want) + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::int64_t total = 0;
  for (const WorkingSet::Want& want : wanted) total += room_of(want);
  at::Tensor memory = at::zeros({total}, at::TensorOptions(at::kByte).device(device));
  // Whoever uses it has a stream of its own, which does not wait for the one that writes the zeros.
  c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
  std::int64_t at = 0;
  for (const WorkingSet::Want& want : wanted) {
    *want.view = memory.narrow(0, at, bytes_of(want)).view(want.type);
    at += room_of(want);
  }
  return memory;
}

std::int64_t widest_norm(const Model& model) {
  std::int64_t widest = 0;
  for (const NormSpec& norm : model.norms) widest = std::max(widest, norm.channels);
  TORCH_CHECK(widest <= static_cast<std::int64_t>(kMostChannels), "a normalisation has ", widest,
              " channels, the kernels take at most ", kMostChannels);
  return widest;
}

}  // namespace

WorkingSet::WorkingSet(const Model& model, at::Device device, at::ScalarType type,
                       std::vector<Want> more)
    : model_(model), channels_(model.bn_channels) {
  const std::int64_t widest = widest_norm(model);
  const auto big = static_cast<std::int64_t>(model.layout.first_small_block() * gossip::kBlock);
  const auto small = static_cast<std::int64_t>(model.layout.size()) - big;
  std::vector<Want> wanted = std::move(more);
  for (const Want& own :
       {Want{&flat_gradients_.big, big, type}, Want{&flat_gradients_.small, small, at::kFloat},
        Want{&working_.big, big, type}, Want{&working_.small, small, at::kFloat},
        Want{&lines_, kLineCount * channels_, at::kFloat},
        Want{&partials_, 2 * widest * static_cast<std::int64_t>(kMostChunks), at::kFloat},
        Want{&loss_, 1, at::kDouble}})
    wanted.push_back(own);
  memory_ = cut(device, wanted);
  make_views();
}

void WorkingSet::make_views() {
  const std::size_t split = model_.layout.first_small_block() * gossip::kBlock;
  const WorkingPart big_part{0, split, {}, {}};
  const WorkingPart small_part{split, model_.layout.size() - split, {}, {}};
  for (const gossip::TensorPlace& place : model_.layout.tensors()) {
    const bool small = place.is_small();
    const WorkingPart& part = small ? small_part : big_part;
    const auto view_of = [&](const Flat& flat) {
      return WorkingCopy::view(small ? flat.small : flat.big, part, place);
    };
    weights_.parameters.push_back(view_of(working_));
    gradients_.push_back(view_of(flat_gradients_));
  }
}

NormPlaces WorkingSet::norm_places(const UnitWiring& wires) const {
  const NormSpec& norm = model_.norms[wires.norm];
  const auto learned = [&](const std::vector<at::Tensor>& tensors, std::size_t number) {
    return tensors[number].data_ptr<float>();
  };
  NormPlaces places;
  places.channels = static_cast<std::size_t>(norm.channels);
  places.learned = {learned(weights_.parameters, wires.norm_weight),
                    learned(weights_.parameters, wires.norm_bias),
                    learned(gradients_, wires.norm_weight), learned(gradients_, wires.norm_bias)};
  places.lines =
      NormLines::at(lines_.data_ptr<float>() + norm.offset, static_cast<std::size_t>(channels_));
  places.partials = partials_.data_ptr<float>();
  return places;
}

}  // namespace starling::training::cuda
