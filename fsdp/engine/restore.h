// Reading a checkpoint into a rank: the numbers that it owns and no others, whatever world and strategy wrote
// them, and the state that training goes on from.
//
// Call order: Open, then Initial() for the parameters that the trainer makes, Finish() once they are made.
// Thread safety: const. Errors: FAILED_PRECONDITION with every difference where the checkpoint is of another
// model or lacks the optimizer's state; the reader's (dcp_reader.h).
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "base/mutex.h"
#include "fsdp/checkpoint/dcp_reader.h"
#include "fsdp/checkpoint/training_state.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

class Restore {
 public:
  // With `parameters_only`, the state is that of a fresh start.
  static absl::StatusOr<std::unique_ptr<Restore>> Open(const Plan& plan, const std::string& path,
                                                       bool parameters_only);

  const TrainingState& state() const { return state_; }

  // Main parameters. What cannot be read is zeros, and the error FirstError()'s. Outlived by this.
  InitialValues Initial() const;

  // Reads the moments too; then tells the first error of all.
  absl::Status Finish(const MeshPosition& position, const ShardedParams& params) const;

 private:
  Restore(const Plan& plan, std::unique_ptr<DcpReader> reader, bool parameters_only)
      : plan_(plan), reader_(std::move(reader)), parameters_only_(parameters_only) {}

  at::Tensor Read(const std::string& key, int64_t begin, int64_t elements) const;
  absl::Status FirstError() const;

  const Plan& plan_;
  const std::unique_ptr<DcpReader> reader_;
  const bool parameters_only_;
  TrainingState state_;

  mutable Mutex mutex_;
  mutable absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
