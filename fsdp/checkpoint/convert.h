// A model's parameters, and its optimizer's state, from one checkpoint into another: native, Hugging Face's,
// Megatron-Core's torch_dist, and what PyTorch's FSDP2 and torchtitan save, into one of the first three.
//
// What is written has all parameters of `model`. Between native checkpoints and torch_dist go the optimizer's
// moments, counts and place in the data too, bit by bit, where the source has them; what else it has is named
// in the result. A source that has not all of it, or others, or other shapes, is refused with every fault,
// and nothing is written. The target is there whole or not at all (part_directory.h). Who is interrupted
// leaves nothing, or with `resumes` files that are whole, from which the same conversion goes on and makes
// the same bytes (convert_journal.h).
//
// Tensors stream through: a thread holds one at a time, twice where rows and columns change places or several
// become one.
//
// Errors: those of the source's reader; ALREADY_EXISTS and FAILED_PRECONDITION where the target cannot be
// (part_directory.h, convert_journal.h); UNAVAILABLE for a disk that is full or would be; CANCELLED.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/convert_plan.h"
#include "fsdp/checkpoint/dcp_index.h"

namespace fsdpd {

// Read by another thread while Convert() runs.
struct ConversionProgress {
  std::atomic<int64_t> tensors = 0, of_tensors = 0;
  std::atomic<int64_t> bytes = 0, of_bytes = 0;  // Written.
};

struct ConversionResult {
  DcpFaults faults;  // Some: nothing was written.
  int64_t tensors = 0;
  int64_t bytes = 0;  // Of their numbers.
  int64_t files = 0;
  std::vector<std::string> left_out;  // Of the source's tensors, and of what it knows of its optimizer.
  int64_t overflowed = 0;             // Numbers that were finite and are not in the new type.
  int64_t files_found = 0;            // Of `files`, that an interrupted one had written.
  int64_t bytes_found = 0;            // In them.
};

absl::StatusOr<ConversionResult> Convert(const Conversion& conversion, int threads,
                                         const std::function<bool()>& stopped, ConversionProgress* progress);

}  // namespace fsdpd
