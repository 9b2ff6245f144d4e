#include "fsdp/plan/verify/verify.h"

#include "base/check.h"
#include "fsdp/plan/verify/verify_checks.h"

namespace fsdpd {

absl::Status Verify(const Program& program, const Layout& layout, const Spec& spec) {
  const VerifyCase verified{program, layout, spec};
  FSDPD_RETURN_IF_ERROR(CheckShape(verified));
  FSDPD_RETURN_IF_ERROR(CheckBuffers(verified));
  FSDPD_ASSIGN_OR_RETURN(const HappensBefore order, HappensBefore::Make(verified));
  FSDPD_RETURN_IF_ERROR(CheckMemory(verified, order));
  return CheckFlow(verified, order);
}

}  // namespace fsdpd
