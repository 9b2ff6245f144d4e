// Interface of a user-defined model: describes itself for the plan and makes the units that the engine runs.
// Implemented by plug-ins (plugin.h) and by programs that use the library (fsdp/fsdp.h).
//
// Call order: Describe, then MakeUnits once per rank. Thread safety: both must be thread-safe, since ranks
// may be threads of one process (local_job.h). Errors: exceptions (c10::Error and std::exception) become the
// job's error in MakeUserUnits().
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "fsdp/model/unit/unit.h"

namespace fsdpd {

class UserModel {
 public:
  virtual ~UserModel() = default;

  // Must be deterministic across calls and machines: the coordinator and all ranks plan with it.
  virtual ModelDescription Describe() const = 0;

  // Returns one unit per described unit, in order. `facts` is the description as the plan completed it,
  // including settings of the spec for its parameters (frozen ones). Initial values may depend only on the
  // seed (unit.h). The units may outlive the model.
  virtual std::vector<std::unique_ptr<Unit>> MakeUnits(const ModelFacts& facts, at::Device device) const = 0;
};

// Makes the model's units. INTERNAL with the exception that the model threw; INVALID_ARGUMENT if their number
// differs from the facts.
absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakeUserUnits(const UserModel& model,
                                                                 const ModelFacts& facts, at::Device device);

}  // namespace fsdpd
