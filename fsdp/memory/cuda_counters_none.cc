// cuda_counters.h for binaries built without --config=cuda.
#include "base/check.h"
#include "fsdp/memory/cuda_counters.h"

namespace fsdpd {
namespace {

constexpr bool kBuiltWithCuda = false;

}  // namespace

MemoryCounters ReadCudaMemoryCounters(int /*device_index*/) {
  FSDPD_CHECK(kBuiltWithCuda);
  return {};
}

void ResetCudaPeakMemory(int /*device_index*/) { FSDPD_CHECK(kBuiltWithCuda); }

}  // namespace fsdpd
