#include "base/check_guard.h"

namespace fsdpd {
namespace {

thread_local int guards = 0;

struct Guard {
  Guard() { ++guards; }
  ~Guard() { --guards; }
};

}  // namespace

absl::Status GuardChecks(const std::function<void()>& work) {
  try {
    const Guard guard;
    work();
  } catch (const CheckFailure& failure) {
    return absl::InternalError(failure.what);
  }
  return absl::OkStatus();
}

bool ChecksAreGuarded() { return guards > 0; }

}  // namespace fsdpd
