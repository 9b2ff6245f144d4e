#include "fsdp/plan/resolve.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/text.h"
#include "fsdp/plan/memory/memory.h"
#include "fsdp/plan/memory_strategies.h"
#include "fsdp/plan/model/activation_policy.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/fp8_facts.h"
#include "fsdp/plan/model/stage_partition.h"
#include "fsdp/plan/predict/device_profile.h"
#include "fsdp/plan/spec/field_path.h"

namespace fsdpd {
namespace {

// GPU memory that a rank's process uses before its first allocation: CUDA context, kernels, and communicator
// buffers.
constexpr int64_t kCudaProcessBytes = int64_t{2} << 30;

// Additional communicator buffers if units communicate (3.15 GiB in total measured on two H100s with
// parallel.context).
constexpr int64_t kExchangeBytes = int64_t{3} << 29;

// Safety margin on the remaining GPU memory: measured peaks exceeded the plan by up to 0.7%, and process
// memory exceeded ProcessBytes() by up to 1 GiB (docs/memory.md, "Margin").
constexpr int64_t kMarginPercent = 2;

int64_t ProcessBytes(const v1::JobSpec& job) {
  if (job.resources().device() != v1::DEVICE_CUDA) return 0;
  const v1::Parallel& parallel = job.parallel();
  const bool exchanges = parallel.context() > 1 || parallel.tensor() > 1 || parallel.expert() > 1;
  return kCudaProcessBytes + (exchanges ? kExchangeBytes : 0);
}

class Resolver {
 public:
  Resolver(const v1::JobSpec& job, int64_t budget_bytes, std::vector<Choice>* choices)
      : job_(WithDefaults(job, choices)), budget_bytes_(budget_bytes), choices_(choices) {}

  // In dependency order: recompute depends on everything else.
  v1::JobSpec Run() {
    ResolveModel();
    ResolveTrain();
    if (job_.parallel().pipeline() > 1 && job_.parallel().stage_units().empty()) ResolveStages();
    if (!job_.resources().has_memory_budget_bytes() && budget_bytes_ > 0) {
      ResolveBudget(job_.mutable_resources());
    }
    ResolveFsdp();
    TellFp8();
    return job_;
  }

 private:
  void Chose(const std::string& field, const std::string& value, const std::string& reason) {
    if (choices_ != nullptr) choices_->push_back({field, value, reason});
  }

  void Fill(const std::string& field, int64_t value, const std::string& reason) {
    if (SetIfUnset(&job_, field, absl::StrCat(value))) Chose(field, absl::StrCat(value), reason);
  }

  void ResolveModel() {
    if (job_.model().has_llama()) ResolveLlama(job_.model().llama());
    Fill("model.gpt2.intermediate_size", 4 * job_.model().gpt2().hidden_size(), "4 x hidden_size");
    Fill("data.synthetic.vocab", VocabSize(ToModelConfig(job_.model())), "the model's vocab_size");
  }

  void ResolveLlama(const v1::Llama& llama) {
    Fill("model.llama.kv_heads", llama.heads(), "equal to heads (no grouping)");
    const v1::Llama::LatentAttention& latent = llama.latent_attention();
    if (llama.has_latent_attention()) {
      Fill("model.llama.head_size", latent.plain_head_size() + latent.rotary_head_size(),
           "plain_head_size + rotary_head_size");
    } else {
      Fill("model.llama.head_size", llama.hidden_size() / llama.heads(), "hidden_size / heads");
    }
    Fill("model.llama.experts.intermediate_size", llama.intermediate_size(), "the model's intermediate_size");
  }

  void ResolveTrain() {
    const int64_t together = RanksPerSample(job_);
    const std::string sharing = together > 1 ? absl::StrCat(" / ", together, " ranks per sample") : "";
    Fill("train.global_batch", GlobalBatchOf(job_),
         absl::StrCat("micro_batch ", job_.train().micro_batch(), " x ", RanksOf(job_), " ranks", sharing,
                      ", no gradient accumulation"));
  }

  void ResolveStages() {
    const int64_t chunks = job_.parallel().pipeline_chunks();
    const std::vector<int64_t> units =
        BalancedRuns(DescribeSpec(ToSpec(job_)), job_.parallel().pipeline() * chunks);
    job_.mutable_parallel()->mutable_stage_units()->Add(units.begin(), units.end());
    Chose("parallel.stage_units", absl::StrCat("[", absl::StrJoin(units, ", "), "]"),
          absl::StrCat("the ", chunks > 1 ? "chunk" : "stage",
                       " with the most work is minimized, embedding and head included"));
  }

