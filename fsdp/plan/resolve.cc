#include "fsdp/plan/resolve.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/text.h"
#include "fsdp/plan/memory.h"

namespace fsdpd {
namespace {

// What a rank's process holds of a GPU before it allocates anything: context, kernels, and the buffers of its
// communicators.
constexpr int64_t kCudaProcessBytes = int64_t{2} << 30;

class Resolver {
 public:
  Resolver(const v1::JobSpec& job, int64_t budget_bytes, std::vector<Choice>* choices)
      : job_(job), budget_bytes_(budget_bytes), choices_(choices) {}

  // In the order in which one value depends on another: prefetch needs precision, recompute needs everything.
  v1::JobSpec Run() {
    ResolveModel();
    ResolveResources();
    ResolveData();
    ResolveTrain();
    ResolveOptimizer();
    ResolvePrecision();
    ResolveRest();
    ResolveFsdp();
    return job_;
  }

 private:
  void Chose(const std::string& field, const std::string& value, const std::string& reason) {
    if (choices_ != nullptr) choices_->push_back({field, value, reason});
  }

  void ResolveModel() {
    if (job_.model().has_llama()) ResolveLlama(job_.mutable_model()->mutable_llama());
    if (job_.model().has_gpt2()) ResolveGpt2(job_.mutable_model()->mutable_gpt2());
  }

  void ResolveLlama(v1::Llama* llama) {
    if (llama->kv_heads() == 0) {
      llama->set_kv_heads(llama->heads());
      Chose("model.llama.kv_heads", absl::StrCat(llama->heads()), "as many as query heads (no grouping)");
    }
    if (llama->head_size() == 0) {
      llama->set_head_size(llama->hidden_size() / llama->heads());
      Chose("model.llama.head_size", absl::StrCat(llama->head_size()), "hidden_size / heads");
    }
    if (llama->rope_theta() == 0) {
      llama->set_rope_theta(10000);
      Chose("model.llama.rope_theta", "10000", "default");
    }
    if (llama->norm_epsilon() == 0) {
      llama->set_norm_epsilon(1e-5);
      Chose("model.llama.norm_epsilon", "1e-5", "default");
    }
    if (!llama->has_rope_scaling()) return;
    v1::Llama::RopeScaling* scaling = llama->mutable_rope_scaling();
    if (scaling->low_freq_factor() == 0) {
      scaling->set_low_freq_factor(1);
      Chose("model.llama.rope_scaling.low_freq_factor", "1", "default");
    }
    if (scaling->high_freq_factor() == 0) {
      scaling->set_high_freq_factor(4);
      Chose("model.llama.rope_scaling.high_freq_factor", "4", "default");
    }
    if (scaling->original_positions() == 0) {
      scaling->set_original_positions(8192);
      Chose("model.llama.rope_scaling.original_positions", "8192", "default");
    }
  }

  void ResolveGpt2(v1::Gpt2* gpt2) {
    if (gpt2->intermediate_size() == 0) {
      gpt2->set_intermediate_size(4 * gpt2->hidden_size());
      Chose("model.gpt2.intermediate_size", absl::StrCat(gpt2->intermediate_size()), "4 x hidden_size");
    }
    if (gpt2->norm_epsilon() == 0) {
      gpt2->set_norm_epsilon(1e-5);
      Chose("model.gpt2.norm_epsilon", "1e-5", "default");
    }
  }

  void ResolveResources() {
    v1::Resources* resources = job_.mutable_resources();
    if (resources->nodes() == 0) {
      resources->set_nodes(1);
      Chose("resources.nodes", "1", "default");
    }
    if (resources->ranks_per_node() == 0) {
      resources->set_ranks_per_node(1);
      Chose("resources.ranks_per_node", "1", "default");
    }
    if (resources->device() == v1::DEVICE_UNSPECIFIED) {
      resources->set_device(v1::DEVICE_CUDA);
      Chose("resources.device", "cuda", "default");
    }
    if (!resources->has_memory_budget_bytes() && budget_bytes_ > 0) ResolveBudget(resources);
    if (job_.restart().max_attempts() == 0) {
      job_.mutable_restart()->set_max_attempts(1);
      Chose("restart.max_attempts", "1", "default: a failed job is not launched again");
    }
  }

  void ResolveBudget(v1::Resources* resources) {
    if (resources->device() != v1::DEVICE_CUDA) {
      resources->set_memory_budget_bytes(budget_bytes_);
      Chose("resources.memory_budget_bytes", HumanBytes(budget_bytes_), "what the nodes report as free");
      return;
    }
    const int64_t usable = std::max<int64_t>(budget_bytes_ - kCudaProcessBytes, 1);
    resources->set_memory_budget_bytes(usable);
    Chose("resources.memory_budget_bytes", HumanBytes(usable),
          absl::StrCat("what a device has free, less ", HumanBytes(kCudaProcessBytes),
                       " for CUDA's context and NCCL's buffers"));
  }

