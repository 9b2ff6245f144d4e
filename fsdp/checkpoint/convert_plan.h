// What a conversion is told, what it writes, and from which numbers of the source: all of it known before a
// byte is moved. convert.h does it.
//
// Not pure: of the source, what is no tensor is read. Errors: the reader's; what is wrong with the source is
// a fault, all of them at once.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_file.h"
#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/megatron_files.h"
#include "fsdp/checkpoint/open_store.h"
#include "fsdp/checkpoint/tensor_names.h"
#include "fsdp/checkpoint/tensor_store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct Conversion {
  std::string source, target;          // Directories.
  ModelConfig model;                   // Llama or GPT-2.
  StoreFormat to = StoreFormat::kDcp;  // kDcp: native.
  const TensorType* type = nullptr;    // Of what is written; CanCast().
  int64_t file_bytes = 0;              // Of each file at most, unless one tensor is larger.
  std::string config;                  // kHf: the text of config.json.
  // kDcp and kTorchDist: the spec of a job with the model, as JSON, for a source that has none in it. May be
  // empty.
  std::string spec = {};
  bool optimizer = true;                  // Its state too, where the source has it and the target can.
  std::optional<AdamSettings> adam = {};  // kTorchDist: which no step can be made without there.
  bool resumes = false;
  bool anew = false;  // With `resumes`: what an interrupted one left is thrown away.
  // Of an owner that has looked at what is at the target: it is replaced, and this file, with this text, says
  // whose the new one is. Empty: there is nothing at the target, and nothing more is written.
  std::string mark_name = {}, mark = {};
  // Of a job's export: part_directory.h, and whether this attempt may still replace what is at the target.
  int attempt = 0;
  std::function<absl::Status()> may_commit = {};
};

// The numbers of one parameter, or of one of its moments, in a tensor of the source.
struct ConvertWay {
  size_t param = 0;
  size_t tensor = 0;
};

// What is written at once: a tensor, or the part of one that is of one layer, with all parameters in it.
struct ConvertTarget {
  DcpPiece piece;
  std::vector<ConvertWay> ways;  // None: `number` is all of it.
  int64_t begin = 0;             // The piece's first number, in the flattened tensor.
  float number = 0;

  int64_t bytes() const { return piece.at.elements() * piece.type->bytes; }
};

struct ConvertPlan {
  std::vector<NamedParam> from, to;  // Of each parameter.
  std::vector<ConvertTarget> targets;
  std::vector<DcpSmall> values;       // Native: what is no tensor.
  MegatronCommon common;              // torch_dist: likewise.
  std::optional<AdamSettings> adam;   // torch_dist: where the optimizer's state goes over.
  DcpFaults faults;                   // Some: the rest says nothing.
  std::vector<std::string> left_out;  // As ConversionResult's.

  int64_t bytes() const;    // Of the numbers of all targets.
  int64_t tensors() const;  // That the targets are parts of.
};

absl::StatusOr<ConvertPlan> PlanConversion(const TensorReader& source, const Conversion& conversion);

}  // namespace fsdpd
