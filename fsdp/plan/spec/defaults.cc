#include "fsdp/plan/spec/defaults.h"

#include <absl/strings/str_cat.h>

namespace fsdpd {
namespace {

class Filler {
 public:
  Filler(const v1::JobSpec& job, std::vector<Choice>* choices) : job_(job), choices_(choices) {}

  v1::JobSpec Run() {
    if (job_.model().has_llama()) FillLlama(job_.mutable_model()->mutable_llama());
    if (job_.model().has_gpt2()) FillGpt2(job_.mutable_model()->mutable_gpt2());
    FillResources();
    FillFiles("data.tokens", job_.mutable_data()->mutable_tokens());
    FillFiles("data.validation", job_.mutable_data()->mutable_validation());
    FillTrain();
    FillOptimizer();
    FillPrecision();
    FillFsdp();
    FillGradComm();
    FillCheckpoint(job_.mutable_checkpoint());
    FillQuietly();
    return job_;
  }

 private:
  void Chose(const std::string& field, const std::string& value, const std::string& reason = "default") {
    if (choices_ != nullptr) choices_->push_back({field, value, reason});
  }

  void FillExperts(v1::Llama::Experts* experts) {
    if (!experts->has_normalized()) {
      experts->set_normalized(true);
      Chose("model.llama.experts.normalized", "true");
    }
    if (experts->scores() == v1::Llama::Experts::SCORES_UNSPECIFIED) {
      experts->set_scores(v1::Llama::Experts::SCORES_SOFTMAX);
      Chose("model.llama.experts.scores", "softmax");
    }
    if (!experts->has_groups()) {
      experts->set_groups(1);
      Chose("model.llama.experts.groups", "1");
    }
    if (!experts->has_groups_per_token()) {
      experts->set_groups_per_token(experts->groups());
      Chose("model.llama.experts.groups_per_token", absl::StrCat(experts->groups()), "all groups");
    }
    if (experts->group_scores() == v1::Llama::Experts::GROUP_SCORES_UNSPECIFIED && experts->groups() > 1) {
      experts->set_group_scores(v1::Llama::Experts::GROUP_SCORES_TWO_BEST);
      Chose("model.llama.experts.group_scores", "two_best");
    }
    if (!experts->has_weight_scale()) {
      experts->set_weight_scale(1);
      Chose("model.llama.experts.weight_scale", "1");
    }
  }

  void FillLlama(v1::Llama* llama) {
    if (!llama->has_rope_theta()) {
      llama->set_rope_theta(10000);
      Chose("model.llama.rope_theta", "10000");
    }
    if (!llama->has_norm_epsilon()) {
      llama->set_norm_epsilon(1e-5);
      Chose("model.llama.norm_epsilon", "1e-5");
    }
    if (llama->has_experts()) FillExperts(llama->mutable_experts());
    if (llama->has_latent_attention() && !llama->latent_attention().has_interleaved()) {
      llama->mutable_latent_attention()->set_interleaved(true);
      Chose("model.llama.latent_attention.interleaved", "true");
    }
    if (llama->has_rope_scaling()) FillRopeScaling(llama->mutable_rope_scaling());
  }

  void FillRopeScaling(v1::Llama::RopeScaling* scaling) {
    if (!scaling->has_low_freq_factor()) {
      scaling->set_low_freq_factor(1);
      Chose("model.llama.rope_scaling.low_freq_factor", "1");
    }
    if (!scaling->has_high_freq_factor()) {
      scaling->set_high_freq_factor(scaling->has_yarn() ? 32 : 4);
      Chose("model.llama.rope_scaling.high_freq_factor", absl::StrCat(scaling->high_freq_factor()));
    }
    if (!scaling->has_original_positions()) {
      scaling->set_original_positions(8192);
      Chose("model.llama.rope_scaling.original_positions", "8192");
    }
    if (scaling->has_yarn() && !scaling->yarn().has_mscale()) {
      scaling->mutable_yarn()->set_mscale(1);
      Chose("model.llama.rope_scaling.yarn.mscale", "1");
    }
  }

