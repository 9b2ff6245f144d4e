#include "fsdp/torch/torch_status.h"

#include <absl/strings/cord.h>
#include <c10/util/Exception.h>

#include <optional>

#include "base/process/shortage.h"

namespace fsdpd {
namespace {

constexpr char kThreadsPayload[] = "fsdpd.no_threads";

absl::Status StatusOf(const Shortage& shortage) {
  absl::Status status = absl::ResourceExhaustedError(shortage.text);
  if (shortage.of_threads) status.SetPayload(kThreadsPayload, absl::Cord());
  return status;
}

}  // namespace

absl::Status StatusOf(const std::exception& error) {
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error)) {
    const char* words = torch->what_without_backtrace();
    if (dynamic_cast<const c10::OutOfMemoryError*>(torch)) return absl::ResourceExhaustedError(words);
    if (dynamic_cast<const c10::DistError*>(torch)) return absl::UnavailableError(words);
    return absl::InternalError(words);
  }
  if (const std::optional<Shortage> shortage = ShortageIn(error)) return StatusOf(*shortage);
  return absl::InternalError(error.what());
}

bool IsOfThreads(const absl::Status& status) { return status.GetPayload(kThreadsPayload).has_value(); }

}  // namespace fsdpd
