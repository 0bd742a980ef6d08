#include "training/conv.h"

#include "node/base/check.h"
#include "training/cpu/unfold.h"
#include "training/cpu/winograd.h"
#include "training/device.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>

namespace starling::training {
namespace {

constexpr auto kLast = at::MemoryFormat::ChannelsLast;

// Tiles for each channel below which the weights' gradient is faster as a product of the unfolded
// input: transforming it back costs as much for one tile as for many.
constexpr std::int64_t kChannelsOfTile = 32;

const Bf16* values_of(const at::Tensor& x) {
  STARLING_DCHECK(x.is_contiguous(kLast));
  return static_cast<const Bf16*>(x.const_data_ptr());
}
Bf16* places_of(const at::Tensor& x) {
  STARLING_DCHECK(x.is_contiguous(kLast));
  return static_cast<Bf16*>(x.data_ptr());
}

// Where there are tiles of matrices (AMX), products are so fast that transforming costs more than
// it saves. Over a single pixel a convolution is a linear layer.
std::optional<Winograd> winograd_of(const Conv& conv, const at::Tensor& x) {
  static const WinogradKernels* const kernels = cpu_has_tiles() ? nullptr : winograd_kernels();
  const at::Tensor& weight = conv.weight;
  if (kernels == nullptr || !x.is_cpu() || x.scalar_type() != at::kBFloat16 ||
      weight.size(2) != 3 || weight.size(3) != 3 || conv.stride != 1 || conv.padding != 1 ||
      weight.size(0) % 64 != 0 || weight.size(1) % 64 != 0 || x.size(2) * x.size(3) == 1) {
    return std::nullopt;
  }
  return Winograd({.images = static_cast<std::size_t>(x.size(0)),
                   .height = static_cast<std::size_t>(x.size(2)),
                   .width = static_cast<std::size_t>(x.size(3)),
                   .inputs = static_cast<std::size_t>(weight.size(1)),
                   .outputs = static_cast<std::size_t>(weight.size(0))},
                  *kernels);
}

class Workspace {
 public:
  explicit Workspace(const Winograd& winograd)
      : memory_(at::empty({static_cast<std::int64_t>(winograd.workspace_bytes())}, at::kByte)) {}
  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(memory_.data_ptr()), static_cast<std::size_t>(memory_.numel())};
  }

 private:
  at::Tensor memory_;
};

at::Tensor backward_by(const Winograd& winograd, const Conv& conv, const at::Tensor& x,
                       const at::Tensor& g, InputGradient input) {
  const Workspace workspace(winograd);
  if (static_cast<std::int64_t>(winograd.tiles()) * kChannelsOfTile <
      std::max(conv.weight.size(0), conv.weight.size(1))) {
    Unfolded(conv, x).write_weight_gradient(g);
  } else {
    winograd.weight_gradient(values_of(x), values_of(g), places_of(conv.weight_gradient),
                             workspace.bytes());
  }
  if (input == InputGradient::unwanted) return {};
  at::Tensor dx = at::empty_like(x);
  winograd.input_gradient(values_of(g), values_of(conv.weight), places_of(dx), workspace.bytes());
  return dx;
}

}  // namespace

at::Tensor conv_forward(const Conv& conv, const at::Tensor& x) {
  if (const std::optional<Winograd> winograd = winograd_of(conv, x)) {
    at::Tensor y =
        at::empty({x.size(0), conv.weight.size(0), x.size(2), x.size(3)}, x.options(), kLast);
    winograd->forward(values_of(x), values_of(conv.weight), places_of(y),
                      Workspace(*winograd).bytes());
    return y;
  }
  if (product_parts(conv, x).forward) return Unfolded(conv, x).forward();
  // Not mkldnn_convolution(): that throws where the processor has too little for bf16.
  const at::Tensor y =
      at::conv2d(x, conv.weight, {}, {conv.stride, conv.stride}, {conv.padding, conv.padding});
  // With one channel the layouts cannot be told apart, and it may choose the other.
  return y.contiguous(kLast);
}

at::Tensor conv_backward(const Conv& conv, const at::Tensor& x, const at::Tensor& g,
                         InputGradient input) {
  if (const std::optional<Winograd> winograd = winograd_of(conv, x))
    return backward_by(*winograd, conv, x, g, input);
  const ProductParts product = product_parts(conv, x);
  const bool wants_input = input == InputGradient::wanted;
  at::Tensor dx;
  if (product.weight_gradient) {
    const Unfolded unfolded(conv, x);
    unfolded.write_weight_gradient(g);
    if (!wants_input) return dx;
    if (product.input_gradient) return unfolded.input_gradient(g);
  }
  const std::array<bool, 3> wanted{wants_input, !product.weight_gradient, false};
  at::Tensor dw;
  std::tie(dx, dw, std::ignore) = at::convolution_backward(
      g, x, conv.weight, std::nullopt, {conv.stride, conv.stride}, {conv.padding, conv.padding},
      {1, 1}, /*transposed=*/false, {0, 0}, /*groups=*/1, wanted);
  if (dw.defined()) conv.weight_gradient.copy_(dw);
  // Libraries may choose another layout; who reads the values next relies on this one.
  return dx.defined() ? dx.contiguous(kLast) : dx;
}

}  // namespace starling::training
