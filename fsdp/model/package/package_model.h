// Makes the units of a package (fsdp/package): unpacks and verifies it, checks that this process can run its
// libraries, loads them, and binds calls to units. Units that share a graph share its libraries.
//
// Errors: those of UnpackPackage(); FAILED_PRECONDITION for another LibTorch version or processor, and for a
// manifest whose calls do not fit its units.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/model/unit/unit.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// `directory`: as in UnpackPackage(). `facts`: units of the package, or of a pipeline stage of it.
absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakePackageUnits(const PackageConfig& config,
                                                                    const std::string& directory,
                                                                    const ModelFacts& facts,
                                                                    at::Device device);

}  // namespace fsdpd
