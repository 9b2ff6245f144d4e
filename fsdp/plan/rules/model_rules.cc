// Rules of name and model.
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>

#include "base/ids.h"
#include "base/limits.h"
#include "base/text.h"
#include "fsdp/plan/rules/rule_table.h"

namespace fsdpd {
namespace {

// Limits far above any real model; within them no product of sizes overflows 63 bits.
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxHidden = 1 << 17;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadSize = 1024;
constexpr int64_t kMaxPositions = 1 << 20;

bool HasLlama(const Facts& f) { return f.job.model().has_llama(); }
bool HasGpt2(const Facts& f) { return f.job.model().has_gpt2(); }

Findings HeadsDivide(int64_t hidden_size, int64_t heads) {
  if (hidden_size % heads == 0) return {};
  return {{absl::StrCat("hidden_size ", hidden_size, " does not split into ", heads, " equal heads"),
           "choose heads so that hidden_size / heads is whole, usually 64 or 128"}};
}

constexpr double kMaxScale = 100;  // 1 in all published models.

Findings ChecksRopeScaling(const Facts& f) {
  const v1::Llama::RopeScaling& scaling = f.job.model().llama().rope_scaling();
  if (!HasLlama(f) || !f.job.model().llama().has_rope_scaling()) return {};
  const auto field = [](const char* name) { return absl::StrCat("model.llama.rope_scaling.", name); };
  Findings findings;
  if (!std::isfinite(scaling.factor()) || scaling.factor() < 1) {
    findings.push_back({scaling.has_factor() ? absl::StrCat("factor is ", scaling.factor(),
                                                            " (want at least 1: it stretches wavelengths)")
                                             : "factor is missing, and it has no default",
                        "write for example factor: 8, or leave rope_scaling out", field("factor")});
  }
  const double low = scaling.low_freq_factor(), high = scaling.high_freq_factor();
  if (!std::isfinite(low) || !std::isfinite(high) || low <= 0 || high <= low) {
    findings.push_back(
        {absl::StrCat("low_freq_factor is ", low, " and high_freq_factor is ", high,
                      " (want 0 < low_freq_factor < high_freq_factor)"),
         scaling.has_yarn() ? "omit both (defaults: 1 and 32)" : "omit both (defaults: 1 and 4)",
         field("high_freq_factor")});
  }
  AddFindings(
      CheckLimits(f, field("original_positions"), Between(1, kMaxPositions, "omit it (default: 8192)")),
      field("original_positions"), &findings);
  for (const auto& [name, value] : {std::pair("mscale", scaling.yarn().mscale()),
                                    std::pair("mscale_all_dim", scaling.yarn().mscale_all_dim())}) {
    if (value >= 0 && value <= kMaxScale) continue;
    findings.push_back({absl::StrCat(name, " is ", value, " and must be between 0 and ", kMaxScale),
                        "leave it out", absl::StrCat(field("yarn."), name)});
  }
  return findings;
}

constexpr char kListPresets[] = "run `fsdpctl explain model.preset`";

// Up to a few presets that share a prefix with `name`, longest common prefix first.
std::vector<std::string> SimilarPresets(const std::string& name) {
  constexpr size_t kFew = 3, kLeastCommon = 3;
  const auto common = [&](const std::string& preset) {
    const size_t most = std::min(name.size(), preset.size());
    return static_cast<size_t>(std::mismatch(name.begin(), name.begin() + most, preset.begin()).first -
                               name.begin());
  };
  std::vector<std::string> similar;
  for (const std::string& preset : PresetNames()) {
    if (common(preset) >= kLeastCommon) similar.push_back(preset);
  }
  std::stable_sort(similar.begin(), similar.end(),
                   [&](const auto& a, const auto& b) { return common(a) > common(b); });
  similar.resize(std::min(similar.size(), kFew));
  return similar;
}

// The size suffix of a name: "xl" in "gpt2-xl"; empty if absent.
absl::string_view SizeWord(absl::string_view name) {
  const absl::string_view last = name.substr(std::min(name.size(), name.rfind('-') + 1));
  return last.find_first_not_of("xsml") == absl::string_view::npos ? last : "";
}

// The preset that `name` misspells; empty if absent. Names with different size suffixes are different
// models.
std::string MeantPreset(const std::string& name) {
  const std::string nearest = Nearest(name, PresetNames());
  const absl::string_view size = SizeWord(name);
  return size.empty() || size == SizeWord(nearest) ? nearest : "";
}

const Rule kRules[] = {
    {"name_is_label", kError, "name", "name must be a DNS label of at most 40 characters",
     [](const Facts& f) -> Findings {
       const absl::Status status = CheckName(f.job.name());
       if (status.ok()) return {};
       const char* fix = "write lower-case letters, digits and '-', for example: tiny-llama";
       if (f.job.name().empty()) {
         return {{"the name is missing; it is part of the job's id, directories and metric labels", fix}};
       }
       return {{absl::StrCat("'", f.job.name(), "' ", status.message(),
                             "; it is part of the job's id, directories and metric labels"),
                fix}};
     }},
    {"model_required", kError, "model", "exactly one model source must be set",
     [](const Facts& f) -> Findings {
       if (f.job.model().source_case() != v1::Model::SOURCE_NOT_SET || !f.IsValid({"model"})) return {};
       return {{"no model is set, so there is nothing to train",
                absl::StrCat("write model: {preset: NAME}, model: {hf_config: PATH}, model: {llama: {...}}, "
                             "model: {package: {path: FILE}}, model: {gpt2: {...}} or model: {plugin: "
                             "{...}}; for the presets, ",
                             kListPresets)}};
     }},
    {"preset_unknown", kError, "model.preset", "the preset must be a built-in one",
     [](const Facts& f) -> Findings {
       const v1::Model& model = f.job.model();
       if (model.source_case() != v1::Model::kPreset || FindPreset(model.preset()) != nullptr) return {};
       const std::string written = absl::AsciiStrToLower(model.preset());  // Preset names are lower case.
       const std::string nearest = MeantPreset(written);
       const std::vector<std::string> similar = SimilarPresets(written);
       return {{absl::StrCat("unknown preset '", model.preset(), "'",
                             similar.empty() ? "" : "; similar presets: ", absl::StrJoin(similar, ", ")),
                absl::StrCat(nearest.empty() ? "" : absl::StrCat("write preset: ", nearest, ", or "),
                             kListPresets)}};
     }},
    {"hf_config_unresolved", kError, "model.hf_config",
     "hf_config must be resolved by the client before submit",
     [](const Facts& f) -> Findings {
       if (f.job.model().source_case() != v1::Model::kHfConfig) return {};
       return {{absl::StrCat("'", f.job.model().hf_config(),
                             "' is a path on the submitter's machine, which only the client can read"),
                "submit with fsdpctl, which sends the file's sizes, or write them in model.llama"}};
     }},
    {"vocab_size_range", kError, "model.llama.vocab_size", "vocab_size must be positive and at most 2^24",
     Required(kMaxVocab, "write for example vocab_size: 32000")},
    {"hidden_size_range", kError, "model.llama.hidden_size", "hidden_size must be positive and at most 2^17",
     Required(kMaxHidden, "write for example hidden_size: 4096")},
    {"intermediate_size_range", kError, "model.llama.intermediate_size",
     "intermediate_size must be positive and at most 2^20",
     Required(kMaxIntermediate, "write for example intermediate_size: 14336")},
    {"layers_range", kError, "model.llama.layers", "layers must be positive and at most 1024",
     Required(kMaxLayers, "write for example layers: 32")},
    {"heads_range", kError, "model.llama.heads", "heads must be positive and at most 1024",
     Required(kMaxHeads, "write for example heads: 32")},
    {"kv_heads_positive", kError, "model.llama.kv_heads", "kv_heads must be positive and at most 1024",
     Between(1, kMaxHeads, "omit it (default: as many as heads)")},
    {"head_size_range", kError, "model.llama.head_size", "head_size must be positive and at most 1024",
     Between(1, kMaxHeadSize, "omit it (default: hidden_size / heads)")},
    {"positions_range", kError, "model.llama.positions", "positions must be positive and at most 2^20",
     Between(1, kMaxPositions, "omit it to allow any length")},
    {"heads_divide_hidden", kError, "model.llama.heads",
     "hidden_size must be a multiple of heads unless head_size is set",
     [](const Facts& f) -> Findings {
       const v1::Llama& llama = f.job.model().llama();
       if (!HasLlama(f) || llama.has_head_size() || llama.has_latent_attention()) return {};
       if (!f.IsValid({"model.llama.hidden_size", "model.llama.heads", "model.llama.head_size"})) return {};
       return HeadsDivide(llama.hidden_size(), llama.heads());
     }},
    {"head_size_even", kError, "model.llama.heads", "head_size must be even",
     [](const Facts& f) -> Findings {
       const v1::Llama& llama = f.job.model().llama();
       if (!HasLlama(f) || llama.has_latent_attention()) return {};
       if (!f.IsValid({"model.llama.hidden_size", "model.llama.heads", "model.llama.head_size"})) return {};
       const int64_t head = llama.has_head_size() ? llama.head_size() : llama.hidden_size() / llama.heads();
       if (head % 2 == 0) return {};
       return {{absl::StrCat("a head has ", head,
                             " elements (want an even number: rotary embeddings rotate pairs)"),
                "choose heads or head_size so that the head size is even",
                llama.has_head_size() ? "model.llama.head_size" : ""}};
     }},
    {"kv_heads_divide_heads", kError, "model.llama.kv_heads", "heads must be a multiple of kv_heads",
     [](const Facts& f) -> Findings {
       const v1::Llama& llama = f.job.model().llama();
       if (!HasLlama(f) || !f.IsValid({"model.llama.heads", "model.llama.kv_heads"})) return {};
       if (!llama.has_kv_heads() || llama.heads() % llama.kv_heads() == 0) return {};
       return {{absl::StrCat("each of ", llama.kv_heads(), " key-value heads must serve equally many of the ",
                             llama.heads(), " query heads"),
                "choose kv_heads among the divisors of heads, or leave it out"}};
     }},
    {"rope_theta_positive", kError, "model.llama.rope_theta", "rope_theta must be positive and finite",
     Positive("omit it (default: 10000)")},
    {"norm_epsilon_positive", kError, "model.llama.norm_epsilon", "norm_epsilon must be positive and finite",
     Positive("omit it (default: 1e-5)")},
    {"rope_scaling_range", kError, "model.llama.rope_scaling",
     "rope_scaling needs factor of at least 1 and 0 < low_freq_factor < high_freq_factor", ChecksRopeScaling},
    {"gpt2_vocab_size_range", kError, "model.gpt2.vocab_size", "vocab_size must be positive and at most 2^24",
     Required(kMaxVocab, "write for example vocab_size: 50257")},
    {"gpt2_hidden_size_range", kError, "model.gpt2.hidden_size",
     "hidden_size must be positive and at most 2^17",
     Required(kMaxHidden, "write for example hidden_size: 768")},
    {"gpt2_layers_range", kError, "model.gpt2.layers", "layers must be positive and at most 1024",
     Required(kMaxLayers, "write for example layers: 12")},
    {"gpt2_heads_range", kError, "model.gpt2.heads", "heads must be positive and at most 1024",
     Required(kMaxHeads, "write for example heads: 12")},
    {"gpt2_positions_range", kError, "model.gpt2.positions", "positions must be positive and at most 2^20",
     Required(kMaxPositions, "write for example positions: 1024")},
    {"gpt2_intermediate_size_range", kError, "model.gpt2.intermediate_size",
     "intermediate_size must be positive and at most 2^20",
     Between(1, kMaxIntermediate, "omit it (default: 4 x hidden_size)")},
    {"gpt2_heads_divide_hidden", kError, "model.gpt2.heads", "hidden_size must be a multiple of heads",
     [](const Facts& f) -> Findings {
       const v1::Gpt2& gpt2 = f.job.model().gpt2();
       if (!HasGpt2(f) || !f.IsValid({"model.gpt2.hidden_size", "model.gpt2.heads"})) return {};
       return HeadsDivide(gpt2.hidden_size(), gpt2.heads());
     }},
    {"gpt2_norm_epsilon_positive", kError, "model.gpt2.norm_epsilon",
     "norm_epsilon must be positive and finite", Positive("omit it (default: 1e-5)")},
};

}  // namespace

absl::Span<const Rule> ModelRules() { return kRules; }

}  // namespace fsdpd
