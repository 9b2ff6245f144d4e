#include "fsdp/plan/spec/model_difference.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <type_traits>

namespace fsdpd {
namespace {

class Differences {
 public:
  void Size(const char* field, int64_t job, int64_t theirs) {
    if (job != theirs) Add(field, absl::StrCat(job), absl::StrCat(theirs));
  }
  void Number(const char* field, double job, double theirs) {
    if (job != theirs) Add(field, absl::StrFormat("%.9g", job), absl::StrFormat("%.9g", theirs));
  }
  void Flag(const char* field, bool job, bool theirs) {
    if (job != theirs) Add(field, job ? "true" : "false", theirs ? "true" : "false");
  }
  void Text(const char* field, const std::string& job, const std::string& theirs) {
    if (job != theirs) Add(field, absl::StrCat("'", job, "'"), absl::StrCat("'", theirs, "'"));
  }

  std::vector<std::string> Take() { return std::move(lines_); }

 private:
  void Add(const char* field, const std::string& job, const std::string& theirs) {
    lines_.push_back(absl::StrCat(field, ": ", theirs, " there, and ", job, " in this job"));
  }

  std::vector<std::string> lines_;
};

void Compare(const RopeScaling& job, const RopeScaling& theirs, Differences* differences) {
  differences->Number("rope_scaling.factor", job.factor, theirs.factor);
  if (job.factor == 1 || theirs.factor == 1) return;  // The rest says how, where there is one.
  differences->Number("rope_scaling.low_freq_factor", job.low_freq_factor, theirs.low_freq_factor);
  differences->Number("rope_scaling.high_freq_factor", job.high_freq_factor, theirs.high_freq_factor);
  differences->Size("rope_scaling.original_positions", job.original_positions, theirs.original_positions);
}

void Compare(const LlamaConfig& job, const LlamaConfig& theirs, Differences* differences) {
  differences->Size("vocab_size", job.vocab_size, theirs.vocab_size);
  differences->Size("hidden_size", job.hidden_size, theirs.hidden_size);
  differences->Size("intermediate_size", job.intermediate_size, theirs.intermediate_size);
  differences->Size("layers", job.layers, theirs.layers);
  differences->Size("heads", job.heads, theirs.heads);
  differences->Size("kv_heads", job.kv_heads, theirs.kv_heads);
  differences->Size("head_size", job.head_size, theirs.head_size);
  differences->Number("rope_theta", job.rope_theta, theirs.rope_theta);
  Compare(job.rope_scaling, theirs.rope_scaling, differences);
  differences->Number("norm_epsilon", job.norm_epsilon, theirs.norm_epsilon);
  differences->Flag("tied_embeddings", job.tied_embeddings, theirs.tied_embeddings);
  differences->Flag("qk_norm", job.qk_norm, theirs.qk_norm);
  differences->Flag("attention_bias", job.attention_bias, theirs.attention_bias);
}

void Compare(const Gpt2Config& job, const Gpt2Config& theirs, Differences* differences) {
  differences->Size("vocab_size", job.vocab_size, theirs.vocab_size);
  differences->Size("hidden_size", job.hidden_size, theirs.hidden_size);
  differences->Size("intermediate_size", job.intermediate_size, theirs.intermediate_size);
  differences->Size("layers", job.layers, theirs.layers);
  differences->Size("heads", job.heads, theirs.heads);
  differences->Size("positions", job.positions, theirs.positions);
  differences->Number("norm_epsilon", job.norm_epsilon, theirs.norm_epsilon);
  // As v1::Gpt2 has it.
  differences->Flag("untied_embeddings", !job.tied_embeddings, !theirs.tied_embeddings);
}

void Compare(const PluginConfig& job, const PluginConfig& theirs, Differences* differences) {
  differences->Text("plugin.args", job.args, theirs.args);
}

const char* FamilyOf(const ModelConfig& model) {
  if (std::holds_alternative<LlamaConfig>(model)) return "llama";
  return std::holds_alternative<Gpt2Config>(model) ? "gpt2" : "plugin";
}

}  // namespace

std::vector<std::string> ModelDifferences(const ModelConfig& job, const ModelConfig& theirs) {
  Differences differences;
  if (job.index() != theirs.index()) {
    differences.Text("model", FamilyOf(job), FamilyOf(theirs));
  } else {
    std::visit(
        [&](const auto& ours) {
          Compare(ours, std::get<std::decay_t<decltype(ours)>>(theirs), &differences);
        },
        job);
  }
  return differences.Take();
}

}  // namespace fsdpd
