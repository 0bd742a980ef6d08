// What needs the CUDA runtime but no kernel, against a runtime that this file makes up: who asks
// for memory how often, and what is waited for before somebody else may go on.
#include "training/cuda/device_vectors.h"

#include "tests/gossip/delta/models.h"
#include "training/cuda/pinned_memory.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

using namespace starling;
using namespace starling::training;

namespace {

constexpr std::size_t kPlenty = std::numeric_limits<std::size_t>::max() / 2;

// The runtime: device memory is the host's, and what is launched is under way until it is waited
// for.
struct Runtime {
  std::map<void*, std::size_t> taken;
  std::size_t room = kPlenty;  // bytes
  int device = 0;              // the current one
  cudaError_t kept = cudaSuccess;
  bool host_memory_stays = false;          // cudaFreeHost() fails
  bool under_way = false;                  // on the codec's stream
  bool legacy_under_way = false;           // a copy from memory that may be paged
  cudaEvent_t waited_for = nullptr;        // by the codec's stream
  cudaEvent_t before_last_copy = nullptr;  // what it had waited for by then
  const char* launch = nullptr;            // what a launch says
};
Runtime runtime;
int codec_stream = 0;
int written = 0;

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) runtime.kept = error;
  return error;
}
cudaError_t take(void** memory, std::size_t bytes) {
  if (bytes > runtime.room) return told(cudaErrorMemoryAllocation);
  *memory = std::calloc(bytes, 1);
  runtime.taken[*memory] = bytes;
  runtime.room -= bytes;
  return cudaSuccess;
}
cudaError_t give(void* memory) {
  runtime.room += runtime.taken.extract(memory).mapped();
  std::free(memory);
  return cudaSuccess;
}

}  // namespace

extern "C" {
cudaError_t cudaSetDevice(int device) {
  runtime.device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(runtime.kept, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "made up"; }
cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return take(memory, bytes); }
cudaError_t cudaFree(void* memory) { return give(memory); }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return take(memory, bytes); }
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return take(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  if (runtime.host_memory_stays) return told(cudaErrorInvalidValue);
  return give(memory);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(&codec_stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  (stream == nullptr ? runtime.legacy_under_way : runtime.under_way) = false;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  runtime.waited_for = event;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  runtime.legacy_under_way = true;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  runtime.under_way = true;
  runtime.before_last_copy = runtime.waited_for;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  runtime.under_way = true;
  return cudaSuccess;
}
}

namespace starling::training::cuda {

const char* launch_encode(const EncodeArgs&, std::uint8_t*, DeltaFigures*, Stream) {
  runtime.under_way = true;
  return runtime.launch;
}
const char* launch_exchange(const ExchangeArgs&, double*, Stream) { return runtime.launch; }
const char* launch_install(const InstallArgs&, Stream) { return runtime.launch; }

}  // namespace starling::training::cuda

namespace {

// A master on device 2, beside which some memory lies idle.
class Port final : public cuda::DeviceMasterPort {
 public:
  explicit Port(const gossip::Layout& layout)
      : parameters(layout.size()), mean(layout.bn_channels()), variance(layout.bn_channels()) {}

  void with_device_master(const std::function<void(const cuda::MasterPlaces&)>& job) override {
    job({parameters.data(), mean.data(), variance.data(), reinterpret_cast<cudaEvent_t>(&written)});
    left_under_way = runtime.under_way;
  }
  int device_index() const override { return 2; }
  void give_back_idle() override {
    ++asked;
    runtime.room += std::exchange(idle, 0);
    runtime.device = 0;
  }

  std::vector<float> parameters;
  std::vector<float> mean;
  std::vector<float> variance;
  std::size_t idle = 0;         // bytes
  int asked = 0;                // how often for them
  bool left_under_way = false;  // when the last lease ended
};

// Vectors of a small model, of a runtime that knows of nothing before.
struct Given {
  Given() { runtime = {}; }
  void make() {
    auto made = cuda::DeviceVectors::make(layout, port);
    REQUIRE(made.has_value());
    vectors = *std::move(made);
  }

