// Rules of precision.compute: fp8 and precision.fp8.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <optional>
#include <set>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/fp8_facts.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

bool IsFp8(const Facts& f) { return f.job.precision().compute() == v1::DTYPE_FP8; }

// Names of the matrices that FP8 supports.
std::vector<std::string> Matrices(const Facts& f) {
  std::vector<std::string> names;
  for (const UnitFacts& unit : DescribeModel(f.model(), 1, 1, DType::kBf16).units) {
    for (const ParamFacts& param : unit.params) {
      if (CanBeFp8(unit, param)) names.push_back(FullName(unit, param));
    }
  }
  return names;
}

// A pattern that matches no matrix is a typo.
Findings ChecksKept(const Facts& f) {
  const auto& patterns = f.job.precision().fp8().keep_bf16();
  if (!IsFp8(f) || patterns.empty() || !f.llama().has_value()) return {};
  const std::vector<std::string> names = Matrices(f);
  if (names.empty()) return {};
  std::vector<bool> kept(names.size());
  Findings findings;
  for (int i = 0; i < patterns.size(); ++i) {
    bool found = false;
    for (size_t n = 0; n < names.size(); ++n) {
      if (MatchesPattern(names[n], patterns[i])) found = kept[n] = true;
    }
    if (found) continue;
    findings.push_back({absl::StrCat("'", patterns[i], "' matches no matrix of a layer; examples of names: ",
                                     names.front(), " and ", names.back()),
                        "write a full name or a pattern with *, e.g. layer.0.*",
                        absl::StrCat("precision.fp8.keep_bf16[", i, "]")});
  }
  if (findings.empty() && std::count(kept.begin(), kept.end(), false) == 0) {
    findings.push_back({"all matrices stay in bf16, so nothing runs in FP8",
                        "write precision.compute: bf16, or keep fewer"});
  }
  return findings;
}

// Fused products (by first matrix) that run in FP8 in some layer.
std::set<std::string> ProductsInFp8(const Facts& f) {
  const auto& patterns = f.job.precision().fp8().keep_bf16();
  std::set<std::string> found;
  for (const UnitFacts& unit : DescribeModel(f.model(), 1, 1, DType::kBf16).units) {
    for (const std::vector<std::string>& product : LayerProducts()) {
      bool is_there = false, kept = false;
      for (const ParamFacts& param : unit.params) {
        if (!CanBeFp8(unit, param) || std::count(product.begin(), product.end(), param.name) == 0) continue;
        const std::string name = FullName(unit, param);
        is_there = true;
        kept = kept || std::any_of(patterns.begin(), patterns.end(),
                                   [&](const std::string& pattern) { return MatchesPattern(name, pattern); });
      }
      if (is_there && !kept) found.insert(product.front());
    }
  }
  return found;
}

Findings ChecksSizes(const Facts& f) {
  const std::optional<LlamaConfig> llama = f.llama();
  if (!IsFp8(f) || !llama.has_value() || !f.IsValid({"parallel.tensor", "parallel.pipeline"})) return {};
  const LlamaConfig& model = *llama;
  const ExpertsConfig& experts = model.experts;
  const int64_t tensor = std::max<int64_t>(1, f.job.parallel().tensor());
  const int64_t keys = std::max<int64_t>(1, model.kv_heads / tensor) * model.head_size;
  const std::set<std::string> in_fp8 = ProductsInFp8(f);
  const auto any = [&in_fp8](const std::string& one, const std::string& other) {
    return in_fp8.count(one) + in_fp8.count(other) > 0;
  };
  struct Size {
    const char* what;
    const char* made_of;  // The field that sets the size.
    int64_t of_rank;
    int64_t ranks;  // Ranks that shard it.
    bool asked;     // Some FP8 product has this size.
  };
  Findings findings;
  for (const Size& size :
       {Size{"hidden_size", "hidden_size", model.hidden_size, 1, !in_fp8.empty()},
        Size{"the width of query heads", "heads and a head_size with a product of",
             model.heads / tensor * model.head_size, tensor,
             !model.latent && any("attention.wq", "attention.wo")},
        Size{"the width of key heads", "kv_heads and a head_size with a product of", keys,
             std::min(tensor, model.kv_heads), any("attention.wq", "attention.wq")},
        Size{"the width of values", "heads and a value_head_size with a product of",
             model.heads / tensor * model.latent.value_head_size, tensor,
             model.latent && any("attention.wo", "attention.wo")},
        Size{"intermediate_size", "intermediate_size", model.intermediate_size / tensor, tensor,
             any("ffn.w1", "ffn.w2")},
        Size{"experts.intermediate_size", "experts.intermediate_size", experts.intermediate_size / tensor,
             tensor, any("ffn.experts.w1", "ffn.experts.w2")},
        Size{"experts.shared_intermediate_size", "experts.shared_intermediate_size",
             experts.shared_intermediate_size / tensor, tensor, any("ffn.shared.w1", "ffn.shared.w2")}}) {
    if (size.of_rank % kFp8Step == 0 || !size.asked) continue;
    const int64_t below = size.of_rank / kFp8Step * kFp8Step;
    const std::string smaller = below > 0 ? absl::StrCat(below * size.ranks, " or ") : "";
    findings.push_back({absl::StrCat(size.what, " is ", size.of_rank, tensor > 1 ? " on a rank" : "",
                                     ", and sizes of FP8 matmuls must be multiples of ", kFp8Step),
                        absl::StrCat("write ", size.made_of, " ", smaller, (below + kFp8Step) * size.ranks,
                                     ", or precision.compute: bf16")});
  }
  return findings;
}

