// How many threads LibTorch uses inside one operation, for the calling thread alone.
#pragma once

namespace starling::training {

// From now on operations that this thread calls use `threads` threads. Unlike
// at::set_num_threads() it changes nothing for other threads and starts none.
void use_intra_op_threads(int threads);

}  // namespace starling::training
