// What Megatron-Core keeps beside the tensors of a checkpoint of its own (torch_dist): metadata.json says
// which format it is, common.pt has what every rank would have written alike. Both in a directory that DCP
// reads.
//
// Of the optimizer it has the groups of parameters with their settings, but not which parameters are in
// which, and one count of updates for all: in each group where the distributed optimizer wrote it, as a
// tensor (`common_step`) where another one did. The scheduler counts in samples. What a job of ours knows
// beside is under the key `fsdpd`, which Megatron-Core passes over.
//
// Errors: ErrnoStatus's; DATA_LOSS where common.pt is damaged.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fsdp/checkpoint/kept_values.h"

namespace fsdpd {

inline constexpr char kMegatronMetadataName[] = "metadata.json";
inline constexpr char kMegatronCommonName[] = "common.pt";

// Whoever loads a checkpoint takes them from it: without betas and epsilon no step can be made.
struct AdamSettings {
  double lr = 0;  // The peak.
  double min_lr = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  std::string decay = "constant";  // As --lr-decay-style names it.
  int64_t warmup_samples = 0;
  int64_t samples = 0;  // Of the whole run.
};

struct MegatronCommon {
  std::optional<int64_t> iteration;
  std::optional<int64_t> samples;  // Consumed, as the scheduler counts; none: no scheduler is written.
  std::optional<int64_t> steps;    // Updates that the optimizer made.
  KeptValues kept;                 // Ours.
};

// A directory without common.pt says nothing.
absl::StatusOr<MegatronCommon> ReadMegatronCommon(const std::string& directory);

// Of a checkpoint whose layers lie along a leading axis; with `adam`, of one with the optimizer's state in
// tensors like the model's (`fully_reshardable`), and then `common` says how many steps it made. Of the
// model's parameters alone otherwise.
absl::Status WriteMegatronFiles(const std::string& directory, const MegatronCommon& common,
                                const std::optional<AdamSettings>& adam);

}  // namespace fsdpd