  void FillGpt2(v1::Gpt2* gpt2) {
    if (gpt2->has_norm_epsilon()) return;
    gpt2->set_norm_epsilon(1e-5);
    Chose("model.gpt2.norm_epsilon", "1e-5");
  }

  void FillResources() {
    v1::Resources* resources = job_.mutable_resources();
    if (!resources->has_nodes()) {
      resources->set_nodes(1);
      Chose("resources.nodes", "1");
    }
    if (!resources->has_ranks_per_node()) {
      resources->set_ranks_per_node(1);
      Chose("resources.ranks_per_node", "1");
    }
    if (resources->device() == v1::DEVICE_UNSPECIFIED) {
      resources->set_device(v1::DEVICE_CUDA);
      Chose("resources.device", "cuda");
    }
    FillAttempts();
    if (job_.restart().has_elastic() && !job_.restart().elastic().has_wait_seconds()) {
      job_.mutable_restart()->mutable_elastic()->set_wait_seconds(60);
      Chose("restart.elastic.wait_seconds", "60");
    }
    if (job_.restart().has_hang_seconds()) return;
    job_.mutable_restart()->set_hang_seconds(30);
    Chose("restart.hang_seconds", "30", "default: an attempt without progress for this long fails");
  }

  // A checkpoint only at the end gives a later attempt nothing to resume from.
  void FillAttempts() {
    if (job_.restart().has_max_attempts()) return;
    const v1::Checkpoint& checkpoint = job_.checkpoint();
    const bool resumes =
        !checkpoint.dir().empty() && (checkpoint.every_steps() > 0 || checkpoint.every_minutes() > 0);
    job_.mutable_restart()->set_max_attempts(resumes ? 3 : 1);
    Chose("restart.max_attempts", resumes ? "3" : "1",
          resumes ? "default: a failed job resumes from its newest checkpoint"
                  : "default: a failed job is not restarted");
  }

  void FillFiles(const std::string& list, google::protobuf::RepeatedPtrField<v1::TokenFile>* files) {
    for (int i = 0; i < files->size(); ++i) {
      v1::TokenFile* file = files->Mutable(i);
      const std::string field = absl::StrCat(list, "[", i, "]");
      if (!file->has_weight()) {
        file->set_weight(1);
        if (list == "data.tokens") Chose(field + ".weight", "1");
      }
      if (file->type() == v1::TOKEN_TYPE_UNSPECIFIED) {
        file->set_type(v1::TOKEN_TYPE_U16);
        Chose(field + ".type", "u16");
      }
    }
  }

  void FillTrain() {
    v1::Train* train = job_.mutable_train();
    if (!train->has_micro_batch()) {
      train->set_micro_batch(1);
      Chose("train.micro_batch", "1");
    }
    if (!train->has_seed()) {
      train->set_seed(1);
      Chose("train.seed", "1");
    }
    FillOnNonfinite(train);
    if (train->has_on_spike()) FillOnSpike(train->mutable_on_spike());
  }

  template <typename OnBadStep>
  void FillMax(const std::string& field, OnBadStep* on) {
    const bool bounded = on->action() == v1::STEP_ACTION_SKIP || on->action() == v1::STEP_ACTION_REWIND;
    if (!bounded || on->has_max()) return;
    on->set_max(10);
    Chose(field + ".max", "10");
  }

  // Reported only if the spec sets something in this group.
  void FillOnNonfinite(v1::Train* train) {
    if (!train->has_on_nonfinite()) return;
    if (train->on_nonfinite().action() == v1::STEP_ACTION_UNSPECIFIED) {
      train->mutable_on_nonfinite()->set_action(v1::STEP_ACTION_STOP);
      Chose("train.on_nonfinite.action", "stop", "default: the attempt fails");
    }
    FillMax("train.on_nonfinite", train->mutable_on_nonfinite());
  }

