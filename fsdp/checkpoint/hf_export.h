// The Hugging Face directory that a job leaves when it has ended (checkpoint.export): the parameters of its
// last checkpoint in DIR/hf, made beside it as DIR/hf.ATTEMPT.part and renamed when it is whole. An earlier
// attempt that is late neither writes into that directory nor replaces DIR/hf.
//
// Numbers are bfloat16 where the job computed in that, else float32. config.json is the one of the directory
// that the job started from, where it says this model, so that token ids and the family's name stay; else it
// is made from the spec. fsdpd.json says which job's directory it is: what an attempt or a run before left
// there (the directory of checkpoints is one run's at a time) is replaced at once when the new one is
// complete, and never mixed with it; what has no such file is somebody's, and stays.
//
// Errors: ALREADY_EXISTS for somebody else's directory; those of a conversion (convert.h). Thread safety: one
// at a time for each directory.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

std::string HfExportPath(const std::string& dir);

struct HfExport {
  std::string job;         // Its id, or empty.
  int attempt = 1;         // Of the job.
  std::string checkpoint;  // A native one of the spec's model.
  std::function<bool()> stopped;
  // Asked right before DIR/hf is replaced: an error where a later attempt has the directory's lock.
  std::function<absl::Status()> may_commit;
};

// Returns how many bytes of numbers were written.
absl::StatusOr<int64_t> ExportHf(const Spec& spec, const HfExport& what);

}  // namespace fsdpd
