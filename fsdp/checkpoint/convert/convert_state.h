// Search for the optimizer state of a model among a checkpoint's tensors: moments, main parameters and step
// counts, in addition to the parameters that param_match.h finds.
//
// Native state has a name per parameter. Megatron-Core's has the name and layout of the model's tensor: in
// fully_reshardable checkpoints (main parameters: `param`) and in those without the distributed optimizer
// (`fp32_param`). State in the buckets of the run that wrote it (dp_reshardable, dp_zero_gather_scatter)
// cannot be separated by parameter, and is a violation.
//
// Not pure: reads step counts. Errors: the reader's.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/names/param_match.h"

namespace fsdpd {

// Prefix of Megatron-Core's state under the name of the model's tensor.
inline constexpr char kMegatronState[] = "optimizer.state.";

struct StateMatch {
  std::vector<std::string> moments;           // Torch's names: "exp_avg".
  std::vector<std::vector<int64_t>> tensors;  // By moment and parameter; -1: a frozen parameter has none.
  std::vector<int64_t> main;                  // By parameter; -1: only the model's own tensor exists.
  std::vector<bool> counted;                  // By parameter: whether it has a step count.
  std::optional<int64_t> steps;               // Common step count of all parameters, if each has one.
  std::set<std::string> names;                // Names of all tensors that were found.
  DcpViolations violations;

  bool IsTrained(size_t param) const;  // It has moments, or a step count if no parameter has moments.
};

// `naming`: that of `match`, which must not have violations. Without `optimizer`, finds only main parameters.
absl::StatusOr<StateMatch> MatchState(const DcpReader& source, Naming naming, const ParamMatch& match,
                                      bool optimizer);

}  // namespace fsdpd
