// The files of a Megatron-Core checkpoint (torch_dist) other than tensors: metadata.json has the format,
// common.pt the state that is equal on all ranks. Both are in a directory that DCP can read.
//
// common.pt has the optimizer's parameter groups with their settings, but not which parameters are in which
// group, and one count of updates for all: in each group if the distributed optimizer wrote it, otherwise as
// a tensor (`common_step`). The scheduler counts in samples. Additional state of our jobs is under the key
// `fsdpd`, which Megatron-Core ignores.
//
// Errors: ErrnoStatus's; DATA_LOSS if common.pt is corrupt.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fsdp/checkpoint/format/portable_values.h"

namespace fsdpd {

inline constexpr char kMegatronMetadataName[] = "metadata.json";
inline constexpr char kMegatronCommonName[] = "common.pt";

// Settings that a program loads from the checkpoint: without betas and epsilon it cannot make a step.
struct AdamSettings {
  double lr = 0;  // Peak.
  double min_lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  std::string decay = "constant";  // The name used by --lr-decay-style.
  int64_t warmup_samples = 0;
  int64_t samples = 0;  // Samples of the whole run.
};

struct MegatronCommon {
  std::optional<int64_t> iteration;
  std::optional<int64_t> samples;  // Consumed, as the scheduler counts; nullopt: no scheduler is written.
  std::optional<int64_t> steps;    // Optimizer updates.
  PortableValues kept;             // State of our jobs.
};

// A directory without common.pt yields empty fields.
absl::StatusOr<MegatronCommon> ReadMegatronCommon(const std::string& directory);

// For a checkpoint whose layers are stacked along a leading axis. With `adam`, it includes optimizer state in
// tensors like the model's (`fully_reshardable`), and `common` must have the number of steps; otherwise only
// parameters.
absl::Status WriteMegatronFiles(const std::string& directory, const MegatronCommon& common,
                                const std::optional<AdamSettings>& adam);

}  // namespace fsdpd
