// Reading a checkpoint into a rank: the numbers that it owns and no others, whatever world and strategy wrote
// them, and the state that training goes on from. A native one, or parameters alone in the form that somebody
// else gave them (param_source.h).
//
// Call order: Open, then Initial() for the parameters that the trainer makes, Finish() once they are made.
// Thread safety: const. Errors: FAILED_PRECONDITION with every difference, one a line, where the checkpoint
// is of another model or lacks what the job asks for, or where its step leaves the job nothing to do; the
// readers'.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "fsdp/checkpoint/dcp_reader.h"
#include "fsdp/checkpoint/param_source.h"
#include "fsdp/checkpoint/training_state.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

class Restore {
 public:
  // `own`: the job itself wrote it, and goes on with all that is in it, also after its last step. Of another
  // the spec says how much is taken; where that is the parameters alone the state is that of a fresh start.
  static absl::StatusOr<std::unique_ptr<Restore>> Open(const Plan& plan, const std::string& path, bool own);

  const TrainingState& state() const { return state_; }

  // What goes on otherwise than it was, or is left unread; for people.
  const std::vector<std::string>& notes() const { return notes_; }
  // Adds notes of token files that are others than when it was saved: RankData::Traits().
  void CompareData(const std::vector<std::string>& here);

  // Of the files without checksums that were opened, for ranks to compare (AgreeOnFiles).
  const std::vector<std::string>& traits() const { return traits_; }

  // Main parameters. What cannot be read is zeros, and the error FirstError()'s. Outlived by this.
  InitialValues Initial() const;

  // Reads the moments too; then tells the first error of all, and of files without checksums that they are
  // still what was opened.
  absl::Status Finish(const MeshPosition& position, const ShardedParams& params) const;

 private:
  explicit Restore(const Plan& plan) : plan_(plan) {}

  absl::Status OpenNative(const std::string& path, bool own);
  absl::Status OpenForeign(const std::string& path);
  void Note(const std::string& note);
  // In the dtype of the file. ReadNative() converts to fp32.
  at::Tensor ReadStored(const std::string& key, int64_t begin, int64_t elements) const;
  at::Tensor ReadNative(const std::string& key, int64_t begin, int64_t elements) const;
  at::Tensor ReadForeign(const std::string& param, int64_t begin, int64_t elements) const;
  // As they are stored where moments have eight bits. What would not fit is an error.
  at::Tensor InEightBits(const at::Tensor& numbers, int moment, const std::string& key) const;
  at::Tensor Failed(const absl::Status& status, int64_t elements) const;
  absl::Status FirstError() const;

  const Plan& plan_;
  std::unique_ptr<DcpReader> native_;  // One of both.
  std::unique_ptr<ParamSource> foreign_;
  bool parameters_only_ = false;
  TrainingState state_;
  std::vector<std::string> notes_, traits_;
  std::vector<std::string> data_;  // JobLabel::data, where training goes on.

  mutable Mutex mutex_;
  mutable absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd
