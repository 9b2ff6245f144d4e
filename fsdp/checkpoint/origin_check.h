// What a checkpoint says of where it comes from, held against the job that shall start from it: the spec of
// the job that wrote it (fsdpd.spec), or the config.json beside somebody's weights.
//
// Shapes do not tell everything. With other heads, or positions that turn otherwise, the same numbers are
// another model, and the job would train from nonsense without a word. Other data or another optimizer is
// what people start from checkpoints for: it is told, no more.
//
// Pure, but for those that read a directory.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/tensor_store.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

struct OriginDifferences {
  std::vector<std::string> model;  // Each makes another model of the same numbers.
  std::vector<std::string> run;    // Each makes another run of the same model.
};

// `json` is the spec as a checkpoint holds it. What is no spec, or one of a time that this build does not
// know, is told among the run's; an empty one says nothing.
OriginDifferences CompareSpec(const std::string& json, const Spec& job);

// Of token files, as RankData::Traits() has them: those that have the same name and are others now.
std::vector<std::string> CompareData(const std::vector<std::string>& there,
                                     const std::vector<std::string>& here);

// None where the directory has no config.json. What is in it and not trained here is a difference too. An
// error where it cannot be read: INTERNAL and the like, as of any file.
absl::StatusOr<std::optional<std::vector<std::string>>> CompareHfConfig(const std::string& directory,
                                                                        const ModelConfig& job);

// The spec of the job that wrote a checkpoint, as JSON: in fsdpd.spec, of torch_dist in its common.pt. Empty
// where it does not say. `reader` is of the directory.
absl::StatusOr<std::string> SpecInside(const std::string& directory, const TensorReader& reader);

// The model that a directory itself says it is: in the spec inside, or in the config.json beside the weights.
// None where it says nothing, or what is none of today's models. An error where it cannot be read.
absl::StatusOr<std::optional<ModelConfig>> StatedModel(const std::string& directory,
                                                       const TensorReader& reader);

}  // namespace fsdpd
