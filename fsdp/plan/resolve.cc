#include "fsdp/plan/resolve.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/text.h"
#include "fsdp/plan/memory.h"

namespace fsdpd {
namespace {

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
    if (!job_.model().has_llama()) return;
    v1::Llama* llama = job_.mutable_model()->mutable_llama();
    if (llama->kv_heads() == 0) {
      llama->set_kv_heads(llama->heads());
      Chose("model.llama.kv_heads", absl::StrCat(llama->heads()), "as many as query heads (no grouping)");
    }
    if (llama->rope_theta() == 0) {
      llama->set_rope_theta(10000);
      Chose("model.llama.rope_theta", "10000", "default");
    }
    if (llama->norm_epsilon() == 0) {
      llama->set_norm_epsilon(1e-5);
      Chose("model.llama.norm_epsilon", "1e-5", "default");
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
    if (!resources->has_memory_budget_bytes() && budget_bytes_ > 0) {
      resources->set_memory_budget_bytes(budget_bytes_);
      Chose("resources.memory_budget_bytes", HumanBytes(budget_bytes_), "what the nodes report as free");
    }
    if (job_.restart().max_attempts() == 0) {
      job_.mutable_restart()->set_max_attempts(1);
      Chose("restart.max_attempts", "1", "default: a failed job is not launched again");
    }
  }

  void ResolveData() {
    v1::Data* data = job_.mutable_data();
    for (int i = 0; i < data->tokens_size(); ++i) {
      v1::TokenFile* file = data->mutable_tokens(i);
      const std::string field = absl::StrCat("data.tokens[", i, "]");
      if (file->weight() == 0) {
        file->set_weight(1);
        Chose(field + ".weight", "1", "default");
      }
      if (file->type() == v1::TOKEN_TYPE_UNSPECIFIED) {
        file->set_type(v1::TOKEN_TYPE_U16);
        Chose(field + ".type", "u16", "default");
      }
    }
    if (data->has_synthetic() && data->synthetic().vocab() == 0) {
      data->mutable_synthetic()->set_vocab(Model().vocab_size);
      Chose("data.synthetic.vocab", absl::StrCat(Model().vocab_size), "the model's vocab_size");
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
    v1::AdamW* adamw = job_.mutable_optimizer()->mutable_adamw();
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
    if (job_.schedule().shape_case() == v1::Schedule::SHAPE_NOT_SET) {
      job_.mutable_schedule()->mutable_constant();
      Chose("schedule", "constant", "default");
    }
  }

  void ResolvePrecision() {
    v1::Precision* precision = job_.mutable_precision();
    if (precision->compute() == v1::DTYPE_UNSPECIFIED) {
      const bool cuda = job_.resources().device() == v1::DEVICE_CUDA;
      precision->set_compute(cuda ? v1::DTYPE_BF16 : v1::DTYPE_FP32);
      Chose("precision.compute", cuda ? "bf16" : "fp32",
            cuda ? "GPUs multiply bf16 on tensor cores" : "CPUs gain nothing from bf16");
    }
    if (precision->main_params() == v1::DTYPE_UNSPECIFIED) {
      precision->set_main_params(v1::DTYPE_FP32);
      Chose("precision.main_params", "fp32", "default");
    }
    if (precision->main_grads() == v1::DTYPE_UNSPECIFIED) {
      precision->set_main_grads(v1::DTYPE_FP32);
      Chose("precision.main_grads", "fp32", "default");
    }
    if (precision->grad_comm() == v1::DTYPE_UNSPECIFIED) {
      precision->set_grad_comm(v1::DTYPE_FP32);
      Chose("precision.grad_comm", "fp32", "default");
    }
  }

  // Features that are not built yet have one legal value; it is written down without a word.
  void ResolveRest() {
    v1::Parallel* parallel = job_.mutable_parallel();
    parallel->set_tensor(1);
    parallel->set_context(1);
    parallel->set_expert(1);
    parallel->set_pipeline(1);
    v1::Checkpoint* checkpoint = job_.mutable_checkpoint();
    if (checkpoint->keep_last() == 0) checkpoint->set_keep_last(3);
    if (checkpoint->format().empty()) checkpoint->set_format("fsdp_dtensor");
    v1::Fsdp::Outer* outer = job_.mutable_fsdp()->mutable_outer();
    outer->set_size(1);
    outer->set_strategy(v1::STRATEGY_NO_SHARD);
  }

  void ResolveFsdp() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    if (fsdp->strategy() == v1::STRATEGY_UNSPECIFIED) {
      fsdp->set_strategy(v1::STRATEGY_OPTIM_GRADS_PARAMS);
      Chose("fsdp.strategy", "optim_grads_params", "default: needs the least memory");
    }
    ResolvePrefetch();
    if (fsdp->recompute() == v1::RECOMPUTE_UNSPECIFIED) ResolveRecompute();
  }

