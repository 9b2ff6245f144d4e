// Comparison of a checkpoint's origin with the job that starts from it: the spec of the job that wrote it
// (fsdpd.spec), or the config.json next to imported weights.
//
// Matching shapes are not sufficient. With another number of heads or another rotary embedding the same
// numbers are another model, and training would silently continue from meaningless values. Other data or
// another optimizer are legitimate reasons to start from a checkpoint, so these are only reported.
//
// Pure, except for functions that read a directory.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/format/tensor_store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct OriginDifferences {
  std::vector<std::string> model;  // Each makes the same numbers another model.
  std::vector<std::string> run;    // Each makes it another run of the same model.
};

// `json` is the spec as stored in the checkpoint. An invalid spec, or one from a version that this build does
// not know, is reported as a run difference; an empty one yields nothing.
OriginDifferences CompareSpec(const std::string& json, const Spec& job);

// Token files (RankData::Traits()) whose names are equal but whose contents have changed.
std::vector<std::string> CompareData(const std::vector<std::string>& there,
                                     const std::vector<std::string>& here);

// Nullopt if the directory has no config.json. Unsupported fields are differences too. INTERNAL and similar
// errors if it cannot be read.
absl::StatusOr<std::optional<std::vector<std::string>>> CompareHfConfig(const std::string& directory,
                                                                        const ModelConfig& job);

// The spec (JSON) of the job that wrote a checkpoint: fsdpd.spec, or for torch_dist from its common.pt. Empty
// if absent. `reader` must be of the directory.
absl::StatusOr<std::string> SpecInside(const std::string& directory, const TensorReader& reader);

// The model that the directory itself describes: in the stored spec, or in config.json. Nullopt if it has
// neither, or a model that is not supported. An error if it cannot be read.
absl::StatusOr<std::optional<ModelConfig>> StatedModel(const std::string& directory,
                                                       const TensorReader& reader);

}  // namespace fsdpd
