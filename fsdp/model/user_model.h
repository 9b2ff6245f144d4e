// A model that is not one of ours: it says what the plan must know, and makes the units that the engine runs.
// Plug-ins (plugin.h) and programs that use the library (fsdp/fsdp.h) give one.
//
// Call order: Describe, then MakeUnits once for each rank. Thread safety: both may be called from several
// threads at once (ranks are threads of one process in local_job.h). Errors: exceptions, LibTorch's and
// std::exception, become the job's error at MakeUserUnits().
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

class UserModel {
 public:
  virtual ~UserModel() = default;

  // The same each time, on every machine: ranks and coordinator plan with it.
  virtual ModelDescription Describe() const = 0;

  // One unit for each described, in order. `facts` is what the plan made of the description, with what the
  // spec says of the parameters (frozen ones). Initial values must depend on nothing but the seed (unit.h).
  // The units may outlive the model.
  virtual std::vector<std::unique_ptr<Unit>> MakeUnits(const ModelFacts& facts, at::Device device) const = 0;
};

// The model's units. INTERNAL with what the model threw; INVALID_ARGUMENT when it made another number.
absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakeUserUnits(const UserModel& model,
                                                                 const ModelFacts& facts, at::Device device);

}  // namespace fsdpd
