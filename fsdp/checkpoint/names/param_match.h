// Search for a model's parameters among a checkpoint's tensors, under any supported naming (tensor_names.h).
//
// A checkpoint uses one naming, below an arbitrary prefix for the model within a training state. Missing
// parameters, wrong shapes, types that are not floating point, extra tensors inside of the model, and a
// second copy of a tied embedding that differs from it are violations, all reported.
//
// If a state has several models, the model without a prefix or under "model", "state_dict" or similar is
// chosen, else the only complete one. If two complete models qualify equally, a violation names both.
//
// Reads only the copies of a tied embedding, if there are two, in pieces of 8 MB. Errors: the reader's.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/format/tensor_store.h"
#include "fsdp/checkpoint/names/tensor_names.h"

namespace fsdpd {

// Nullopt if no names belong to this model's family.
std::optional<Naming> NamingOf(const TensorReader& source, const ModelConfig& model);

struct ParamMatch {
  std::vector<NamedParam> params;  // Every parameter of the model, in our order.
  std::vector<size_t> tensors;     // By parameter, if there are no violations: its index in the source.
  DcpViolations violations;
  // Tensors of the source that are not used: optimizer state and computed buffers.
  std::vector<std::string> left_out;
  // The head's own tensor, if the model ties it to the embedding (params[0]); -1: none.
  int64_t tied_copy = -1;
};

// The source must have exactly these parameters, under these names.
ParamMatch MatchAll(const TensorReader& source, std::vector<NamedParam> params);

// `only_model`: the source must not have anything except the model, like a Hugging Face directory.
absl::StatusOr<ParamMatch> MatchParams(const TensorReader& source, const ModelConfig& model, bool only_model);

}  // namespace fsdpd
