#include "fsdp/plan/spec/defaults.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>

#include "base/spec_text/enum_name.h"
#include "fsdp/plan/spec/field_path.h"

namespace fsdpd {
namespace {

class Filler {
 public:
  Filler(const v1::JobSpec& job, std::vector<Choice>* choices) : job_(job), choices_(choices) {}

  v1::JobSpec Run() {
    AddMessages();
    FillLlama();
    Fill("model.gpt2.norm_epsilon", "1e-5");
    FillPackage();
    FillResources();
    FillFiles("data.tokens", job_.mutable_data()->mutable_tokens());
    FillFiles("data.validation", job_.mutable_data()->mutable_validation());
    FillTrain();
    FillOptimizer();
    FillPrecision();
    FillFsdp();
    FillGradComm();
    FillCheckpoint();
    FillQuietly();
    return job_;
  }

 private:
  // Messages with defaults in every job; the other defaults apply only within a message that is written.
  void AddMessages() {
    job_.mutable_resources();
    job_.mutable_restart();
    job_.mutable_data();
    job_.mutable_train();
    if (!job_.optimizer().has_sgd()) job_.mutable_optimizer()->mutable_adamw();
    job_.mutable_schedule();
    job_.mutable_precision();
    job_.mutable_fsdp()->mutable_outer();
    job_.mutable_parallel();
    job_.mutable_checkpoint();
  }

  void Chose(const std::string& field, const std::string& value, const std::string& reason = "default") {
    if (choices_ != nullptr) choices_->push_back({field, value, reason});
  }

  void Fill(const std::string& field, const std::string& value, const std::string& reason = "default") {
    if (SetIfUnset(&job_, field, value)) Chose(field, value, reason);
  }

  void FillLlama() {
    Fill("model.llama.rope_theta", "10000");
    Fill("model.llama.norm_epsilon", "1e-5");
    Fill("model.llama.experts.normalized", "true");
    Fill("model.llama.experts.scores", "softmax");
    Fill("model.llama.experts.groups", "1");
    const int64_t groups = job_.model().llama().experts().groups();
    Fill("model.llama.experts.groups_per_token", absl::StrCat(groups), "all groups");
    if (groups > 1) Fill("model.llama.experts.group_scores", "two_best");
    Fill("model.llama.experts.weight_scale", "1");
    Fill("model.llama.latent_attention.interleaved", "true");
    const bool yarn = job_.model().llama().rope_scaling().has_yarn();
    Fill("model.llama.rope_scaling.low_freq_factor", "1");
    Fill("model.llama.rope_scaling.high_freq_factor", yarn ? "32" : "4");
    Fill("model.llama.rope_scaling.original_positions", "8192");
    Fill("model.llama.rope_scaling.yarn.mscale", "1");
  }

  // A package is compiled for one shape, device and data type. The values are unset if the client has not
  // read the package.
  void FillPackage() {
    const v1::Package& package = job_.model().package();
    const char* const reason = "the package was exported for it";
    if (package.sequence_length() > 0)
      Fill("data.sequence_length", absl::StrCat(package.sequence_length()), reason);
    if (package.micro_batch_size() > 0)
      Fill("train.micro_batch", absl::StrCat(package.micro_batch_size()), reason);
    if (package.device() == v1::DEVICE_CPU || package.device() == v1::DEVICE_CUDA)
      Fill("resources.device", ShortEnumName(package.device()), reason);
    if (package.compute() != v1::DTYPE_UNSPECIFIED && v1::DType_IsValid(package.compute()))
      Fill("precision.compute", ShortEnumName(package.compute()), reason);
  }