  void FillOnSpike(v1::OnSpike* on) {
    FillMax("train.on_spike", on);
    if (!on->has_grad_norm_factor()) {
      on->set_grad_norm_factor(10);
      Chose("train.on_spike.grad_norm_factor", "10");
    }
    if (!on->has_window()) {
      on->set_window(128);
      Chose("train.on_spike.window", "128");
    }
  }

  void FillOptimizer() {
    if (!job_.optimizer().has_sgd()) FillAdamW(job_.mutable_optimizer()->mutable_adamw());
    FillSchedule(job_.mutable_schedule());
  }

  void FillSchedule(v1::Schedule* schedule) {
    switch (schedule->shape_case()) {
      case v1::Schedule::kCosine:
        return FillFinalRate("schedule.cosine", schedule->mutable_cosine());
      case v1::Schedule::kLinear:
        return FillFinalRate("schedule.linear", schedule->mutable_linear());
      case v1::Schedule::kWsd:
        return FillFinalRate("schedule.wsd", schedule->mutable_wsd());
      case v1::Schedule::kConstant:
        return;
      case v1::Schedule::SHAPE_NOT_SET:
        schedule->mutable_constant();
        return Chose("schedule", "constant");
    }
  }

  // A note rather than a warning: it affects one step, and every job with the default would be warned.
  template <typename Shape>
  void FillFinalRate(const std::string& field, Shape* shape) {
    if (shape->has_min_lr_ratio()) return;
    shape->set_min_lr_ratio(0);
    Chose(field + ".min_lr_ratio", "0",
          absl::StrCat("default: the last step, ", job_.train().steps(),
                       ", has learning rate 0 and changes nothing; 0.1 is common"));
  }

  void FillAdamW(v1::AdamW* adamw) {
    if (!adamw->has_lr()) {
      adamw->set_lr(3e-4);
      Chose("optimizer.adamw.lr", "3e-4");
    }
    if (adamw->betas_size() == 0) {
      adamw->add_betas(0.9);
      adamw->add_betas(0.95);
      Chose("optimizer.adamw.betas", "[0.9, 0.95]");
    }
    if (!adamw->has_eps()) {
      adamw->set_eps(1e-8);
      Chose("optimizer.adamw.eps", "1e-8");
    }
    if (!adamw->has_weight_decay()) {
      adamw->set_weight_decay(0.1);
      Chose("optimizer.adamw.weight_decay", "0.1");
    }
  }

  // True if the value was unset and became fp32.
  static bool IsFp32Now(v1::DType set, void (v1::Precision::*write)(v1::DType), v1::Precision* precision) {
    if (set != v1::DTYPE_UNSPECIFIED) return false;
    (precision->*write)(v1::DTYPE_FP32);
    return true;
  }

  void FillPrecision() {
    v1::Precision* p = job_.mutable_precision();
    if (p->compute() == v1::DTYPE_UNSPECIFIED) {
      const bool cuda = job_.resources().device() == v1::DEVICE_CUDA;
      p->set_compute(cuda ? v1::DTYPE_BF16 : v1::DTYPE_FP32);
      Chose("precision.compute", cuda ? "bf16" : "fp32",
            cuda ? "GPUs multiply bf16 on tensor cores" : "CPUs do not benefit from bf16");
    }
    if (IsFp32Now(p->main_params(), &v1::Precision::set_main_params, p)) {
      Chose("precision.main_params", "fp32");
    }
    if (IsFp32Now(p->main_grads(), &v1::Precision::set_main_grads, p)) Chose("precision.main_grads", "fp32");
    if (IsFp32Now(p->moments(), &v1::Precision::set_moments, p)) Chose("precision.moments", "fp32");
    if (p->compute() == v1::DTYPE_FP16) FillLossScale(p->mutable_loss_scale());
  }

  void FillLossScale(v1::Precision::LossScale* scale) {
    if (!scale->has_initial()) {
      scale->set_initial(65536);
      Chose("precision.loss_scale.initial", "65536");
    }
    if (!scale->has_growth_interval()) {
      scale->set_growth_interval(2000);
      Chose("precision.loss_scale.growth_interval", "2000");
    }
  }

