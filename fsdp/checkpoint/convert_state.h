// Which tensors of a checkpoint are the optimizer's state of a model: moments, main parameters and counts of
// steps, beside the parameters that param_match.h found.
//
// Ours stand under names of their own for each parameter. Megatron-Core's stand under the name of the model's
// tensor and lie as it does, in what it calls fully_reshardable (main parameters: `param`) and in what it
// wrote without its distributed optimizer (`fp32_param`). What it keeps in buckets of the run that wrote it
// (dp_reshardable, and dp_zero_gather_scatter) cannot be told apart from outside, and is a fault.
//
// Not pure: counts of steps are read. Errors: the reader's.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_store.h"
#include "fsdp/checkpoint/param_match.h"

namespace fsdpd {

struct StateMatch {
  std::vector<std::string> moments;           // As torch names them: "exp_avg".
  std::vector<std::vector<int64_t>> tensors;  // Of each moment and parameter; -1: a frozen one has none.
  std::vector<int64_t> main;     // Of each parameter; -1: the model's own tensor is all there is.
  std::vector<bool> counted;     // Of each parameter: whether it has a count of steps.
  std::optional<int64_t> steps;  // Which all parameters have made, where each has a count.
  std::set<std::string> names;   // Of all tensors that were found.
  DcpFaults faults;

  bool IsTrained(size_t param) const;  // It has moments, or a count where nothing has moments.
};

// `naming`: of `match`, which has no faults. Without `optimizer` main parameters alone are looked for.
absl::StatusOr<StateMatch> MatchState(const DcpTensorReader& source, Naming naming, const ParamMatch& match,
                                      bool optimizer);

}  // namespace fsdpd