  void ResolvePrefetch() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    if (fsdp->strategy() == v1::STRATEGY_NO_SHARD) {
      if (!fsdp->has_prefetch_bytes()) Chose("fsdp.prefetch_bytes", "0", "no_shard gathers nothing");
      fsdp->set_prefetch_bytes(0);
      return;
    }
    const DType compute = job_.precision().compute() == v1::DTYPE_BF16 ? DType::kBf16 : DType::kFp32;
    const ModelFacts model = DescribeLlama(Model(), 1, 1, compute);
    const Layout layout =
        MakeLayout(model, job_.resources().nodes() * job_.resources().ranks_per_node(), compute);
    const UnitLayout* largest = &layout.units.front();
    int64_t all_bytes = 0;
    for (const UnitLayout& unit : layout.units) {
      if (unit.bucket_elements > largest->bucket_elements) largest = &unit;
      all_bytes += unit.bucket_elements * BytesOf(compute);
    }
    if (!fsdp->has_prefetch_bytes()) {
      fsdp->set_prefetch_bytes(largest->bucket_elements * BytesOf(compute));
      Chose("fsdp.prefetch_bytes", HumanBytes(fsdp->prefetch_bytes()),
            absl::StrCat("the largest unit (", largest->name, ") waits gathered while another computes"));
    }
    fsdp->set_prefetch_bytes(std::min<int64_t>(fsdp->prefetch_bytes(), all_bytes));
  }

  void ResolveRecompute() {
    job_.mutable_fsdp()->set_recompute(v1::RECOMPUTE_NONE);
    const Spec spec = ToSpec(job_);
    if (spec.memory_budget_bytes <= 0) {
      Chose("fsdp.recompute", "none", "fastest; no memory budget is known");
      return;
    }
    const ModelFacts model =
        DescribeLlama(spec.model, spec.micro_batch, spec.data.sequence_length, spec.compute);
    const Layout layout =
        MakeLayout(model, spec.strategy == Strategy::kNoShard ? 1 : spec.world, spec.compute);
    const StepMemory memory = PlanMemory(spec, model, layout, CompileProgram(spec, layout));
    const std::string needs = absl::StrCat("without it a step needs ", HumanBytes(memory.peak_bytes), " of ",
                                           HumanBytes(spec.memory_budget_bytes), " per rank");
    if (memory.peak_bytes <= spec.memory_budget_bytes) {
      Chose("fsdp.recompute", "none", needs);
      return;
    }
    job_.mutable_fsdp()->set_recompute(v1::RECOMPUTE_FULL);
    Chose("fsdp.recompute", "full", needs);
  }

  LlamaConfig Model() const { return ToLlama(job_.model()); }

  v1::JobSpec job_;
  const int64_t budget_bytes_;
  std::vector<Choice>* const choices_;
};

}  // namespace

v1::JobSpec Resolve(const v1::JobSpec& job, int64_t budget_bytes_per_rank, std::vector<Choice>* choices) {
  return Resolver(job, budget_bytes_per_rank, choices).Run();
}

}  // namespace fsdpd