  void ResolveBudget(v1::Resources* resources) {
    if (resources->device() != v1::DEVICE_CUDA) {
      resources->set_memory_budget_bytes(budget_bytes_);
      Chose("resources.memory_budget_bytes", HumanBytes(budget_bytes_),
            "memory per rank, from the nodes or the device profile");
      return;
    }
    const int64_t beside_process = budget_bytes_ - ProcessBytes(job_);
    const int64_t usable = std::max<int64_t>(beside_process / 100 * (100 - kMarginPercent), 1);
    resources->set_memory_budget_bytes(usable);
    Chose("resources.memory_budget_bytes", HumanBytes(usable),
          absl::StrCat("free device memory, minus ", HumanBytes(ProcessBytes(job_)),
                       " for the CUDA context and NCCL buffers, minus a margin of ", kMarginPercent, "%"));
  }

  void ResolveFsdp() {
    ResolvePrefetch();
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    const bool may_offload = fsdp->memory() == v1::MEMORY_RECOMPUTE_OR_OFFLOAD;
    if (may_offload && !fsdp->offload().has_activation_layers()) ChooseOffload();
    if (fsdp->recompute() == v1::RECOMPUTE_UNSPECIFIED) ChooseRecompute();
    if (fsdp->recompute() != v1::RECOMPUTE_NONE && !fsdp->has_recompute_layers()) {
      fsdp->set_recompute_layers(BlocksOf(DescribeSpec(ToSpec(job_))));
      Chose("fsdp.recompute_layers", absl::StrCat(fsdp->recompute_layers()), "all layers");
    }
  }

  // Not a choice, but reported, because the spec does not show which matrices the patterns and fused products
  // select.
  void TellFp8() {
    if (choices_ == nullptr || job_.precision().compute() != v1::DTYPE_FP8) return;
    int64_t in_fp8 = 0, all = 0;
    for (const UnitFacts& unit : DescribeSpec(ToSpec(job_)).units) {
      for (const ParamFacts& param : unit.params) {
        all += CanBeFp8(unit, param) ? 1 : 0;
        in_fp8 += param.fp8 ? 1 : 0;
      }
    }
    Chose("precision.fp8", absl::StrCat("fp8 for ", in_fp8, " matrices"),
          absl::StrCat("out of ", all, " that support FP8",
                       in_fp8 < all ? "; the rest stay in bf16 (precision.fp8.keep_bf16)" : ""));
  }

  void ResolvePrefetch() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    const Spec spec = ToSpec(job_);
    if (spec.strategy == Strategy::kNoShard) {
      if (!fsdp->has_prefetch_bytes()) Chose("fsdp.prefetch_bytes", "0", "no_shard gathers nothing");
      fsdp->set_prefetch_bytes(0);
      return;
    }
    if (!fsdp->has_prefetch_bytes() && spec.keeps_gathered()) {
      fsdp->set_prefetch_bytes(0);
      Chose("fsdp.prefetch_bytes", "0", "buckets stay gathered, so nothing is prefetched");
      return;
    }
    const Layout layout = MakeLayout(DescribeSpec(spec), LayoutOptionsOf(spec));
    const LargestUnit largest = FindLargestUnit(layout);
    if (!fsdp->has_prefetch_bytes()) {
      fsdp->set_prefetch_bytes(largest.bytes);
      Chose("fsdp.prefetch_bytes", HumanBytes(largest.bytes),
            absl::StrCat("one unit ahead: the largest unit (", largest.name, ")"));
    }
    fsdp->set_prefetch_bytes(std::min<int64_t>(fsdp->prefetch_bytes(), largest.all_bytes));
  }

  void ChooseOffload() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    const auto choose = [&](int64_t layers, const std::string& why) {
      fsdp->mutable_offload()->set_activation_layers(layers);
      Chose("fsdp.offload.activation_layers", absl::StrCat(layers), why);
    };
    const Spec spec = ToSpec(job_);
    const std::string why = WhyLayersStay(spec.model);
    if (!why.empty()) return choose(0, why);
    if (job_.parallel().pipeline() > 1) return choose(0, "not supported with parallel.pipeline");
    if (spec.memory_budget_bytes <= 0) return choose(0, "the memory budget is unknown");
    FixedRecompute held;
    if (fsdp->recompute() != v1::RECOMPUTE_UNSPECIFIED) held.kind = spec.recompute;
    if (fsdp->has_recompute_layers()) held.layers = fsdp->recompute_layers();
    const std::vector<MemoryStrategy> ways = MemoryStrategies(spec, held, job_.resources().ranks_per_node());
    choose(ways.front().offloaded_layers, WhyOf(ways, spec));
    if (!held.kind.has_value())
      SetRecompute(ways.front().recompute, held.layers.has_value(), "the least that fits with this offload");
  }