  void ResolveData() {
    v1::Data* data = job_.mutable_data();
    ResolveFiles("data.tokens", data->mutable_tokens());
    ResolveFiles("data.validation", data->mutable_validation());
    if (data->has_synthetic() && data->synthetic().vocab() == 0) {
      const int64_t vocab = VocabSize(ToModelConfig(job_.model()));
      data->mutable_synthetic()->set_vocab(vocab);
      Chose("data.synthetic.vocab", absl::StrCat(vocab), "the model's vocab_size");
    }
  }

  void ResolveFiles(const std::string& list, google::protobuf::RepeatedPtrField<v1::TokenFile>* files) {
    for (int i = 0; i < files->size(); ++i) {
      v1::TokenFile* file = files->Mutable(i);
      const std::string field = absl::StrCat(list, "[", i, "]");
      if (file->weight() == 0) {
        file->set_weight(1);
        if (list == "data.tokens") Chose(field + ".weight", "1", "default");
      }
      if (file->type() == v1::TOKEN_TYPE_UNSPECIFIED) {
        file->set_type(v1::TOKEN_TYPE_U16);
        Chose(field + ".type", "u16", "default");
      }
    }
  }

  void ResolveTrain() {
    v1::Train* train = job_.mutable_train();
    const int64_t world = job_.resources().nodes() * job_.resources().ranks_per_node();
    if (train->micro_batch() == 0) {
      train->set_micro_batch(1);
      Chose("train.micro_batch", "1", "default");
    }
    if (train->global_batch() == 0) {
      train->set_global_batch(train->micro_batch() * world);
      Chose("train.global_batch", absl::StrCat(train->global_batch()),
            absl::StrCat("micro_batch ", train->micro_batch(), " x ", world, " ranks: no accumulation"));
    }
    if (train->seed() == 0) {
      train->set_seed(1);
      Chose("train.seed", "1", "default");
    }
  }

  void ResolveOptimizer() {
    if (!job_.optimizer().has_sgd()) ResolveAdamW(job_.mutable_optimizer()->mutable_adamw());
    if (job_.schedule().shape_case() == v1::Schedule::SHAPE_NOT_SET) {
      job_.mutable_schedule()->mutable_constant();
      Chose("schedule", "constant", "default");
    }
  }

  void ResolveAdamW(v1::AdamW* adamw) {
    if (adamw->lr() == 0) {
      adamw->set_lr(3e-4);
      Chose("optimizer.adamw.lr", "3e-4", "default");
    }
    if (adamw->betas_size() == 0) {
      adamw->add_betas(0.9);
      adamw->add_betas(0.95);
      Chose("optimizer.adamw.betas", "[0.9, 0.95]", "default");
    }
    if (adamw->eps() == 0) {
      adamw->set_eps(1e-8);
      Chose("optimizer.adamw.eps", "1e-8", "default");
    }
    if (!adamw->has_weight_decay()) {
      adamw->set_weight_decay(0.1);
      Chose("optimizer.adamw.weight_decay", "0.1", "default");
    }
  }

  // True when the value was not set and is fp32 now.
  static bool IsFp32Now(v1::DType set, void (v1::Precision::*write)(v1::DType), v1::Precision* precision) {
    if (set != v1::DTYPE_UNSPECIFIED) return false;
    (precision->*write)(v1::DTYPE_FP32);
    return true;
  }

  void ResolvePrecision() {
    v1::Precision* p = job_.mutable_precision();
    if (p->compute() == v1::DTYPE_UNSPECIFIED) {
      const bool cuda = job_.resources().device() == v1::DEVICE_CUDA;
      p->set_compute(cuda ? v1::DTYPE_BF16 : v1::DTYPE_FP32);
      Chose("precision.compute", cuda ? "bf16" : "fp32",
            cuda ? "GPUs multiply bf16 on tensor cores" : "CPUs gain nothing from bf16");
    }
    if (IsFp32Now(p->main_params(), &v1::Precision::set_main_params, p)) {
      Chose("precision.main_params", "fp32", "default");
    }
    if (IsFp32Now(p->main_grads(), &v1::Precision::set_main_grads, p)) {
      Chose("precision.main_grads", "fp32", "default");
    }
    if (IsFp32Now(p->grad_comm(), &v1::Precision::set_grad_comm, p)) {
      Chose("precision.grad_comm", "fp32", "default");
    }
    if (IsFp32Now(p->moments(), &v1::Precision::set_moments, p)) {
      Chose("precision.moments", "fp32", "default");
    }
    if (p->compute() == v1::DTYPE_FP16) ResolveLossScale(p->mutable_loss_scale());
  }

  void ResolveLossScale(v1::Precision::LossScale* scale) {
    if (scale->initial() == 0) {
      scale->set_initial(65536);
      Chose("precision.loss_scale.initial", "65536", "default");
    }
    if (scale->growth_interval() == 0) {
      scale->set_growth_interval(2000);
      Chose("precision.loss_scale.growth_interval", "2000", "default");
    }
  }