  void FillFsdp() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    if (fsdp->strategy() == v1::STRATEGY_UNSPECIFIED) {
      fsdp->set_strategy(v1::STRATEGY_OPTIM_GRADS_PARAMS);
      Chose("fsdp.strategy", "optim_grads_params", "default: needs the least memory");
    }
    v1::Fsdp::Outer* outer = fsdp->mutable_outer();
    if (!outer->has_size()) outer->set_size(1);
    if (outer->strategy() != v1::STRATEGY_UNSPECIFIED) return;
    outer->set_strategy(v1::STRATEGY_NO_SHARD);
    if (outer->size() > 1) Chose("fsdp.outer.strategy", "no_shard", "default: full replicas (HSDP)");
  }

  void FillGradComm() {
    v1::Precision* p = job_.mutable_precision();
    const v1::Strategy strategy = job_.fsdp().strategy();
    const bool sharded = strategy == v1::STRATEGY_OPTIM_GRADS || strategy == v1::STRATEGY_OPTIM_GRADS_PARAMS;
    const bool computes_bf16 = p->compute() == v1::DTYPE_BF16 || p->compute() == v1::DTYPE_FP8;
    if (p->grad_comm() == v1::DTYPE_UNSPECIFIED && sharded && computes_bf16) {
      p->set_grad_comm(v1::DTYPE_BF16);
      Chose("precision.grad_comm", "bf16", "default: the compute type; accumulation is in fp32");
    }
    if (IsFp32Now(p->grad_comm(), &v1::Precision::set_grad_comm, p)) Chose("precision.grad_comm", "fp32");
  }

  // Fields without effect on this job's checkpoints stay unset; rules report them if the user set them.
  // load_optimizer stays unset too: only ranks can see whether the checkpoint has optimizer state.
  void FillCheckpoint(v1::Checkpoint* checkpoint) {
    if (!checkpoint->dir().empty() && !checkpoint->has_on_end()) {
      checkpoint->set_on_end(true);
      Chose("checkpoint.on_end", "true", "default: the final model is saved");
    }
    if (!checkpoint->dir().empty() && !checkpoint->has_keep_last()) {
      checkpoint->set_keep_last(3);
      Chose("checkpoint.keep_last", "3", "default: older ones are removed");
    }
  }

  // Values with a single legal choice, or of no interest to users, are set without an entry in `choices`.
  void FillQuietly() {
    v1::Parallel* parallel = job_.mutable_parallel();
    if (!parallel->has_tensor()) parallel->set_tensor(1);
    if (!parallel->has_context()) parallel->set_context(1);
    if (!parallel->has_expert()) parallel->set_expert(1);
    if (!parallel->has_pipeline()) parallel->set_pipeline(1);
    if (parallel->pipeline() > 1 && !parallel->has_pipeline_chunks()) parallel->set_pipeline_chunks(1);
    if (parallel->pipeline() > 1 && parallel->pipeline_schedule() == v1::PIPELINE_SCHEDULE_UNSPECIFIED)
      parallel->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_1F1B);
    if (job_.fsdp().memory() == v1::MEMORY_UNSPECIFIED) job_.mutable_fsdp()->set_memory(v1::MEMORY_RECOMPUTE);
    if (job_.checkpoint().format().empty()) job_.mutable_checkpoint()->set_format("fsdp_dtensor");
  }

  v1::JobSpec job_;
  std::vector<Choice>* const choices_;
};

}  // namespace

v1::JobSpec WithDefaults(const v1::JobSpec& job, std::vector<Choice>* choices) {
  return Filler(job, choices).Run();
}

v1::JobSpec InStrategy(const v1::JobSpec& job, v1::Strategy strategy) {
  v1::JobSpec other = job;
  other.mutable_fsdp()->set_strategy(strategy);
  if (WithDefaults(job, nullptr).precision().grad_comm() == v1::DTYPE_FP32)
    other.mutable_precision()->set_grad_comm(v1::DTYPE_FP32);
  return other;
}

}  // namespace fsdpd
