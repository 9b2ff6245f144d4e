// Rules of model.llama.experts.
#include <absl/strings/str_cat.h>

#include <variant>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

// Limits above any real model: within them and those in model_rules.cc, no product of sizes overflows 63
// bits.
constexpr int64_t kMaxExperts = 1024;
constexpr int64_t kMaxIntermediate = 1 << 17;
constexpr int64_t kMaxShared = 1 << 20;
// Above these, the model's own loss is lost in fp32 rounding, or scaled weights dominate (or vanish against)
// what they are added to.
constexpr double kMaxFactor = 1e6;

Findings BoundedLoss(double value, const char* name) {
  const char* fix = "omit it (default: none)";
  if (!(value <= kMaxFactor) && value > 0)
    return {{absl::StrCat(name, " is ", value, " and must be at most ", kMaxFactor), fix}};
  return CheckNotNegative(value, name, fix);
}

// Sigmoid scores are between 0 and 1: a larger bias step would rank an expert first or last regardless of its
// score.
constexpr double kMaxRate = 1;

// bf16 elements in 16 bytes.
constexpr int64_t kPack = 8;

bool HasExperts(const Facts& f) { return f.job.model().has_llama() && f.job.model().llama().has_experts(); }
const v1::Llama::Experts& Experts(const Facts& f) { return f.job.model().llama().experts(); }

Findings ChecksBiasUpdateRate(const Facts& f) {
  if (!HasExperts(f)) return {};
  const double rate = Experts(f).bias_update_rate();
  if (rate == 0) return {};
  const char* fix = "write for example 0.001, or omit it for a fixed bias";
  if (!(rate <= kMaxRate) && rate > 0)
    return {{absl::StrCat("bias_update_rate is ", rate, " and must be at most ", kMaxRate), fix}};
  if (Findings negative = CheckNotNegative(rate, "bias_update_rate", fix); !negative.empty()) return negative;
  if (Experts(f).scores() != v1::Llama::Experts::SCORES_SIGMOID)
    return {{"selection bias updates are not supported with softmax scores",
             "write scores: sigmoid, or balance_loss: 0.01 instead of bias_update_rate"}};
  if (Experts(f).selection_bias()) return {};
  return {{"there is no selection bias to update", "write selection_bias: true, or leave it out"}};
}

