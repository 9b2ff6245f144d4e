#include "fsdp/torch/torch_status.h"

#include <c10/util/Exception.h>

#include <new>

namespace fsdpd {

absl::Status StatusOf(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) {
    const char* words = torch->what_without_backtrace();
    if (dynamic_cast<const c10::OutOfMemoryError*>(torch)) return absl::ResourceExhaustedError(words);
    if (dynamic_cast<const c10::DistError*>(torch)) return absl::UnavailableError(words);
    return absl::InternalError(words);
  }
  if (dynamic_cast<const std::bad_alloc*>(&error)) return absl::ResourceExhaustedError("out of host memory");
  return absl::InternalError(error.what());
}

}  // namespace fsdpd
