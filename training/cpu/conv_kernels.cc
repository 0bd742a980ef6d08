#include "training/cpu/conv_kernels.h"

#include "gossip/delta/isa.h"

namespace starling::training {

template <>
const ConvKernels<float>* conv_kernels() {
#ifdef STARLING_X86_KERNELS
  if (gossip::is_available(gossip::Isa::avx512)) return &conv_kernels_avx512();
  if (gossip::is_available(gossip::Isa::avx2) && __builtin_cpu_supports("fma") != 0)
    return &conv_kernels_avx2();
#endif
  return nullptr;
}

template <>
const ConvKernels<Bf16>* conv_kernels() {
#ifdef STARLING_X86_KERNELS
  if (gossip::is_available(gossip::Isa::avx512) && __builtin_cpu_supports("avx512bf16") != 0)
    return &conv_kernels_avx512bf16();
#endif
  return nullptr;
}

}  // namespace starling::training
