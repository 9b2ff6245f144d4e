#include "fsdp/plan/spec/model_difference.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <type_traits>

namespace fsdpd {
namespace {

class Differences {
 public:
  explicit Differences(absl::string_view here) : here_(here) {}

  void Size(const char* field, int64_t ours, int64_t theirs) {
    if (ours != theirs) Add(field, absl::StrCat(ours), absl::StrCat(theirs));
  }
  void Number(const char* field, double ours, double theirs) {
    if (ours != theirs) Add(field, absl::StrFormat("%.9g", ours), absl::StrFormat("%.9g", theirs));
  }
  void Flag(const char* field, bool ours, bool theirs) {
    if (ours != theirs) Add(field, ours ? "true" : "false", theirs ? "true" : "false");
  }
  void Text(const char* field, const std::string& ours, const std::string& theirs) {
    if (ours != theirs) Add(field, absl::StrCat("'", ours, "'"), absl::StrCat("'", theirs, "'"));
  }

  std::vector<std::string> Take() { return std::move(lines_); }

 private:
  void Add(const char* field, const std::string& ours, const std::string& theirs) {
    lines_.push_back(absl::StrCat(field, ": ", theirs, " there, and ", ours, " ", here_));
  }

  const absl::string_view here_;
  std::vector<std::string> lines_;
};

void Compare(const RopeScaling& ours, const RopeScaling& theirs, Differences* differences) {
  differences->Number("rope_scaling.factor", ours.factor, theirs.factor);
  if (ours.factor == 1 || theirs.factor == 1) return;  // The other fields only matter if both scale.
  differences->Number("rope_scaling.low_freq_factor", ours.low_freq_factor, theirs.low_freq_factor);
  differences->Number("rope_scaling.high_freq_factor", ours.high_freq_factor, theirs.high_freq_factor);
  differences->Size("rope_scaling.original_positions", ours.original_positions, theirs.original_positions);
  differences->Flag("rope_scaling.yarn", ours.yarn, theirs.yarn);
  if (!ours.yarn || !theirs.yarn) return;
  differences->Number("rope_scaling.yarn.mscale", ours.mscale, theirs.mscale);
  differences->Number("rope_scaling.yarn.mscale_all_dim", ours.mscale_all_dim, theirs.mscale_all_dim);
}

void Compare(const LatentConfig& ours, const LatentConfig& theirs, Differences* differences) {
  differences->Size("latent_attention.rank", ours.rank, theirs.rank);
  if (!ours || !theirs) return;
  differences->Size("latent_attention.query_rank", ours.query_rank, theirs.query_rank);
  differences->Size("latent_attention.plain_head_size", ours.plain_head_size, theirs.plain_head_size);
  differences->Size("latent_attention.rotary_head_size", ours.rotary_head_size, theirs.rotary_head_size);
  differences->Size("latent_attention.value_head_size", ours.value_head_size, theirs.value_head_size);
  differences->Flag("latent_attention.interleaved", ours.interleaved, theirs.interleaved);
}

void Compare(const ExpertsConfig& ours, const ExpertsConfig& theirs, Differences* differences) {
  differences->Size("experts.count", ours.count, theirs.count);
  if (ours.count == 0 || theirs.count == 0) return;
  differences->Size("experts.per_token", ours.per_token, theirs.per_token);
  differences->Size("experts.intermediate_size", ours.intermediate_size, theirs.intermediate_size);
  differences->Flag("experts.normalized", ours.normalized, theirs.normalized);
  differences->Size("experts.dense_layers", ours.dense_layers, theirs.dense_layers);
  differences->Text("experts.scores", ours.sigmoid ? "sigmoid" : "softmax",
                    theirs.sigmoid ? "sigmoid" : "softmax");
  differences->Flag("experts.selection_bias", ours.selection_bias, theirs.selection_bias);
  differences->Size("experts.groups", ours.groups, theirs.groups);
  differences->Size("experts.groups_per_token", ours.groups_per_token, theirs.groups_per_token);
  const auto chosen_by = [](const ExpertsConfig& of) { return of.groups_by_best ? "best" : "two_best"; };
  if (ours.groups_per_token < ours.groups)
    differences->Text("experts.group_scores", chosen_by(ours), chosen_by(theirs));
  differences->Number("experts.weight_scale", ours.weight_scale, theirs.weight_scale);
  differences->Size("experts.shared_intermediate_size", ours.shared_intermediate_size,
                    theirs.shared_intermediate_size);
}

void Compare(const LlamaConfig& ours, const LlamaConfig& theirs, Differences* differences) {
  differences->Size("vocab_size", ours.vocab_size, theirs.vocab_size);
  differences->Size("hidden_size", ours.hidden_size, theirs.hidden_size);
  differences->Size("intermediate_size", ours.intermediate_size, theirs.intermediate_size);
  differences->Size("layers", ours.layers, theirs.layers);
  differences->Size("heads", ours.heads, theirs.heads);
  differences->Size("kv_heads", ours.kv_heads, theirs.kv_heads);
  differences->Size("head_size", ours.head_size, theirs.head_size);
  differences->Number("rope_theta", ours.rope_theta, theirs.rope_theta);
  Compare(ours.rope_scaling, theirs.rope_scaling, differences);
  differences->Number("norm_epsilon", ours.norm_epsilon, theirs.norm_epsilon);
  differences->Flag("tied_embeddings", ours.tied_embeddings, theirs.tied_embeddings);
  differences->Flag("qk_norm", ours.qk_norm, theirs.qk_norm);
  differences->Flag("attention_bias", ours.attention_bias, theirs.attention_bias);
  Compare(ours.experts, theirs.experts, differences);
  Compare(ours.latent, theirs.latent, differences);
}

void Compare(const Gpt2Config& ours, const Gpt2Config& theirs, Differences* differences) {
  differences->Size("vocab_size", ours.vocab_size, theirs.vocab_size);
  differences->Size("hidden_size", ours.hidden_size, theirs.hidden_size);
  differences->Size("intermediate_size", ours.intermediate_size, theirs.intermediate_size);
  differences->Size("layers", ours.layers, theirs.layers);
  differences->Size("heads", ours.heads, theirs.heads);
  differences->Size("positions", ours.positions, theirs.positions);
  differences->Number("norm_epsilon", ours.norm_epsilon, theirs.norm_epsilon);
  // Defaults of v1::Gpt2.
  differences->Flag("untied_embeddings", !ours.tied_embeddings, !theirs.tied_embeddings);
}

void Compare(const PluginConfig& ours, const PluginConfig& theirs, Differences* differences) {
  differences->Text("plugin.args", ours.args, theirs.args);
}

// Another export of the same model has another digest, and its checkpoints fit; names and shapes decide.
void Compare(const PackageConfig& /*ours*/, const PackageConfig& /*theirs*/, Differences* /*differences*/) {}

const char* FamilyOf(const ModelConfig& model) {
  constexpr const char* kNames[] = {"llama", "gpt2", "plugin", "package"};
  return kNames[model.index()];
}

}  // namespace

std::vector<std::string> ModelDifferences(const ModelConfig& ours, const ModelConfig& theirs,
                                          absl::string_view here) {
  Differences differences(here);
  if (ours.index() != theirs.index()) {
    differences.Text("model", FamilyOf(ours), FamilyOf(theirs));
  } else {
    std::visit(
        [&](const auto& own) { Compare(own, std::get<std::decay_t<decltype(own)>>(theirs), &differences); },
        ours);
  }
  return differences.Take();
}

}  // namespace fsdpd
