// cuda_recorder.h for binaries built without --config=cuda.
#include "base/check.h"
#include "fsdp/memory/cuda_recorder.h"

namespace fsdpd {
namespace {

constexpr bool kBuiltWithCuda = false;

}  // namespace

void RecordCudaMemory(bool /*on*/) { FSDPD_CHECK(kBuiltWithCuda); }

MemorySnapshot TakeCudaMemorySnapshot(int /*device_index*/) {
  FSDPD_CHECK(kBuiltWithCuda);
  return {};
}

}  // namespace fsdpd
