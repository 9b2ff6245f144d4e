#include "fsdp/profile/device_facts.h"

namespace fsdpd {

absl::StatusOr<DeviceFacts> DescribeCudaDevice(int index) {
  return absl::FailedPreconditionError("this binary was built without --config=cuda");
}

}  // namespace fsdpd
