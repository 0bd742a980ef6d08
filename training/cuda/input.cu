#include "training/cuda/hardware.h"
#include "training/cuda/launch_input.h"

namespace starling::training::cuda {
namespace {

// A row of thread blocks for each image, so that no thread divides to find its own.
template <class T>
__global__ void __launch_bounds__(kWalkThreads)
    input_kernel(InputArgs<T> args, std::uint32_t images, std::uint32_t squares) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= squares) return;
  for (std::uint32_t image = blockIdx.y; image < images; image += gridDim.y)
    input_square(args, image, i);
}

template <class T>
const char* input(const InputArgs<T>& args, std::size_t images, Stream stream) {
  constexpr std::size_t kMostRows = 65'535;
  const std::uint32_t squares = squares_a_side(args.side) * squares_a_side(args.side);
  const dim3 grid((squares + kWalkThreads - 1) / kWalkThreads,
                  static_cast<unsigned>(images < kMostRows ? images : kMostRows));
  input_kernel<<<grid, kWalkThreads, 0, stream>>>(args, static_cast<std::uint32_t>(images),
                                                  squares);
  return launch_result();
}

}  // namespace

const char* launch_input(const InputArgs<float>& args, std::size_t images, Stream stream) {
  return input(args, images, stream);
}
const char* launch_input(const InputArgs<Bf16>& args, std::size_t images, Stream stream) {
  return input(args, images, stream);
}

}  // namespace starling::training::cuda
