// The keys under which a job keeps things in a checkpoint: those of Megatron-FSDP's fsdp_dtensor, around our
// names of parameters (P, "layer.0.attention.wq"), and for what has no name there our own.
//
//   model.module.P                                            main parameters
//   optimizer.state.module.module.module.P.exp_avg            moments: exp_avg_sq and momentum_buffer too
//   optimizer.state.module.module.module.P.step               how many updates it has had
//   optimizer.param_to_group_meta.module.module.module.P....  lr_mult, weight_decay
//   iteration, checkpoint_version, opt_param_scheduler.num_steps (samples)
//   fsdpd.job, .spec (JSON), .samples, .seed, .steps_taken, .loss_scale, .good_steps
//   fsdpd.data                                                a line for each token file, if any
//   fsdpd.scales_loss                                         1, of jobs in fp16: others have a scale of 1
//   fsdpd.grad_norms, .skipped_nonfinite, .skipped_spikes     lists; of jobs that look for or had bad steps
#pragma once

#include <cstdint>
#include <string>

namespace fsdpd {

inline constexpr char kNativePrefix[] = "model.module.";
inline constexpr char kStatePrefix[] = "optimizer.state.module.module.module.";
inline constexpr char kGroupPrefix[] = "optimizer.param_to_group_meta.module.module.module.";
inline constexpr char kStepKey[] = "step";  // Of a parameter.

inline constexpr char kIterationKey[] = "iteration";
inline constexpr char kVersionKey[] = "checkpoint_version";
inline constexpr double kMegatronVersion = 3.0;  // The value there.
inline constexpr char kSchedulerSamplesKey[] = "opt_param_scheduler.num_steps";

inline constexpr char kJobKey[] = "fsdpd.job";
inline constexpr char kSpecKey[] = "fsdpd.spec";
inline constexpr char kDataKey[] = "fsdpd.data";
inline constexpr char kSamplesKey[] = "fsdpd.samples";
inline constexpr char kSeedKey[] = "fsdpd.seed";
inline constexpr char kStepsTakenKey[] = "fsdpd.steps_taken";
inline constexpr char kLossScaleKey[] = "fsdpd.loss_scale";
inline constexpr char kScalesLossKey[] = "fsdpd.scales_loss";
inline constexpr char kGoodStepsKey[] = "fsdpd.good_steps";
inline constexpr char kGradNormsKey[] = "fsdpd.grad_norms";
inline constexpr char kSkippedNonfiniteKey[] = "fsdpd.skipped_nonfinite";
inline constexpr char kSkippedSpikesKey[] = "fsdpd.skipped_spikes";

// Of steps and samples: a million samples a second for eight years, and far from where sums overflow.
inline constexpr int64_t kMaxCount = int64_t{1} << 48;

inline std::string MainKey(const std::string& param) { return kNativePrefix + param; }
inline std::string OptimizerKey(const std::string& param, const std::string& what) {
  return kStatePrefix + param + "." + what;
}

}  // namespace fsdpd
