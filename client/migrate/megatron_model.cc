#include "client/migrate/megatron_model.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "client/migrate/megatron_experts.h"

namespace fsdpd {
namespace {

constexpr int64_t kGpt2Vocabulary = 50257;
constexpr double kLatentNormEpsilon = 1e-6;

// Megatron pads the embedding to a multiple of make_vocab_size_divisible_by times the tensor-parallel
// degree. The added rows are parameters, so the job has them too.
int64_t PadVocabulary(Settings& s, int64_t size) {
  const int64_t multiple = SpecConversion::Times(s.Integer("make_vocab_size_divisible_by", 128),
                                                 s.Integer("tensor_model_parallel_size", 1));
  const bool pads = s.Flag("should_pad_vocab", true) && s.Flag("pad_vocab_size", true);
  if (!pads || multiple <= 0 || size % multiple == 0) return size;
  return SpecConversion::Times(size / multiple + 1, multiple);
}

int64_t ChooseVocabulary(SpecConversion& c, int64_t default_size) {
  Settings& s = c.settings;
  if (const auto padded = s.Integer("padded_vocab_size")) {
    s.Find("vocab_size");
    return *padded;
  }
  // Megatron Bridge has a vocabulary size of the tokenizer too. It applies if use_tokenizer_vocab_size is
  // set, or if the model has no size.
  const std::optional<int64_t> model = s.Integer("vocab_size");
  const std::optional<int64_t> tokenizer = s.Integer("tokenizer_vocab_size");
  const bool by_tokenizer = s.Flag("tokenizer_use_tokenizer_vocab_size");
  std::optional<int64_t> size = by_tokenizer && tokenizer.has_value() ? tokenizer : model;
  if (!size.has_value()) size = tokenizer;
  if (!size.has_value() && default_size != 0) size = default_size;
  if (size.has_value()) return PadVocabulary(s, *size);
  if (s.Find("vocab_size") == nullptr) {
    c.Report("required", "vocab_size",
             {"is not set: Megatron takes it from the tokenizer, which migrate does not read",
              "add --vocab-size N"});
  }
  return 0;
}

// Number of key/value heads; 0 means one per query head. On a command line Megatron ignores
// --num-query-groups without --group-query-attention; a run_config.yaml has the defaults of Megatron
// Bridge's classes.
int64_t ReadQueryGroups(SpecConversion& c) {
  Settings& s = c.settings;
  const std::optional<int64_t> groups = s.Integer("num_query_groups");
  const Setting* written = s.Find("num_query_groups");
  const bool is_flag = written != nullptr && absl::StartsWith(written->written, "--");
  if (s.Flag("group_query_attention", !is_flag))
    return groups.value_or(s.Flag("group_query_attention") ? 1 : 0);
  if (groups.value_or(0) > 1) c.Adjust("query_groups", "num_query_groups", *groups, "heads");
  return 0;
}

// The factor must be explicit: its default is 1 in older versions of Megatron's parser, and 40 in versions
// that generate the parser from classes.
void ConvertYarn(SpecConversion& c, v1::Llama* llama) {
  if (c.settings.Find("rotary_scaling_factor") == nullptr) {
    c.Report("required", "rotary_scaling_factor",
             {"is not set, and its default depends on the version of Megatron",
              "add --rotary-scaling-factor (1: no scaling)"});
  }
  const double factor = c.settings.Real("rotary_scaling_factor", 1);
  if (factor == 1) return;
  llama->mutable_rope_scaling()->set_factor(factor);
  c.Fill("model.llama.rope_scaling");
  c.Fill("model.llama.rope_scaling.yarn");
}

// Megatron rotates adjacent pairs of the rotary part, as DeepSeek does. This is a spec's default.
void ConvertLatentAttention(SpecConversion& c, v1::Llama* llama) {
  c.Fill("model.llama.latent_attention");
  if (!c.settings.Flag("qk_norm")) c.Report("latent_norms", "qk_norm");
  const double epsilon = llama->norm_epsilon();
  if (epsilon != kLatentNormEpsilon)
    c.Adjust("latent_norm_epsilon", "norm_epsilon", epsilon, kLatentNormEpsilon);
  if (c.settings.Lower("rope_type", "yarn") == "yarn") ConvertYarn(c, llama);
}

void ConvertLlama(SpecConversion& c) {
  Settings& s = c.settings;
  v1::Llama* llama = c.job.mutable_model()->mutable_llama();
  llama->set_vocab_size(ChooseVocabulary(c, 0));
  c.Fill("model.llama");
  // Megatron's default for gated feed-forwards: 8/3 of the hidden size, rounded down to a multiple of 64.
  llama->set_intermediate_size(s.Integer("ffn_hidden_size", llama->hidden_size() * 4 * 2 / 3 / 64 * 64));
  const bool latent = s.Flag("multi_latent_attention");
  const int64_t groups = ReadQueryGroups(c);
  const std::optional<int64_t> head = s.Integer("kv_channels");
  if (latent) {
    ConvertLatentAttention(c, llama);  // Its heads have sizes of their own.
  } else {
    if (groups > 0) llama->set_kv_heads(groups);
    if (head.has_value()) llama->set_head_size(*head);
    llama->set_qk_norm(s.Flag("qk_norm"));
  }
  if (s.Flag("add_bias_linear", true)) c.Report("linear_biases", "add_bias_linear");
  if (s.Flag("rope_scaling")) llama->mutable_rope_scaling()->set_factor(s.Real("rope_scaling_factor", 8));
  if (s.Real("rotary_percent", 1) != 1) c.Report("rotary_percent", "rotary_percent");
  ConvertExperts(&c, llama);
}

void ConvertGpt2(SpecConversion& c) {
  Settings& s = c.settings;
  v1::Gpt2* gpt2 = c.job.mutable_model()->mutable_gpt2();
  gpt2->set_vocab_size(ChooseVocabulary(c, kGpt2Vocabulary));
  c.Fill("model.gpt2");
  gpt2->set_untied_embeddings(!s.Flag("share_embeddings_and_output_weights", true));
  const auto refuse = [&](const char* setting, const char* reason) {
    c.Report("model_family", setting, {absl::StrCat("GPT-2's family has ", reason), "leave it out"});
  };
  if (!s.Flag("add_bias_linear", true)) refuse("add_bias_linear", "biases in its linear layers");
  if (s.Flag("qk_norm")) refuse("qk_norm", "no norms of queries and keys");
  if (s.Integer("num_experts", 0) > 0) refuse("num_experts", "no experts");
  if (s.Flag("multi_latent_attention")) refuse("multi_latent_attention", "no latent attention");
  const int64_t heads = gpt2->heads(), groups = ReadQueryGroups(c);
  if (groups > 0 && groups != heads) refuse("num_query_groups", "a key and a value head for each query head");
  const std::optional<int64_t> head = s.Integer("kv_channels");
  if (head.has_value() && heads > 0 && SpecConversion::Times(*head, heads) != gpt2->hidden_size())
    refuse("kv_channels", "heads of hidden size / heads");
}

// Megatron Bridge has the activation function in addition to the flag for the gate.
void CheckActivation(SpecConversion& c, bool gated) {
  const std::string function = c.settings.Lower("activation_func", "");
  const char* supported = gated ? "silu" : "gelu";
  if (!function.empty() && (!absl::StrContains(function, supported) || absl::StrContains(function, "quick")))
    c.Report("activation", "activation_func", {function, gated ? "Llama" : "GPT-2", supported});
  const bool openai = c.settings.Flag("openai_gelu");
  const bool fused = c.settings.Flag("bias_gelu_fusion", c.settings.Flag("bias_activation_fusion", true));
  if (!gated && !openai && !fused) c.Adjust("gelu", "bias_gelu_fusion", "erf", "tanh");
}

// True if no setting that decides the family is missing from the text or hidden in a shell variable.
bool FamilyIsKnown(Settings& s) {
  for (const char* name : {"normalization", "position_embedding_type", "swiglu"}) {
    const Setting* setting = s.Find(name);
    if (setting == nullptr ? s.incomplete() : setting->open) return false;
  }
  return true;
}

}  // namespace

void ConvertModel(SpecConversion* conversion) {
  SpecConversion& c = *conversion;
  Settings& s = c.settings;
  const std::string norm = s.Lower("normalization", "layernorm");
  const bool rotary = s.Flag("use_rotary_position_embeddings");
  const std::string positions = s.Lower("position_embedding_type", rotary ? "rope" : "learned_absolute");
  const bool gated = s.Flag("swiglu");
  const bool llama = gated && norm == "rmsnorm" && positions == "rope";
  const bool gpt2 = !gated && norm == "layernorm" && positions == "learned_absolute";
  if (!llama && !gpt2 && FamilyIsKnown(s)) {
    c.Report("model_family", gated ? "swiglu" : "normalization",
             {absl::StrCat("a model with ", norm, ", ", positions, " positions and ",
                           gated ? "a gated" : "a plain", " feed-forward is not supported"),
              "use Llama (rmsnorm, rope, swiglu) or GPT-2 (layernorm, learned_absolute, gelu)"});
  }
  gated ? ConvertLlama(c) : ConvertGpt2(c);  // Even for an unknown family, to report errors in the sizes too.
  CheckActivation(c, gated);
  // Megatron can store norm weights as w - 1. They have no weight decay, so training is the same.
  if (s.Flag("layernorm_zero_centered_gamma"))
    c.Adjust("norms_about_one", "layernorm_zero_centered_gamma", "0 at first", "1 at first");
  for (const char* name : {"attention_dropout", "hidden_dropout"}) {
    // Megatron's default is 0.1, so a run without the setting warns too.
    if (const double rate = s.Real(name, 0.1); rate != 0) c.Report("dropout", name, {rate});
  }
  s.Find("max_position_embeddings");
  c.Fill("train.initial");
  // Megatron scales the initial output projections of layers by depth in every model family.
  c.job.mutable_train()->mutable_initial()->set_scale_outputs(true);
}

}  // namespace fsdpd
