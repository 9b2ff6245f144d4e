// A model's parameters from one checkpoint into another: native, Hugging Face's, Megatron-Core's torch_dist,
// and what PyTorch's FSDP2 and torchtitan save, into one of the first three.
//
// What is written has all parameters of `model` and nothing else; what the source has besides (optimizer,
// steps) is named in the result. A source that has not all of them, or others, or other shapes, is refused
// with every fault, and nothing is written. The target is there whole or not at all (part_folder.h): who was
// interrupted begins again from the start.
//
// Tensors stream through: a thread holds one at a time, twice where rows and columns change places or several
// become one.
//
// Errors: those of the source's reader; ALREADY_EXISTS and FAILED_PRECONDITION where the target cannot be
// (part_folder.h); UNAVAILABLE for a disk that is full or would be; CANCELLED.
#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/open_store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct Conversion {
  std::string source, target;          // Folders.
  ModelConfig model;                   // Llama or GPT-2.
  StoreFormat to = StoreFormat::kDcp;  // kDcp: native.
  const TensorType* type = nullptr;    // Of what is written; CanCast().
  int64_t file_bytes = 0;              // Of each file at most, unless one tensor is larger.
  std::string config;                  // kHf: the text of config.json.
  // Of an owner that has looked at what is at the target: it is replaced, and this file, with this text, says
  // whose the new one is. Empty: there is nothing at the target, and nothing more is written.
  std::string mark_name = {}, mark = {};
};

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
  std::vector<std::string> left_out;  // Of the source's tensors.
  int64_t overflowed = 0;             // Numbers that were finite and are not in the new type.
};

absl::StatusOr<ConversionResult> Convert(const Conversion& conversion, int threads,
                                         const std::function<bool()>& stopped, ConversionProgress* progress);

}  // namespace fsdpd
