// MakeWindow for binaries built without --config=cuda.
#include "fsdp/comm/window.h"

namespace fsdpd {

absl::StatusOr<std::shared_ptr<void>> MakeWindow(int64_t /*bytes*/, int /*device_index*/) {
  return absl::UnimplementedError("this binary is built for CPU; build it with --config=cuda for NCCL");
}

}  // namespace fsdpd
