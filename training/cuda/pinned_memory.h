// Memory of the host that a GPU reads at full speed, for whoever knows nothing of GPUs.
#pragma once

#include "training/data/pixels.h"

namespace starling::training::cuda {

// Pages that stay where they are, so that a copy to any device needs no stop in between. Any thread
// may take and give; the first to take makes `device` ready, which may cost seconds. Null where the
// system has no such pages left: ordinary memory does as well then, only slower.
[[nodiscard]] HostMemory pinned_memory(int device);

}  // namespace starling::training::cuda