const Rule kRules[] = {
    {"experts_count_range", kError, "model.llama.experts.count", "count must be positive and at most 1024",
     Required(kMaxExperts,
              "write for example count: 8, or omit experts for one feed-forward network per layer")},
    {"experts_per_token_range", kError, "model.llama.experts.per_token",
     "per_token must be positive and at most count",
     [](const Facts& f) -> Findings {
       if (!HasExperts(f) || !f.IsValid({"model.llama.experts.count"})) return {};
       const char* fix = "write for example per_token: 2, at most the number of experts";
       return Experts(f).has_per_token()
                  ? CheckRange(Experts(f).per_token(), 1, Experts(f).count(), "per_token", fix)
                  : Missing("per_token", fix);
     }},
    {"experts_top_1_normalized", kWarn, "model.llama.experts.normalized",
     "per_token: 1 with normalized weights gives the router no gradient from the loss",
     When{
         [](const Facts& f) {
           return HasExperts(f) && f.IsValid({"model.llama.experts"}) && Experts(f).per_token() == 1 &&
                  Experts(f).normalized();
         },
         "with per_token 1 a normalized weight is always 1, so the loss has no gradient for the router; only "
         "balance_loss and z_loss train it",
         "write normalized: false"}},
    {"experts_intermediate_size_range", kError, "model.llama.experts.intermediate_size",
     "intermediate_size of experts must be positive and at most 2^17",
     Between(1, kMaxIntermediate, "omit it (default: the model's intermediate_size)")},
    {"experts_dense_layers_range", kError, "model.llama.experts.dense_layers",
     "dense_layers must be at least 0 and below the number of layers",
     [](const Facts& f) -> Findings {
       if (!HasExperts(f) || !f.IsValid({"model.llama.layers"})) return {};
       const int64_t dense = Experts(f).dense_layers(), layers = f.job.model().llama().layers();
       if (dense >= 0 && dense < layers) return {};
       return {{absl::StrCat("dense_layers is ", dense, " and must be at least 0 and below the ", layers,
                             " layers"),
                "omit it (default: 0), or leave experts out"}};
     }},
    {"experts_losses_not_negative", kError, "model.llama.experts.balance_loss",
     "balance_loss and z_loss must be 0 or positive, and at most 1e6",
     [](const Facts& f) -> Findings {
       if (!HasExperts(f)) return {};
       Findings findings = BoundedLoss(Experts(f).balance_loss(), "balance_loss");
       AddFindings(BoundedLoss(Experts(f).z_loss(), "z_loss"), "model.llama.experts.z_loss", &findings);
       return findings;
     }},
    {"experts_groups_range", kError, "model.llama.experts.groups",
     "groups must have equal size (at least 2 with group_scores: two_best), and groups_per_token groups must "
     "hold at least per_token experts",
     [](const Facts& f) -> Findings {
       if (!HasExperts(f) || !f.IsValid({"model.llama.experts"})) return {};
       const int64_t count = Experts(f).count();
       if (!Experts(f).has_groups() && !Experts(f).has_groups_per_token()) return {};
       const int64_t groups = Experts(f).has_groups() ? Experts(f).groups() : 1;
       const bool by_best = Experts(f).group_scores() == v1::Llama::Experts::GROUP_SCORES_BEST;
       if (groups < 1 || count % groups != 0 || (groups > 1 && !by_best && count / groups < 2)) {
         const bool of_one = groups == count && !by_best;
         return {{absl::StrCat(count, " experts do not split into ", groups, " equal groups",
                               by_best ? "" : " of at least 2 (group_scores: two_best)"),
                  absl::StrCat("choose a divisor of count", by_best ? "" : ", at most half of it",
                               of_one ? ", or write group_scores: best" : "", ", or leave groups out")}};
       }
       const int64_t of_token = Experts(f).has_groups_per_token() ? Experts(f).groups_per_token() : groups;
       if (of_token >= 1 && of_token <= groups && Experts(f).per_token() <= of_token * (count / groups))
         return {};
       return {{of_token < 1 || of_token > groups
                    ? absl::StrCat("groups_per_token is ", of_token, ", and there are ", groups, " groups")
                    : absl::StrCat("groups_per_token: ", of_token, " selects ", of_token * (count / groups),
                                   " experts, and per_token is ", Experts(f).per_token()),
                "write a groups_per_token of at most groups that selects at least per_token experts",
                "model.llama.experts.groups_per_token"}};
     }},
    {"experts_group_scores_of_groups", kWarn, "model.llama.experts.group_scores",
     "group_scores has no effect without groups",
     When{[](const Facts& f) {
            return HasExperts(f) &&
                   Experts(f).group_scores() != v1::Llama::Experts::GROUP_SCORES_UNSPECIFIED &&
                   Experts(f).groups() <= 1;
          },
          "the model has no expert groups", "set groups and groups_per_token, or leave it out"}},
    {"experts_weight_scale_positive", kError, "model.llama.experts.weight_scale",
     "weight_scale must be positive, from 1e-6 to 1e6",
     [](const Facts& f) -> Findings {
       if (!HasExperts(f) || !Experts(f).has_weight_scale()) return {};
       const double scale = Experts(f).weight_scale();
       if (1 / kMaxFactor <= scale && scale <= kMaxFactor) return {};
       return {{absl::StrCat("weight_scale is ", scale, " and must be between ", 1 / kMaxFactor, " and ",
                             kMaxFactor),
                "omit it (default: 1)"}};
     }},
    {"experts_shared_intermediate_size_range", kError, "model.llama.experts.shared_intermediate_size",
     "shared_intermediate_size must be positive and at most 2^20",
     Between(1, kMaxShared, "omit it for no shared expert")},
    {"experts_bias_update_rate", kError, "model.llama.experts.bias_update_rate",
     "bias_update_rate must be between 0 and 1, and requires sigmoid scores and selection_bias",
     ChecksBiasUpdateRate},
    {"experts_slow_products", kWarn, "model.llama.experts",
     "on GPUs, experts are slow unless they use bf16 and sizes that are multiples of 8",
     [](const Facts& f) -> Findings {
       if (ExpertsOf(f.job.model()) == 0 || f.job.resources().device() == v1::DEVICE_CPU) return {};
       if (!f.ModelIsKnown() || !f.IsValid({"parallel.tensor", "precision", "resources.device"})) return {};
       const char* slow =
           ": their products use a fallback kernel, many times slower than bf16 with sizes that are "
           "multiples of 8";
       if (f.compute() != DType::kBf16)
         return {{absl::StrCat("experts compute in ", NameOf(f.compute()), slow),
                  "write precision.compute: bf16"}};
       const auto llama = std::get<LlamaConfig>(f.model());
       const int64_t width = llama.experts.intermediate_size / f.job.parallel().tensor();
       if (llama.hidden_size % kPack == 0 && width % kPack == 0) return {};
       return {
           {absl::StrCat("matrices of ", llama.hidden_size, " x ", width, " numbers", slow),
            "choose hidden_size and intermediate_size (of a tensor-parallel shard) that are multiples of 8"}};
     }},
};

}  // namespace

absl::Span<const Rule> ExpertsRules() { return kRules; }

}  // namespace fsdpd
