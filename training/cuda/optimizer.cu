#include "training/cuda/hardware.h"
#include "training/cuda/launch_optimizer.h"

namespace starling::training::cuda {
namespace {

template <class T>
__global__ void sgd_kernel(SgdArgs<T> args) {
  if (*args.refused != 0) return;
  walk(args.n / kSgdPack, [&](std::size_t i) { sgd_pack(args, i); });
}

template <class T>
__global__ void finite_kernel(const T* values, std::size_t packs, std::uint32_t* refused) {
  bool bad = false;
  walk(packs, [&](std::size_t i) { bad = bad || has_bad_value(values, i); });
  if (bad) atomicOr(refused, 1U);
}

template <class T>
__global__ void working_copy_kernel(const float* x, std::size_t packs, T* w) {
  walk(packs, [&](std::size_t i) {
    const auto from = reinterpret_cast<const Pack<float, kSgdPack>*>(x)[i];
    Pack<T, kSgdPack> to;
    for (std::size_t k = 0; k < kSgdPack; ++k) narrow(from.at[k], to.at[k]);
    reinterpret_cast<Pack<T, kSgdPack>*>(w)[i] = to;
  });
}

template <class T>
const char* sgd(const SgdArgs<T>& args, Stream stream) {
  sgd_kernel<<<walk_blocks(args.n / kSgdPack), kWalkThreads, 0, stream>>>(args);
  return launch_result();
}

template <class T>
const char* finite(const T* values, std::size_t n, std::uint32_t* refused, Stream stream) {
  const std::size_t packs = n / kSgdPack;
  finite_kernel<<<walk_blocks(packs), kWalkThreads, 0, stream>>>(values, packs, refused);
  return launch_result();
}

template <class T>
const char* working_copy(const float* x, std::size_t n, T* w, Stream stream) {
  const std::size_t packs = n / kSgdPack;
  working_copy_kernel<<<walk_blocks(packs), kWalkThreads, 0, stream>>>(x, packs, w);
  return launch_result();
}

}  // namespace

const char* launch_sgd(const SgdArgs<float>& args, Stream stream) { return sgd(args, stream); }
const char* launch_sgd(const SgdArgs<Bf16>& args, Stream stream) { return sgd(args, stream); }

const char* launch_finite_check(const float* values, std::size_t n, std::uint32_t* refused,
                                Stream stream) {
  return finite(values, n, refused, stream);
}
const char* launch_finite_check(const Bf16* values, std::size_t n, std::uint32_t* refused,
                                Stream stream) {
  return finite(values, n, refused, stream);
}

const char* launch_working_copy(const float* x, std::size_t n, float* w, Stream stream) {
  return working_copy(x, n, w, stream);
}
const char* launch_working_copy(const float* x, std::size_t n, Bf16* w, Stream stream) {
  return working_copy(x, n, w, stream);
}

}  // namespace starling::training::cuda
