// Well-formedness checks of the verifier, run first: operands exist and match, and each instruction has the
// lane, group and communicator of its operation.
#pragma once

#include "fsdp/plan/verify/verify_case.h"

namespace fsdpd {

absl::Status CheckShape(const VerifyCase& verified);

}  // namespace fsdpd
