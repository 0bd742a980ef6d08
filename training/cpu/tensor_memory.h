// Where the tensors of this process get their memory.
#pragma once

#include <cstddef>

namespace starling::training {

// From now on every CPU tensor's memory comes from one BlockCache. Calling it again changes
// nothing; tensors that exist keep the memory that they have.
//
// Thread:  any, but before tensors are made at the same time on another.
void use_cached_tensor_memory();

// Gives memory that no tensor holds back to the system: after a job that needed much once.
// Thread: any. Cost: a system call for each large block.
void trim_tensor_memory();

// Bytes that the system has lent to tensors, idle ones included. Thread: any.
[[nodiscard]] std::size_t tensor_memory_bytes();

}  // namespace starling::training
