// The first of the checks: what instructions name exists and belongs to them, and they run where, over which
// group and with which communicator, their operation says.
#pragma once

#include "fsdp/plan/verify/verify_case.h"

namespace fsdpd {

absl::Status CheckShape(const VerifyCase& verified);

}  // namespace fsdpd
