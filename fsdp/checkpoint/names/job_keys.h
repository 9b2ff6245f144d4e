// Keys of a job's checkpoint: those of Megatron-FSDP's fsdp_dtensor format around our parameter names (P,
// such as "layer.0.attention.wq"), and our own for everything that has no name there.
//
//   model.module.P                                            main parameters
//   optimizer.state.module.module.module.P.exp_avg            moments: exp_avg_sq and momentum_buffer too
//   optimizer.state.module.module.module.P.step               number of updates
//   optimizer.param_to_group_meta.module.module.module.P....  lr_mult, weight_decay
//   iteration, checkpoint_version, opt_param_scheduler.num_steps (samples)
//   fsdpd.job, .spec (JSON), .samples, .seed, .steps_taken, .loss_scale, .good_steps
//   fsdpd.data                                                one line per token file, if any
//   fsdpd.base_model                                          LoRA: fingerprint and path of frozen weights
//   fsdpd.scales_loss                                         1 for fp16 jobs; the scale of others is 1
//   fsdpd.grad_norms, .skipped_nonfinite, .skipped_spikes     lists; with spike detection or skipped steps
#pragma once

#include <cstdint>
#include <string>

namespace fsdpd {

inline constexpr char kNativePrefix[] = "model.module.";
inline constexpr char kStatePrefix[] = "optimizer.state.module.module.module.";
inline constexpr char kGroupPrefix[] = "optimizer.param_to_group_meta.module.module.module.";
inline constexpr char kStepKey[] = "step";  // Per parameter.

inline constexpr char kIterationKey[] = "iteration";
inline constexpr char kVersionKey[] = "checkpoint_version";
inline constexpr double kMegatronVersion = 3.0;  // Value of kVersionKey.
inline constexpr char kSchedulerSamplesKey[] = "opt_param_scheduler.num_steps";

inline constexpr char kJobKey[] = "fsdpd.job";
inline constexpr char kSpecKey[] = "fsdpd.spec";
inline constexpr char kDataKey[] = "fsdpd.data";
inline constexpr char kBaseModelKey[] = "fsdpd.base_model";
inline constexpr char kSamplesKey[] = "fsdpd.samples";
inline constexpr char kSeedKey[] = "fsdpd.seed";
inline constexpr char kStepsTakenKey[] = "fsdpd.steps_taken";
inline constexpr char kLossScaleKey[] = "fsdpd.loss_scale";
inline constexpr char kScalesLossKey[] = "fsdpd.scales_loss";
inline constexpr char kGoodStepsKey[] = "fsdpd.good_steps";
inline constexpr char kGradNormsKey[] = "fsdpd.grad_norms";
inline constexpr char kSkippedNonfiniteKey[] = "fsdpd.skipped_nonfinite";
inline constexpr char kSkippedSpikesKey[] = "fsdpd.skipped_spikes";

// Bound for steps and samples: a million samples per second for eight years, far from overflow in sums.
inline constexpr int64_t kMaxCount = int64_t{1} << 48;

inline std::string MainKey(const std::string& param) { return kNativePrefix + param; }
inline std::string OptimizerKey(const std::string& param, const std::string& what) {
  return kStatePrefix + param + "." + what;
}

}  // namespace fsdpd
