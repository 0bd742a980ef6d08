#include "training/cpu/intra_op.h"

#include <ATen/Parallel.h>

// Of the OpenMP library that LibTorch brings; clang's <omp.h> belongs to another one.
extern "C" void omp_set_num_threads(int threads);  // NOLINT(readability-identifier-naming)

namespace starling::training {

void use_intra_op_threads(int threads) {
  // LibTorch gives every thread its default at the first question; ours must come after it.
  (void)at::get_num_threads();
  ::omp_set_num_threads(threads);
}

}  // namespace starling::training
