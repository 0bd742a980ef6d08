// The one place where LibTorch's exceptions become Errors: nothing throws out of this folder.
//
// Includes torch: for this folder's .cc files only.
#pragma once

#include "node/base/result.h"

#include <functional>
#include <utility>

namespace starling::training {

// The Error for the exception that is being handled: out of memory, a device's failure, or anything
// else that LibTorch says. Call it in a catch block only.
[[nodiscard]] Error current_torch_error(Doing doing);

// Runs `work`, which returns Result<T>; an exception from LibTorch becomes its error.
template <class Work>
[[nodiscard]] auto guarded(Doing doing, Work&& work) -> decltype(work()) {
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    return std::unexpected(current_torch_error(doing));
  }
}

}  // namespace starling::training