  // Step times of the alternatives, independent of the device that the job is planned for.
  static std::string WhyOf(const std::vector<MemoryStrategy>& ways, const Spec& spec) {
    const int64_t budget_bytes = spec.memory_budget_bytes;
    if (ways.front().peak_bytes > budget_bytes)
      return absl::StrCat("a step needs ", HumanBytes(ways.front().peak_bytes), " of ",
                          HumanBytes(budget_bytes), " per rank, and offloading more layers does not help");
    if (ways.front().step_seconds == 0) return "a step fits without offload";
    std::vector<std::string> others;
    for (size_t w = 1; w < ways.size(); ++w)
      others.push_back(absl::StrFormat("%.0f ms with %d (recompute %s)", ways[w].step_seconds * 1e3,
                                       ways[w].offloaded_layers, Describe(ways[w].recompute)));
    std::string why = absl::StrFormat("predicted step time with profile %s: %.0f ms",
                                      DefaultProfile(spec.device).name, ways.front().step_seconds * 1e3);
    if (!others.empty()) absl::StrAppend(&why, "; ", absl::StrJoin(others, ", "));
    return why;
  }

  // An explicit layer count then has no effect.
  void RecomputeNothing(const std::string& why) {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_recompute(v1::RECOMPUTE_NONE);
    Chose("fsdp.recompute", "none",
          absl::StrCat(why, fsdp->recompute_layers() > 0 ? "; recompute_layers has no effect" : ""));
    fsdp->clear_recompute_layers();
  }

  // `layers_held`: the spec sets recompute_layers.
  void SetRecompute(const RecomputeChoice& chosen, bool layers_held, const std::string& why) {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    if (chosen.recompute == Recompute::kNone) return RecomputeNothing(why);
    const bool full = chosen.recompute == Recompute::kFull;
    fsdp->set_recompute(full ? v1::RECOMPUTE_FULL : v1::RECOMPUTE_SELECTIVE);
    Chose("fsdp.recompute", full ? "full" : "selective", why);
    if (layers_held) return;
    fsdp->set_recompute_layers(chosen.layers);
    Chose("fsdp.recompute_layers", absl::StrCat(chosen.layers),
          full ? "the fewest that fit; later layers use selective" : "the fewest that fit");
  }

  void ChooseRecompute() {
    v1::Fsdp* fsdp = job_.mutable_fsdp();
    fsdp->set_recompute(v1::RECOMPUTE_NONE);
    const Spec spec = ToSpec(job_);
    if (spec.memory_budget_bytes <= 0) return RecomputeNothing("fastest; the memory budget is unknown");
    const ModelFacts model = DescribeSpec(spec);
    std::optional<int64_t> only_layers;
    if (fsdp->has_recompute_layers()) only_layers = fsdp->recompute_layers();
    const std::vector<ModelFacts> stages = StagesOf(spec);
    // recompute_layers counts from the first layer, which may be in another stage than the peak. With a
    // pipeline, all layers or none recompute.
    if (stages.size() > 1 && !only_layers.has_value()) only_layers = BlocksOf(model);
    std::optional<RecomputeChoice> choice = RecomputeChoice{};
    int64_t peak = 0;
    for (const ModelFacts& stage : stages) {
      const Layout layout = MakeLayout(stage, LayoutOptionsOf(spec));
      const Program program = CompileProgram(spec, stage, layout);
      const auto needs = CheapestRecompute(spec, stage, layout, program, only_layers);
      if (!needs.has_value() || (choice.has_value() && needs->recompute >= choice->recompute)) choice = needs;
      peak = std::max(peak, PlanMemory(spec, stage, layout, program).peak_bytes);
    }
    const std::string needs = absl::StrCat(
        "without it a step needs ", HumanBytes(peak), " of ", HumanBytes(spec.memory_budget_bytes),
        " per rank", choice.has_value() ? "" : ", and does not fit even with full recompute on all layers");
    // If nothing fits, plan with the least memory; the budget check then rejects the job.
    const RecomputeChoice chosen =
        choice.value_or(RecomputeChoice{Recompute::kFull, only_layers.value_or(BlocksOf(model))});
    SetRecompute(chosen, only_layers.has_value(), needs);
  }

  v1::JobSpec job_;
  const int64_t budget_bytes_;
  std::vector<Choice>* const choices_;
};

}  // namespace

v1::JobSpec Resolve(const v1::JobSpec& job, int64_t budget_bytes_per_rank, std::vector<Choice>* choices) {
  return Resolver(job, budget_bytes_per_rank, choices).Run();
}

int64_t OfferNeeded(const v1::JobSpec& resolved, int64_t peak_bytes, bool margin) {
  if (resolved.resources().device() != v1::DEVICE_CUDA) return peak_bytes;
  if (!margin) return peak_bytes + ProcessBytes(resolved);
  // The inverse of ResolveBudget().
  const int64_t parts = (peak_bytes + 99 - kMarginPercent) / (100 - kMarginPercent);
  return 100 * parts + ProcessBytes(resolved);
}

}  // namespace fsdpd
