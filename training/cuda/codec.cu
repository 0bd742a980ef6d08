#include "training/cuda/hardware.h"
#include "training/cuda/launch_codec.h"

namespace starling::training::cuda {
namespace {

// Threads of a block of 4,096 values, and of a pass over all blocks.
constexpr unsigned kBlockThreads = 256;
constexpr unsigned kFoldThreads = 1'024;
// Threads of a block of which a hundred values or so are touched.
constexpr unsigned kListThreads = 64;
// Few blocks are looked at, and everybody waits: as many threads as there can be.
constexpr unsigned kLookThreads = 1'024;

__global__ void __launch_bounds__(kLookThreads) look_kernel(EncodeArgs args) {
  __shared__ CoderMemory memory;
  with_crew([&](GpuCrew& crew) { look_at_drift(crew, memory, args, blockIdx.x); });
}

__global__ void __launch_bounds__(kFoldThreads) drift_kernel(EncodeArgs args) {
  with_crew([&](GpuCrew& crew) { find_drift(crew, args); });
}

__global__ void __launch_bounds__(kBlockThreads, 5) encode_kernel(EncodeArgs args) {
  __shared__ CoderMemory memory;
  with_crew([&](GpuCrew& crew) {
    // Trials first: they take longest.
    const std::uint32_t tried = trials(args.sampled);
    if (blockIdx.x < tried) return try_level(crew, memory, args, blockIdx.x);
    encode_block(crew, memory, args, blockIdx.x - tried);
  });
}

__global__ void __launch_bounds__(kFoldThreads)
    close_up_kernel(EncodeArgs args, DeltaFigures* figures) {
  with_crew([&](GpuCrew& crew) { close_up(crew, args, blockIdx.x, figures); });
}

__global__ void __launch_bounds__(kBlockThreads)
    gather_kernel(EncodeArgs args, std::uint8_t* delta) {
  with_crew([&](GpuCrew& crew) { gather_block(crew, args, blockIdx.x, delta); });
}

__global__ void __launch_bounds__(kBlockThreads)
    exchange_kernel(ExchangeArgs args, std::uint32_t first) {
  __shared__ ExchangeMemory memory;
  with_crew([&](GpuCrew& crew) { exchange_block(crew, memory, args, first + blockIdx.x); });
}

__global__ void __launch_bounds__(kListThreads) exchange_sparse_kernel(ExchangeArgs args) {
  __shared__ SparseMemory memory;
  with_crew([&](GpuCrew& crew) { exchange_sparse_block(crew, memory, args, blockIdx.x); });
}

__global__ void __launch_bounds__(kFoldThreads)
    distances_kernel(const double* distances, std::uint32_t blocks, double* out) {
  with_crew([&](GpuCrew& crew) { sum_distances(crew, distances, blocks, out); });
}

__global__ void __launch_bounds__(kBlockThreads) install_kernel(InstallArgs args) {
  __shared__ ExchangeMemory memory;
  with_crew([&](GpuCrew& crew) { install_block(crew, memory, args, blockIdx.x); });
}

}  // namespace

const char* launch_encode(const EncodeArgs& args, std::uint8_t* delta, DeltaFigures* figures,
                          Stream stream) {
  if (gossip::is_sparse(args.level)) {
    if (args.sampled.count() > 0)
      look_kernel<<<args.sampled.count(), kLookThreads, 0, stream>>>(args);
    if (const char* wrong = launch_result()) return wrong;
    drift_kernel<<<1, kFoldThreads, 0, stream>>>(args);
    if (const char* wrong = launch_result()) return wrong;
  }
  encode_kernel<<<trials(args.sampled) + args.shapes.blocks, kBlockThreads, 0, stream>>>(args);
  if (const char* wrong = launch_result()) return wrong;
  close_up_kernel<<<kCloseParts, kFoldThreads, 0, stream>>>(args, figures);
  if (const char* wrong = launch_result()) return wrong;
  gather_kernel<<<args.shapes.blocks, kBlockThreads, 0, stream>>>(args, delta);
  return launch_result();
}

const char* launch_exchange(const ExchangeArgs& args, double* distance, Stream stream) {
  const bool sparse = gossip::is_sparse(args.lower.level) && gossip::is_sparse(args.higher.level);
  const std::uint32_t first_dense = sparse ? args.shapes.first_small : 0;
  if (first_dense != 0) exchange_sparse_kernel<<<first_dense, kListThreads, 0, stream>>>(args);
  if (const char* wrong = launch_result()) return wrong;
  if (first_dense != args.shapes.blocks)
    exchange_kernel<<<args.shapes.blocks - first_dense, kBlockThreads, 0, stream>>>(args,
                                                                                    first_dense);
  if (const char* wrong = launch_result()) return wrong;
  distances_kernel<<<1, kFoldThreads, 0, stream>>>(args.distances, args.shapes.blocks, distance);
  return launch_result();
}

const char* launch_install(const InstallArgs& args, Stream stream) {
  install_kernel<<<args.shapes.blocks, kBlockThreads, 0, stream>>>(args);
  return launch_result();
}

}  // namespace starling::training::cuda
