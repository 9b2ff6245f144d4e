// Restore: reads a checkpoint into a rank. Reads only the elements that the rank owns, whatever world size
// and strategy wrote the checkpoint, and the training state. The source is a native checkpoint, or parameters
// in a foreign format (param_source.h). A LoRA job restores twice: the frozen weights from
// train.lora.base_model, and its adapters.
//
// Call order: Open, then Initial() for the parameters that the trainer makes, then Finish().
//
// Const methods are thread-safe. Errors: FAILED_PRECONDITION with one line per difference if the checkpoint
// has another model or lacks state that the job needs, or if its step leaves nothing to train; errors of the
// readers.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "fsdp/checkpoint/convert/param_source.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/checkpoint/job/training_state.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

class Restore {
 public:
  // `own`: written by this job, which resumes with its whole state, even after its last step. For any other
  // checkpoint the spec says how much is loaded; with parameters only, state() is that of a fresh start.
  static absl::StatusOr<std::unique_ptr<Restore>> Open(const Plan& plan, const std::string& path, bool own);
  // The frozen weights of a LoRA job.
  static absl::StatusOr<std::unique_ptr<Restore>> OpenBaseModel(const Plan& plan, const std::string& path);

  const TrainingState& state() const { return state_; }

  // For the user: differences to the saved run, state that is not loaded, and a parameter that is not finite,
  // among those that this rank has read.
  std::vector<std::string> notes() const;
  // Adds a note for each token file that has changed since the checkpoint was saved. `here`:
  // RankData::Traits().
  void CompareData(const std::vector<std::string>& here);

  // LoRA: FAILED_PRECONDITION if the adapters were trained with other frozen weights than `here`
  // (JobLabel::base_model). Weights that are stored in another type are not compared, which a note reports.
  absl::Status CheckBaseModel(const BaseLabel& here);
  // The checkpoint of the frozen weights, which the adapters record; empty: unknown, or initial values.
  const std::string& base_model_path() const { return base_model_.path; }

  // Properties of opened files that have no checksums, for AgreeOnFiles().
  const std::vector<std::string>& traits() const { return traits_; }

  // Source of main parameters; must not outlive this object. A read error yields zeros, and is returned by
  // Finish().
  InitialValues Initial() const;

  // Reads the moments and returns the first error. Also verifies that files without checksums are unchanged
  // since Open.
  absl::Status Finish(const MeshPosition& position, const ShardedParams& params) const;

 private:
  explicit Restore(const Plan& plan) : plan_(plan) {}

  bool parameters_only() const { return part_ != LoadedPart::kTraining; }
  absl::Status OpenNative(const std::string& path, bool own);
  absl::Status OpenForeign(const std::string& path);
  absl::Status OpenPeft(const std::string& path);
  void AddNote(const std::string& note);
  // In the dtype of the file. ReadNative() converts to fp32.
  at::Tensor ReadStored(const std::string& key, int64_t begin, int64_t elements) const;
  at::Tensor ReadNative(const std::string& key, int64_t begin, int64_t elements) const;
  at::Tensor ReadForeign(const std::string& param, int64_t begin, int64_t elements) const;
  // Quantizes moments to 8 bits. Values out of range are an error.
  at::Tensor QuantizeMoments(const at::Tensor& numbers, int moment, const std::string& key) const;
  at::Tensor Failed(const absl::Status& status, int64_t elements) const;
  absl::Status FirstError() const;

  const Plan& plan_;
  std::unique_ptr<DcpReader> native_;  // Either this or foreign_ is set.
  std::unique_ptr<ParamSource> foreign_;
  LoadedPart part_ = LoadedPart::kTraining;
  TrainingState state_;
  std::vector<std::string> notes_, traits_;
  std::vector<std::string> data_;  // JobLabel::data of a resumed run.
  BaseLabel base_model_;           // JobLabel::base_model of it; empty: unknown.
  bool own_ = false;

  mutable Mutex mutex_;
  mutable absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  mutable std::string not_finite_ ABSL_GUARDED_BY(mutex_);  // Name of the first such parameter.
};

}  // namespace fsdpd