// For narrower experts, FP8 saves less time than quantization costs (docs/fp8.md has measurements).
constexpr int64_t kNarrowExperts = 1024;
// Limit of one grouped FP8 product on a GPU.
constexpr int64_t kMostFp8Experts = 1023;

bool RunsExpertsInFp8(const Facts& f) {
  if (!IsFp8(f) || !f.llama().has_value() || f.job.resources().device() == v1::DEVICE_CPU) return false;
  if (!f.IsValid({"precision.fp8.keep_bf16"})) return false;
  const std::set<std::string> in_fp8 = ProductsInFp8(f);
  return in_fp8.count("ffn.experts.w1") + in_fp8.count("ffn.experts.w2") > 0;
}

Findings ChecksExperts(const Facts& f) {
  if (!f.IsValid({"parallel.tensor"}) || !RunsExpertsInFp8(f)) return {};
  const int64_t width =
      f.llama()->experts.intermediate_size / std::max<int64_t>(1, f.job.parallel().tensor());
  if (width >= kNarrowExperts) return {};
  return {{absl::StrCat("experts are ", width, " wide; below ", kNarrowExperts,
                        ", quantization takes the time that FP8 saves"),
           "write precision.fp8.keep_bf16: [\"*.experts.*\"], or keep FP8 to save energy"}};
}

Findings ChecksExpertCount(const Facts& f) {
  if (!f.IsValid({"parallel.expert"}) || !RunsExpertsInFp8(f)) return {};
  const int64_t count = f.llama()->experts.count / std::max<int64_t>(1, f.job.parallel().expert());
  if (count <= kMostFp8Experts) return {};
  return {{absl::StrCat("a rank has ", count, " experts of a layer, and FP8 supports at most ",
                        kMostFp8Experts, " per rank"),
           "set parallel.expert, or write precision.fp8.keep_bf16: [\"*.experts.*\"]"}};
}

const Rule kRules[] = {
    {"fp8_needs_llama", kError, "precision.compute", "compute: fp8 supports only models of the Llama family",
     When{[](const Facts& f) { return IsFp8(f) && f.HasOtherFamily(); }, "FP8 does not support this model",
          "leave precision.compute out"}},
    {"fp8_sizes", kError, "precision.compute", "sizes of FP8 matmuls must be multiples of 16", ChecksSizes},
    {"fp8_keep_matches", kError, "precision.fp8.keep_bf16",
     "each keep_bf16 pattern must match a matrix, and some matrix must run in FP8", ChecksKept},
    {"fp8_keep_leaves_some", kWarn, "precision.fp8.keep_bf16",
     "keep_bf16 should leave some fused matmul completely in FP8",
     When{[](const Facts& f) {
            // If a pattern keeps some matrices of a fused product in bf16, the whole product stays in bf16.
            return IsFp8(f) && !f.job.precision().fp8().keep_bf16().empty() && f.llama().has_value() &&
                   f.IsValid({"precision.fp8.keep_bf16"}) && ProductsInFp8(f).empty();
          },
          "every matmul has a matrix that stays in bf16, and matmuls are fused (queries, keys and values; "
          "gate "
          "and up), so nothing runs in FP8",
          "write precision.compute: bf16, or keep fewer"}},
    {"fp8_most_experts", kError, "model.llama.experts.count",
     "FP8 supports at most 1023 experts of a layer per rank", ChecksExpertCount},
    {"fp8_narrow_experts", kWarn, "precision.fp8.keep_bf16",
     "FP8 is not faster for experts narrower than 1024", ChecksExperts},
    {"fp8_on_cpu_is_slow", kWarn, "precision.compute", "fp8 is slow on CPU",
     When{[](const Facts& f) { return IsFp8(f) && f.job.resources().device() == v1::DEVICE_CPU; },
          "CPUs quantize to FP8 and multiply in fp32", "fine for a test; else use fp32"}},
    {"fp8_without_compute", kWarn, "precision.fp8", "precision.fp8 has no effect unless compute is fp8",
     When{[](const Facts& f) {
            return f.job.precision().has_fp8() && !IsFp8(f) && f.IsValid({"precision.compute"});
          },
          "nothing runs in FP8", "write compute: fp8, or leave precision.fp8 out"}},
};

}  // namespace

absl::Span<const Rule> Fp8Rules() { return kRules; }

}  // namespace fsdpd