  void FillResources() {
    Fill("resources.nodes", "1");
    Fill("resources.ranks_per_node", "1");
    Fill("resources.device", "cuda");
    // A checkpoint only at the end gives a later attempt nothing to resume from.
    const bool resumes = SavesBetween(job_.checkpoint());
    Fill("restart.max_attempts", resumes ? "3" : "1",
         resumes ? "default: a failed job resumes from its newest checkpoint"
                 : "default: a failed job is not restarted");
    Fill("restart.elastic.wait_seconds", "60");
    Fill("restart.hang_seconds", "30", "default: an attempt without progress for this long fails");
  }

  void FillFiles(const std::string& list, google::protobuf::RepeatedPtrField<v1::TokenFile>* files) {
    for (int i = 0; i < files->size(); ++i) {
      const std::string field = absl::StrCat(list, "[", i, "]");
      if (SetIfUnset(files->Mutable(i), "weight", "1") && list == "data.tokens")
        Chose(field + ".weight", "1");
      if (SetIfUnset(files->Mutable(i), "type", "u16")) Chose(field + ".type", "u16");
    }
  }

  void FillTrain() {
    Fill("train.micro_batch", "1");
    Fill("train.seed", "1");
    Fill("train.on_nonfinite.action", "stop", "default: the attempt fails");
    FillMax("train.on_nonfinite.max", job_.train().on_nonfinite().action());
    FillMax("train.on_spike.max", job_.train().on_spike().action());
    Fill("train.on_spike.grad_norm_factor", "10");
    Fill("train.on_spike.window", "128");
    if (job_.train().lora().rank() > 0 && job_.train().lora().rank() <= kMaxLoraRank)
      Fill("train.lora.alpha", absl::StrCat(2 * job_.train().lora().rank()), "default: 2 x rank");
  }

  void FillMax(const char* field, v1::StepAction action) {
    if (action == v1::STEP_ACTION_SKIP || action == v1::STEP_ACTION_REWIND) Fill(field, "10");
  }

  void FillOptimizer() {
    v1::Optimizer* optimizer = job_.mutable_optimizer();
    if (!optimizer->has_sgd()) {
      Fill("optimizer.adamw.lr", "3e-4");
      if (optimizer->adamw().betas_size() == 0) {
        optimizer->mutable_adamw()->add_betas(0.9);
        optimizer->mutable_adamw()->add_betas(0.95);
        Chose("optimizer.adamw.betas", "[0.9, 0.95]");
      }
      Fill("optimizer.adamw.eps", "1e-8");
      Fill("optimizer.adamw.weight_decay", "0.1");
    }
    if (job_.schedule().shape_case() == v1::Schedule::SHAPE_NOT_SET) {
      job_.mutable_schedule()->mutable_constant();
      Chose("schedule", "constant");
    }
    // A note rather than a warning: it affects one step, and every job with the default would be warned.
    for (const char* shape : {"cosine", "linear", "wsd"}) {
      Fill(absl::StrCat("schedule.", shape, ".min_lr_ratio"), "0",
           absl::StrCat("default: the last step",
                        job_.train().has_steps() ? absl::StrCat(", ", job_.train().steps(), ",") : "",
                        " has learning rate 0 and changes nothing; 0.1 is common"));
    }
  }

  void FillPrecision() {
    const bool cuda = job_.resources().device() == v1::DEVICE_CUDA;
    Fill("precision.compute", cuda ? "bf16" : "fp32",
         cuda ? "GPUs multiply bf16 on tensor cores" : "CPUs do not benefit from bf16");
    Fill("precision.main_params", "fp32");
    Fill("precision.main_grads", "fp32");
    Fill("precision.moments", "fp32");
    if (job_.precision().compute() != v1::DTYPE_FP16) return;
    job_.mutable_precision()->mutable_loss_scale();
    Fill("precision.loss_scale.initial", "65536");
    Fill("precision.loss_scale.growth_interval", "2000");
  }

