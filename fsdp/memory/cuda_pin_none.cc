#include "base/check.h"
#include "fsdp/memory/cuda_pin.h"

namespace fsdpd {

absl::Status PinForCuda(void*, int64_t) {
  FSDPD_CHECK(false);
  return absl::OkStatus();
}

void UnpinForCuda(void*) { FSDPD_CHECK(false); }

}  // namespace fsdpd
