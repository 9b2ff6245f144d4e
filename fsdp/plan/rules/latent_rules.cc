// Rules of model.llama.latent_attention.
#include <absl/strings/str_cat.h>

#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxRank = 1 << 17;
constexpr int64_t kMaxHeadSize = 1024;  // As in model_rules.cc.

bool HasLatent(const Facts& f) {
  return f.job.model().has_llama() && f.job.model().llama().has_latent_attention();
}
const v1::Llama::LatentAttention& Latent(const Facts& f) { return f.job.model().llama().latent_attention(); }

Findings ChecksHeadSizes(const Facts& f) {
  if (!HasLatent(f)) return {};
  const v1::Llama::LatentAttention& latent = Latent(f);
  Findings findings;
  for (const auto& [name, fix] : {std::pair("plain_head_size", "write for example plain_head_size: 128"),
                                  std::pair("rotary_head_size", "write for example rotary_head_size: 64"),
                                  std::pair("value_head_size", "write for example value_head_size: 128")}) {
    const std::string field = absl::StrCat("model.llama.latent_attention.", name);
    AddFindings(CheckLimits(f, field, Required(kMaxHeadSize, fix)), field, &findings);
  }
  if (!findings.empty()) return findings;
  if (latent.rotary_head_size() % 2 != 0) {
    return {{absl::StrCat("the rotary part of a head has ", latent.rotary_head_size(),
                          " elements (want an even number: rotary embeddings rotate pairs)"),
             "choose an even number", "model.llama.latent_attention.rotary_head_size"}};
  }
  if (latent.plain_head_size() + latent.rotary_head_size() <= kMaxHeadSize) return {};
  return {{absl::StrCat("a query has ", latent.plain_head_size() + latent.rotary_head_size(),
                        " elements, and a head at most ", kMaxHeadSize),
           "choose a smaller plain_head_size", "model.llama.latent_attention.plain_head_size"}};
}

// For fields that a resolved spec always has: the required value.
Findings ChecksHeads(const Facts& f) {
  if (!HasLatent(f) || !f.IsValid({"model.llama.heads", "model.llama.latent_attention"})) return {};
  const v1::Llama& llama = f.job.model().llama();
  const int64_t size = Latent(f).plain_head_size() + Latent(f).rotary_head_size();
  Findings findings;
  if (llama.has_kv_heads() && llama.kv_heads() != llama.heads()) {
    findings.push_back(
        {absl::StrCat("kv_heads is ", llama.kv_heads(), " and must equal heads (", llama.heads(), ")"),
         "leave kv_heads out", "model.llama.kv_heads"});
  }
  if (llama.has_head_size() && llama.head_size() != size) {
    findings.push_back({absl::StrCat("head_size is ", llama.head_size(),
                                     ", and plain_head_size + rotary_head_size is ", size),
                        "leave head_size out", "model.llama.head_size"});
  }
  return findings;
}

Findings ChecksNorms(const Facts& f) {
  if (!HasLatent(f)) return {};
  Findings findings;
  if (f.job.model().llama().qk_norm()) {
    findings.push_back({"qk_norm is not supported with latent attention, which normalizes the latents",
                        "leave qk_norm out", "model.llama.qk_norm"});
  }
  if (f.job.model().llama().attention_bias()) {
    findings.push_back({"attention_bias is not supported with latent attention", "leave attention_bias out",
                        "model.llama.attention_bias"});
  }
  return findings;
}

const Rule kRules[] = {
    {"latent_rank_range", kError, "model.llama.latent_attention.rank",
     "rank must be positive and at most 2^17",
     Required(kMaxRank, "write for example rank: 512, or omit latent_attention to use key and value heads")},
    {"latent_query_rank_range", kError, "model.llama.latent_attention.query_rank",
     "query_rank must be positive and at most 2^17",
     Between(1, kMaxRank, "leave it out to project queries directly from the hidden state")},
    {"latent_head_sizes", kError, "model.llama.latent_attention",
     "head sizes must be positive, rotary_head_size even, and plain + rotary at most 1024", ChecksHeadSizes},
    {"latent_has_its_heads", kError, "model.llama.latent_attention",
     "with latent attention, kv_heads must equal heads, and head_size must equal plain_head_size + "
     "rotary_head_size",
     ChecksHeads},
    {"latent_has_its_norms", kError, "model.llama.latent_attention",
     "latent attention is not supported with qk_norm or attention_bias", ChecksNorms},
};

}  // namespace

absl::Span<const Rule> LatentRules() { return kRules; }

}  // namespace fsdpd