  void FillFsdp() {
    Fill("fsdp.strategy", "optim_grads_params", "default: needs the least memory");
    SetIfUnset(&job_, "fsdp.outer.size", "1");
    if (SetIfUnset(&job_, "fsdp.outer.strategy", "no_shard") && job_.fsdp().outer().size() > 1)
      Chose("fsdp.outer.strategy", "no_shard", "default: full replicas (HSDP)");
  }

  void FillGradComm() {
    const v1::Strategy strategy = job_.fsdp().strategy();
    const bool sharded = strategy == v1::STRATEGY_OPTIM_GRADS || strategy == v1::STRATEGY_OPTIM_GRADS_PARAMS;
    const v1::DType compute = job_.precision().compute();
    if (sharded && (compute == v1::DTYPE_BF16 || compute == v1::DTYPE_FP8))
      Fill("precision.grad_comm", "bf16", "default: the compute type; accumulation is in fp32");
    Fill("precision.grad_comm", "fp32");
  }

  // Fields without effect on this job's checkpoints stay unset; rules report them if the user set them.
  // load_optimizer stays unset too: only ranks can see whether the checkpoint has optimizer state.
  void FillCheckpoint() {
    if (job_.checkpoint().dir().empty()) return;
    Fill("checkpoint.on_end", "true", "default: the final model is saved");
    Fill("checkpoint.keep_last", "3", "default: older ones are removed");
  }

  // Values with a single legal choice, or of no interest to users, are set without an entry in `choices`.
  void FillQuietly() {
    for (const char* axis : {"tensor", "context", "expert", "pipeline"})
      SetIfUnset(&job_, absl::StrCat("parallel.", axis), "1");
    if (job_.parallel().pipeline() > 1) {
      SetIfUnset(&job_, "parallel.pipeline_chunks", "1");
      SetIfUnset(&job_, "parallel.pipeline_schedule", "1f1b");
    }
    SetIfUnset(&job_, "fsdp.memory", "recompute");
    SetIfUnset(&job_, "checkpoint.format", "fsdp_dtensor");
  }

  v1::JobSpec job_;
  std::vector<Choice>* const choices_;
};

int64_t SaturatedProduct(int64_t a, int64_t b) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? std::numeric_limits<int64_t>::max() : std::numeric_limits<int64_t>::min();
}

}  // namespace

v1::JobSpec WithDefaults(const v1::JobSpec& job, std::vector<Choice>* choices) {
  return Filler(job, choices).Run();
}

int64_t GlobalBatchOf(const v1::JobSpec& job) {
  const v1::JobSpec filled = WithDefaults(job, nullptr);
  if (filled.train().has_global_batch()) return filled.train().global_batch();
  const v1::Parallel& parallel = filled.parallel();
  const int64_t world = SaturatedProduct(filled.resources().nodes(), filled.resources().ranks_per_node());
  const int64_t sharing =
      SaturatedProduct(SaturatedProduct(parallel.pipeline(), parallel.context()), parallel.tensor());
  return SaturatedProduct(filled.train().micro_batch(),
                          std::max<int64_t>(world / std::max<int64_t>(sharing, 1), 1));
}

int64_t RanksOf(const v1::JobSpec& filled) {
  return filled.resources().nodes() * filled.resources().ranks_per_node();
}

int64_t RanksPerSample(const v1::JobSpec& filled) {
  return filled.parallel().pipeline() * filled.parallel().context() * filled.parallel().tensor();
}

bool SavesBetween(const v1::Checkpoint& checkpoint) {
  return !checkpoint.dir().empty() && (checkpoint.every_steps() > 0 || checkpoint.every_minutes() > 0);
}

v1::JobSpec InStrategy(const v1::JobSpec& job, v1::Strategy strategy) {
  v1::JobSpec other = job;
  other.mutable_fsdp()->set_strategy(strategy);
  if (WithDefaults(job, nullptr).precision().grad_comm() == v1::DTYPE_FP32)
    other.mutable_precision()->set_grad_comm(v1::DTYPE_FP32);
  return other;
}

}  // namespace fsdpd
