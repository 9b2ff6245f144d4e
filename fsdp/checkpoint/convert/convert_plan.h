// Conversion plan: from a conversion's arguments to everything that is written and the source data it is read
// from, before a byte is copied. convert.h executes it.
//
// Not pure: reads the source's entries that are not tensors. Errors: the reader's. Problems of the source are
// returned as violations, all of them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/convert/lora_merge.h"
#include "fsdp/checkpoint/convert/megatron_files.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/dcp/dcp_file.h"
#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/format/tensor_store.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct ConversionOptions {
  std::string source, target;          // Directories.
  ModelConfig model;                   // Llama or GPT-2.
  StoreFormat to = StoreFormat::kDcp;  // kDcp: native.
  const TensorType* type = nullptr;    // Element type of the result; CanCast().
  int64_t file_bytes = 0;              // Maximum size of a file, unless a single tensor is larger.
  std::string config;                  // kHf: content of config.json; empty: none.
  // kHf: write the adapters of this LoRA job instead of a model, in one file, with adapter_config.json of
  // PEFT. The source is a checkpoint of the job, and the model of the Llama family.
  std::optional<LoraConfig> adapters = {};
  // kDcp and kTorchDist: spec (JSON) of a job with the model, for sources that do not contain one. May be
  // empty.
  std::string spec = {};
  bool optimizer = true;  // Convert optimizer state if the source has it and the target supports it.
  const LoraMerge* merge = nullptr;       // Adapters that are merged into the parameters; null: none.
  std::optional<AdamSettings> adam = {};  // kTorchDist: settings that torch_dist stores with optimizer state.
  bool resumes = false;
  bool anew = false;  // With `resumes`: discard the files of an interrupted conversion.
  // For an owner that has checked the target: replace it, and put a file with this name and content into the
  // new one to identify the owner. Empty: the target must not exist, and no such file is written.
  std::string mark_name = {}, mark = {};
  // For exports of jobs: see part_directory.h, and whether this attempt may still replace the target.
  int attempt = 0;
  std::function<absl::Status()> may_commit = {};
};

// Source of a parameter, or of one of its moments: the index of a tensor.
struct ConvertSource {
  size_t param = 0;
  size_t tensor = 0;
};

// Unit of work: a tensor, or the part of a stacked tensor that belongs to one layer, with all parameters in
// it.
struct ConvertTarget {
  DcpPiece piece;
  std::vector<ConvertSource> sources;  // If empty, `number` fills the piece.
  int64_t begin = 0;                   // First element of the piece in the flattened tensor.
  float number = 0;

  int64_t bytes() const { return piece.at.elements() * piece.type->bytes; }
};

struct ConvertPlan {
  std::vector<NamedParam> from, to;  // By parameter.
  std::vector<ConvertTarget> targets;
  std::vector<DcpSmall> values;       // Native: values that are not tensors.
  MegatronCommon common;              // torch_dist: the same.
  std::optional<AdamSettings> adam;   // torch_dist: set if optimizer state is converted.
  DcpViolations violations;           // If not empty, the other fields are unspecified.
  std::vector<std::string> left_out;  // See ConversionResult.

  int64_t bytes() const;    // Data size of all targets.
  int64_t tensors() const;  // Number of tensors that the targets belong to.
};

absl::StatusOr<ConvertPlan> PlanConversion(const TensorReader& source, const ConversionOptions& conversion);

}  // namespace fsdpd
