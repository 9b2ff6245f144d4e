// Checkpoint conversion: copies a model's parameters and optimizer state. Sources: native, Hugging Face,
// Megatron-Core torch_dist, and the DCP checkpoints of PyTorch FSDP2 and torchtitan. Targets: native, Hugging
// Face and torch_dist; of a LoRA job, PEFT (ConversionOptions::adapters).
//
// The result has all parameters of `model`. Between native and torch_dist, it also has the optimizer's
// moments and step counts and the position in the data, bit for bit, if the source has them; other source
// entries are listed in the result. A source with missing, extra or differently shaped parameters is rejected
// with all violations, and nothing is written. The target is complete or absent (part_directory.h). An
// interrupted conversion leaves nothing or, with `resumes`, its complete files, from which the same
// conversion resumes and produces the same bytes (convert_journal.h).
//
// Tensors are streamed: a thread holds one at a time, or twice that for tensors that are transposed or
// merged.
//
// Errors: those of the source's reader; ALREADY_EXISTS and FAILED_PRECONDITION if the target cannot be
// created (part_directory.h, convert_journal.h); UNAVAILABLE if the disk is or would become full; CANCELLED.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/convert/convert_plan.h"
#include "fsdp/checkpoint/dcp/dcp_index.h"

namespace fsdpd {

// Updated while Convert() runs; read it from another thread.
struct ConversionProgress {
  std::atomic<int64_t> tensors = 0, of_tensors = 0;
  std::atomic<int64_t> bytes = 0, of_bytes = 0;  // Written.
};

struct ConversionResult {
  DcpViolations violations;  // If not empty, nothing was written.
  int64_t tensors = 0;
  int64_t bytes = 0;  // Size of the tensors' data.
  int64_t files = 0;
  std::vector<std::string> left_out;  // Tensors and optimizer settings of the source that were not converted.
  int64_t overflowed = 0;             // Elements that are finite in the source and infinite in the new type.
  int64_t files_found = 0;            // Complete files of an interrupted conversion, included in `files`.
  int64_t bytes_found = 0;            // Bytes of these files.
};

absl::StatusOr<ConversionResult> Convert(const ConversionOptions& conversion, int threads,
                                         const std::function<bool()>& stopped, ConversionProgress* progress);

}  // namespace fsdpd
