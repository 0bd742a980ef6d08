// Launches the passes of the codec: a thread block, or a warp, for each block of the codec.
//
// Shared rules of launches: launch_optimizer.h. Arguments: codec_passes.h. All give the bytes, and
// the bits of x and r, that gossip/delta gives on a CPU.
// Tested:  tests/training/cuda/codec_test.cc (on a CPU), gpu_test.cc (on a GPU).
#pragma once

#include "training/cuda/codec_passes.h"
#include "training/cuda/launch_optimizer.h"

#include <cstdint>

namespace starling::training::cuda {

// Encodes every block into its slot, closes up the slots into `delta`, and writes the figures.
//
// Shapes:  delta has room for max_bytes() of the level; figures and delta may be read once the
//          stream got there. A difference that is not finite leaves the delta unusable: look at
//          first_bad before anything else.
// Cost:    reads x and r once, writes the delta twice.
[[nodiscard]] const char* launch_encode(const EncodeArgs& args, std::uint8_t* delta,
                                        DeltaFigures* figures, Stream stream);

// x and r of an exchange; *distance becomes |q_higher - q_lower|^2.
//
// Cost:    one read and write of x and r.
[[nodiscard]] const char* launch_exchange(const ExchangeArgs& args, double* distance,
                                          Stream stream);

// r := q, up to the width of each block.
[[nodiscard]] const char* launch_install(const InstallArgs& args, Stream stream);

}  // namespace starling::training::cuda