  // What has one legal value today, or none that anybody would want to read about, is written down without a
  // word.
  void ResolveRest() {
    v1::Parallel* parallel = job_.mutable_parallel();
    parallel->set_tensor(1);
    parallel->set_context(1);
    parallel->set_expert(1);
    parallel->set_pipeline(1);
    v1::Checkpoint* checkpoint = job_.mutable_checkpoint();
    if (checkpoint->keep_last() == 0) checkpoint->set_keep_last(3);
    if (checkpoint->format().empty()) checkpoint->set_format("fsdp_dtensor");
    ResolveOuter(job_.mutable_fsdp()->mutable_outer());
  }

  void ResolveOuter(v1::Fsdp::Outer* outer) {
    if (outer->size() == 0) outer->set_size(1);
    if (outer->strategy() != v1::STRATEGY_UNSPECIFIED) return;
    outer->set_strategy(v1::STRATEGY_NO_SHARD);
    if (outer->size() > 1) Chose("fsdp.outer.strategy", "no_shard", "default: replicas of everything (HSDP)");
  }

  void ResolveFsdp() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    if (fsdp->strategy() == v1::STRATEGY_UNSPECIFIED) {
      fsdp->set_strategy(v1::STRATEGY_OPTIM_GRADS_PARAMS);
      Chose("fsdp.strategy", "optim_grads_params", "default: needs the least memory");
    }
    ResolvePrefetch();
    if (fsdp->recompute() == v1::RECOMPUTE_UNSPECIFIED) ChooseRecompute();
    if (fsdp->recompute() != v1::RECOMPUTE_NONE && !fsdp->has_recompute_layers()) {
      fsdp->set_recompute_layers(BlocksOf(DescribeSpec(ToSpec(job_))));
      Chose("fsdp.recompute_layers", absl::StrCat(fsdp->recompute_layers()), "all layers");
    }
  }

  void ResolvePrefetch() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    const Spec spec = ToSpec(job_);
    if (spec.strategy == Strategy::kNoShard) {
      if (!fsdp->has_prefetch_bytes()) Chose("fsdp.prefetch_bytes", "0", "no_shard gathers nothing");
      fsdp->set_prefetch_bytes(0);
      return;
    }
    const Layout layout = MakeLayout(DescribeSpec(spec), LayoutOptionsOf(spec));
    const LargestUnit largest = FindLargestUnit(layout, spec.compute);
    if (!fsdp->has_prefetch_bytes() && spec.keeps_gathered()) {
      fsdp->set_prefetch_bytes(0);
      Chose("fsdp.prefetch_bytes", "0", "buckets are gathered once and stay: there is nothing to bound");
    } else if (!fsdp->has_prefetch_bytes()) {
      fsdp->set_prefetch_bytes(largest.bytes);
      Chose("fsdp.prefetch_bytes", HumanBytes(largest.bytes),
            absl::StrCat("the largest unit (", largest.name, ") waits gathered while another computes"));
    }
    fsdp->set_prefetch_bytes(std::min<int64_t>(fsdp->prefetch_bytes(), largest.all_bytes));
  }

  void ChooseRecompute() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_recompute(v1::RECOMPUTE_NONE);
    const Spec spec = ToSpec(job_);
    if (spec.memory_budget_bytes <= 0) {
      Chose("fsdp.recompute", "none", "fastest; no memory budget is known");
      return;
    }
    const ModelFacts model = DescribeSpec(spec);
    const Layout layout = MakeLayout(model, LayoutOptionsOf(spec));
    const Program program = CompileProgram(spec, model, layout);
    std::optional<int64_t> only_layers;
    if (fsdp->has_recompute_layers()) only_layers = fsdp->recompute_layers();
    const auto choice = CheapestRecompute(spec, model, layout, program, only_layers);
    const int64_t peak = PlanMemory(spec, model, layout, program).peak_bytes;
    const std::string needs = absl::StrCat(
        "without it a step needs ", HumanBytes(peak), " of ", HumanBytes(spec.memory_budget_bytes),
        " per rank", choice.has_value() ? "" : ", and it is still too much with it on all layers");
    // What does not fit is planned with the least memory, and refused with that.
    const RecomputeChoice chosen =
        choice.value_or(RecomputeChoice{Recompute::kFull, only_layers.value_or(BlocksOf(model))});
    if (chosen.recompute == Recompute::kNone) {
      Chose("fsdp.recompute", "none", needs);
      return;
    }
    const bool full = chosen.recompute == Recompute::kFull;
    fsdp->set_recompute(full ? v1::RECOMPUTE_FULL : v1::RECOMPUTE_SELECTIVE);
    Chose("fsdp.recompute", full ? "full" : "selective", needs);
    if (only_layers.has_value()) return;
    fsdp->set_recompute_layers(chosen.layers);
    Chose("fsdp.recompute_layers", absl::StrCat(chosen.layers),
          full ? "the fewest that fit; layers after them recompute selectively" : "the fewest that fit");
  }

  v1::JobSpec job_;
  const int64_t budget_bytes_;
  std::vector<Choice>* const choices_;
};

}  // namespace

v1::JobSpec Resolve(const v1::JobSpec& job, int64_t budget_bytes_per_rank, std::vector<Choice>* choices) {
  return Resolver(job, budget_bytes_per_rank, choices).Run();
}

}  // namespace fsdpd
