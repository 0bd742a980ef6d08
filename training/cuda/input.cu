#include "training/cuda/hardware.h"
#include "training/cuda/launch_input.h"

namespace starling::training::cuda {
namespace {

template <class T>
__global__ void input_kernel(InputArgs<T> args, std::size_t pixels) {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < pixels; i += threads) input_pixel(args, i);
}

template <class T>
const char* input(const InputArgs<T>& args, std::size_t images, Stream stream) {
  const std::size_t pixels = images * args.side * args.side;
  input_kernel<<<walk_blocks(pixels), kWalkThreads, 0, stream>>>(args, pixels);
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
