// Export of a finished job (checkpoint.export): the parameters of its last checkpoint as a Hugging Face
// directory DIR/hf, or the adapters of a LoRA job for PEFT in DIR/peft. It is written to DIR/hf.ATTEMPT.part
// and renamed when complete. A late earlier attempt neither writes into that directory nor replaces DIR/hf.
//
// Adapters are float32, as PEFT trains them. Numbers of a model are bfloat16 if the job computed in bfloat16,
// else float32. config.json is that of the directory the job started from, if it describes this model, which
// preserves token ids and the family's name; otherwise it is generated from the spec. A package of a
// transformers model contains its config.json, and another package has none. fsdpd.json identifies the job.
// An export of this job or of an earlier run is replaced atomically and never mixed (a checkpoint directory
// belongs to one run at a time). A directory without that file was not written by a job and is not changed.
//
// Errors: ALREADY_EXISTS for a directory without fsdpd.json; NOT_FOUND without the unpacked package; those of
// a conversion (convert.h). Thread safety: one call at a time per directory.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

std::string ExportPath(const CheckpointConfig& checkpoint);  // "DIR/hf"

struct JobExport {
  std::string job;         // Job id, or empty.
  int attempt = 1;         // Attempt of the job.
  std::string checkpoint;  // A native checkpoint of the spec's model.
  std::function<bool()> stopped;
  // Called right before DIR/hf is replaced; returns an error if a later attempt holds the directory's lock.
  std::function<absl::Status()> may_commit;
  std::string package_dir = {};  // Unpacked package, if the model is one.
  std::string base_model = {};   // LoRA: the checkpoint that the frozen weights were read from.
};

// Returns the number of bytes of tensor data.
absl::StatusOr<int64_t> ExportJob(const Spec& spec, const JobExport& what);

}  // namespace fsdpd