  const gossip::Layout layout = gossip::testing::uneven_layout();
  Port port{layout};
  std::unique_ptr<gossip::ReplicaVectors> vectors;
};

}  // namespace

TEST_SUITE("training/cuda/device_vectors") {
  TEST_CASE("a reference finds room in memory that lies idle, and asks for it only where it must") {
    Given given;
    given.make();
    const auto first = given.vectors->make_reference();
    CHECK(first.has_value());
    CHECK(given.port.asked == 0);

    runtime.room = 0;
    given.port.idle = kPlenty;
    const auto second = given.vectors->make_reference();

    CHECK(second.has_value());
    CHECK(given.port.asked == 1);
    CHECK(runtime.device == 2);
  }

  TEST_CASE("where nothing lies idle a reference is refused after one question") {
    Given given;
    given.make();
    runtime.room = 0;

    const auto reference = given.vectors->make_reference();

    REQUIRE_FALSE(reference.has_value());
    CHECK(reference.error().code == Errc::no_memory);
    CHECK(given.port.asked == 1);
    CHECK(runtime.kept == cudaSuccess);
  }

  TEST_CASE("the codec finds room in memory that lies idle") {
    Given given;
    runtime.room = std::size_t{1} << 16;
    given.port.idle = kPlenty;

    given.make();

    CHECK(given.port.asked == 1);
    CHECK(runtime.device == 2);
  }

  TEST_CASE("a codec is made when what it was told of the model has arrived") {
    Given given;
    given.make();

    CHECK_FALSE(runtime.legacy_under_way);
  }

  TEST_CASE("the lease does not end before what a failed job began has") {
    Given given;
    given.make();
    runtime.launch = "no room for a kernel";
    gossip::Carry carry;

    const auto done = given.vectors->with_master([&](gossip::LentMaster& master) -> Result<void> {
      TRY_VOID(master.encode(nullptr, gossip::Level::l0, carry));
      return {};
    });

    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().code == Errc::device_failed);
    CHECK_FALSE(given.port.left_under_way);
  }

  TEST_CASE("a master is overwritten behind the optimizer pass") {
    Given given;
    given.make();
    auto reference = given.vectors->make_reference();
    REQUIRE(reference.has_value());
    REQUIRE((*reference)->fill([](std::span<float> values) { values[0] = 7; }).has_value());

    const auto done = given.vectors->with_master([&](gossip::LentMaster& master) -> Result<void> {
      master.overwrite(**reference);
      return {};
    });

    REQUIRE(done.has_value());
    CHECK(runtime.before_last_copy == reinterpret_cast<cudaEvent_t>(&written));
    CHECK(given.port.parameters[0] == 7);
  }

  TEST_CASE("statistics that a job changed are the master's when the lease ends") {
    Given given;
    given.make();
    given.port.mean[1] = 2;

    const auto done = given.vectors->with_master([&](gossip::LentMaster& master) -> Result<void> {
      TRY(const auto statistics, master.statistics());
      statistics.mean[1] += 1;
      statistics.variance[2] = 5;
      return master.edit([](std::span<float> values) { values[3] = 4; });
    });

    REQUIRE(done.has_value());
    CHECK(given.port.mean[1] == 3);
    CHECK(given.port.variance[2] == 5);
    CHECK(given.port.parameters[3] == 4);
    CHECK_FALSE(given.port.left_under_way);
  }

  TEST_CASE("pinned memory goes back on its own device, and keeps no error for the next launch") {
    runtime = {};
    const HostMemory memory = cuda::pinned_memory(3);
    for (const bool stays : {true, false}) {
      CAPTURE(stays);
      void* const bytes = memory.take(100, memory.device);
      REQUIRE(bytes != nullptr);
      runtime.device = 0;
      runtime.host_memory_stays = stays;

      memory.give(bytes, memory.device);

      CHECK(runtime.device == 3);
      CHECK(runtime.kept == cudaSuccess);
      if (stays) {
        runtime.host_memory_stays = false;
        memory.give(bytes, memory.device);
      }
    }
    CHECK(runtime.taken.empty());
  }
}
