#include "client/migrate/megatron_model.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "client/migrate/megatron_experts.h"

namespace fsdpd {
namespace {

constexpr int64_t kGpt2Vocabulary = 50257;
constexpr double kDefaultDeviation = 0.02;  // The default of Megatron and of a spec.
constexpr double kDefaultEpsilon = 1e-5;    // Megatron's default.
constexpr double kLatentNormEpsilon = 1e-6;

// The source decides the defaults: command lines have those of Megatron-LM's parser, a run_config.yaml those
// of Megatron Bridge's classes, and some of them differ.
bool IsFlag(const Setting* setting) { return setting != nullptr && absl::StartsWith(setting->written, "--"); }

class ModelConverter {
 public:
  explicit ModelConverter(SpecConversion* conversion) : c_(*conversion), s_(conversion->settings) {}

  void Run() {
    const std::string norm = s_.Lower("normalization").value_or("layernorm");
    const bool rotary = s_.Flag("use_rotary_position_embeddings");
    const std::string positions =
        s_.Lower("position_embedding_type").value_or(rotary ? "rope" : "learned_absolute");
    const bool gated = s_.Flag("swiglu");
    const bool llama = gated && norm == "rmsnorm" && positions == "rope";
    const bool gpt2 = !gated && norm == "layernorm" && positions == "learned_absolute";
    if (!llama && !gpt2 && FamilyIsKnown()) {
      c_.Error("model_family", gated ? "swiglu" : "normalization",
               absl::StrCat("a model with ", norm, ", ", positions, " positions and ",
                            gated ? "a gated" : "a plain", " feed-forward is not supported"),
               "use Llama (rmsnorm, rope, swiglu) or GPT-2 (layernorm, learned_absolute, gelu)");
    }
    gated ? ConvertLlama() : ConvertGpt2();  // Even for an unknown family, to report errors in the sizes too.
    CheckActivation(gated);
    CheckCenteredNorms();
    CheckDropout();
    ConvertInitialValues();
  }

 private:
  // True if no setting that decides the family is missing from the text or hidden in a shell variable.
  bool FamilyIsKnown() {
    for (const char* name : {"normalization", "position_embedding_type", "swiglu"}) {
      const Setting* setting = s_.Find(name);
      if (setting == nullptr ? s_.incomplete() : setting->open) return false;
    }
    return true;
  }

  void ConvertLlama() {
    v1::Llama* llama = c_.job.mutable_model()->mutable_llama();
    llama->set_vocab_size(ChooseVocabulary(0));
    llama->set_hidden_size(c_.Required("hidden_size"));
    llama->set_layers(c_.Required("num_layers"));
    llama->set_heads(c_.Required("num_attention_heads"));
    // Megatron's default for gated feed-forwards: 8/3 of the hidden size, rounded down to a multiple of 64.
    const int64_t default_size_of_gated = llama->hidden_size() * 4 * 2 / 3 / 64 * 64;
    llama->set_intermediate_size(s_.Integer("ffn_hidden_size").value_or(default_size_of_gated));
    const bool latent = s_.Flag("multi_latent_attention");
    const int64_t groups = ReadQueryGroups();
    const std::optional<int64_t> head = s_.Integer("kv_channels");
    if (latent) {
      ConvertLatentAttention(llama);  // Its heads have sizes of their own.
    } else {
      if (groups > 0) llama->set_kv_heads(groups);
      if (head.has_value()) llama->set_head_size(*head);
      llama->set_qk_norm(s_.Flag("qk_norm"));
    }
    if (const auto longest = s_.Integer("max_position_embeddings")) llama->set_positions(*longest);
    llama->set_rope_theta(s_.Real("rotary_base").value_or(10000));
    llama->set_norm_epsilon(s_.Real("norm_epsilon").value_or(kDefaultEpsilon));
    llama->set_tied_embeddings(s_.Flag("share_embeddings_and_output_weights", true));
    llama->set_attention_bias(s_.Flag("add_qkv_bias"));
    if (s_.Flag("add_bias_linear", true)) {
      c_.Error("linear_biases", "add_bias_linear",
               "biases in linear layers are not supported in the Llama family",
               "add --disable-bias-linear (add_bias_linear: false)");
    }
    if (s_.Flag("rope_scaling")) {
      llama->mutable_rope_scaling()->set_factor(s_.Real("rope_scaling_factor").value_or(8));
    }
    if (s_.Real("rotary_percent").value_or(1) != 1) {
      c_.Error("rotary_percent", "rotary_percent", "partial rotary embeddings are not supported",
               "only rotary_percent 1 is supported");
    }
    ConvertExperts(&c_, llama);
  }

  // Megatron rotates adjacent pairs of the rotary part, as DeepSeek does. This is a spec's default.
  void ConvertLatentAttention(v1::Llama* llama) {
    v1::Llama::LatentAttention* latent = llama->mutable_latent_attention();
    latent->set_rank(c_.Required("kv_lora_rank"));
    if (const auto rank = s_.Integer("q_lora_rank")) latent->set_query_rank(*rank);
    latent->set_plain_head_size(s_.Integer("qk_head_dim").value_or(128));
    latent->set_rotary_head_size(s_.Integer("qk_pos_emb_head_dim").value_or(64));
    latent->set_value_head_size(s_.Integer("v_head_dim").value_or(128));
    if (!s_.Flag("qk_norm")) {
      c_.Error("latent_norms", "qk_norm", "latent attention without norms of latents is not supported",
               "add --qk-layernorm (qk_layernorm: true)");
    }
    const double epsilon = s_.Real("norm_epsilon").value_or(kDefaultEpsilon);
    if (epsilon != kLatentNormEpsilon) {
      c_.Adjust("latent_norm_epsilon", "norm_epsilon", "norms of latents have DeepSeek's epsilon",
                absl::StrCat(epsilon), absl::StrCat(kLatentNormEpsilon));
    }
    if (s_.Lower("rope_type").value_or("yarn") == "yarn") ConvertYarn(llama);
  }

  // The factor must be explicit: its default is 1 in older versions of Megatron's parser, and 40 in versions
  // that generate the parser from classes.
  void ConvertYarn(v1::Llama* llama) {
    if (s_.Find("rotary_scaling_factor") == nullptr) {
      c_.Error("required", "rotary_scaling_factor",
               "is not set, and its default depends on the version of Megatron",
               "add --rotary-scaling-factor (1: no scaling)");
    }
    const double factor = s_.Real("rotary_scaling_factor").value_or(1);
    if (factor == 1) return;
    v1::Llama::RopeScaling* scaling = llama->mutable_rope_scaling();
    scaling->set_factor(factor);
    scaling->set_low_freq_factor(s_.Real("beta_slow").value_or(1));
    scaling->set_high_freq_factor(s_.Real("beta_fast").value_or(32));
    scaling->set_original_positions(s_.Integer("original_max_position_embeddings").value_or(4096));
    scaling->mutable_yarn()->set_mscale(s_.Real("mscale").value_or(1));
    scaling->mutable_yarn()->set_mscale_all_dim(s_.Real("mscale_all_dim").value_or(0));
  }

  void ConvertGpt2() {
    v1::Gpt2* gpt2 = c_.job.mutable_model()->mutable_gpt2();
    gpt2->set_vocab_size(ChooseVocabulary(kGpt2Vocabulary));
    gpt2->set_hidden_size(c_.Required("hidden_size"));
    gpt2->set_layers(c_.Required("num_layers"));
    gpt2->set_heads(c_.Required("num_attention_heads"));
    gpt2->set_positions(c_.Required("max_position_embeddings"));
    if (const auto size = s_.Integer("ffn_hidden_size")) gpt2->set_intermediate_size(*size);
    gpt2->set_norm_epsilon(s_.Real("norm_epsilon").value_or(kDefaultEpsilon));
    gpt2->set_untied_embeddings(!s_.Flag("share_embeddings_and_output_weights", true));
    const auto refuse = [&](const char* setting, const char* reason) {
      c_.Error("model_family", setting, absl::StrCat("GPT-2's family has ", reason), "leave it out");
    };
    if (!s_.Flag("add_bias_linear", true)) refuse("add_bias_linear", "biases in its linear layers");
    if (s_.Flag("qk_norm")) refuse("qk_norm", "no norms of queries and keys");
    if (s_.Integer("num_experts").value_or(0) > 0) refuse("num_experts", "no experts");
    if (s_.Flag("multi_latent_attention")) refuse("multi_latent_attention", "no latent attention");
    const int64_t heads = gpt2->heads(), groups = ReadQueryGroups();
    if (groups > 0 && groups != heads)
      refuse("num_query_groups", "a key and a value head for each query head");
    const std::optional<int64_t> head = s_.Integer("kv_channels");
    if (head.has_value() && heads > 0 && SpecConversion::Times(*head, heads) != gpt2->hidden_size()) {
      refuse("kv_channels", "heads of hidden size / heads");
    }
  }

  // Number of key/value heads; 0 means one per query head. On a command line Megatron ignores
  // --num-query-groups without --group-query-attention.
  int64_t ReadQueryGroups() {
    const std::optional<int64_t> groups = s_.Integer("num_query_groups");
    const Setting* written = s_.Find("num_query_groups");
    if (s_.Flag("group_query_attention", !IsFlag(written))) {
      if (groups.has_value()) return *groups;
      return s_.Flag("group_query_attention") ? 1 : 0;
    }
    if (groups.has_value() && *groups > 1) {
      c_.Adjust("query_groups", "num_query_groups", "Megatron ignores it without --group-query-attention",
                absl::StrCat(*groups), "heads");
    }
    return 0;
  }

  // Megatron Bridge has the activation function in addition to the flag for the gate.
  void CheckActivation(bool gated) {
    const std::string function = s_.Lower("activation_func").value_or("");
    const bool supported = function.empty() || absl::StrContains(function, gated ? "silu" : "gelu");
    if (!supported || absl::StrContains(function, "quick")) {
      c_.Error("activation", "activation_func", absl::StrCat("'", function, "' is not supported"),
               gated ? "the Llama family has silu" : "the GPT-2 family has gelu");
    }
    const bool openai = s_.Flag("openai_gelu");
    const bool fused = s_.Flag("bias_gelu_fusion", s_.Flag("bias_activation_fusion", true));
    if (!gated && !openai && !fused) {
      c_.Adjust("gelu", "bias_gelu_fusion", "only the tanh approximation is supported", "erf", "tanh");
    }
  }

  // Megatron can store norm weights as w - 1. Norm weights have no weight decay, so training is the same.
  void CheckCenteredNorms() {
    if (!s_.Flag("layernorm_zero_centered_gamma")) return;
    c_.Adjust("norms_about_one", "layernorm_zero_centered_gamma",
              "norm weights are not stored minus 1, which is equal up to rounding", "0 at first",
              "1 at first");
  }

  // Megatron's default dropout is 0.1, so a run without the setting warns too.
  void CheckDropout() {
    for (const char* name : {"attention_dropout", "hidden_dropout"}) {
      const double rate = s_.Real(name).value_or(0.1);
      if (rate == 0) continue;
      c_.AddViolation("dropout", ViolationLevel::kWarn, name,
                      absl::StrCat("dropout is not supported (got ", rate, ")"), "set it to 0.0 to confirm");
    }
    s_.Find("max_position_embeddings");
  }

  // Megatron scales the initial output projections of layers by depth in every model family.
  void ConvertInitialValues() {
    v1::InitialValues* initial = c_.job.mutable_train()->mutable_initial();
    const double deviation = s_.Real("init_method_std").value_or(kDefaultDeviation);
    initial->set_std(deviation);
    initial->set_scale_outputs(true);
    const std::optional<double> embedding = s_.Real("embedding_init_method_std");
    if (!embedding.has_value()) return;
    initial->set_embedding_std(*embedding);
  }

  int64_t ChooseVocabulary(int64_t default_size) {
    if (const auto padded = s_.Integer("padded_vocab_size")) {
      s_.Find("vocab_size");
      return *padded;
    }
    // Megatron Bridge has a vocabulary size of the tokenizer too. It applies if use_tokenizer_vocab_size is
    // set, or if the model has no size.
    const std::optional<int64_t> model = s_.Integer("vocab_size");
    const std::optional<int64_t> tokenizer = s_.Integer("tokenizer_vocab_size");
    const bool by_tokenizer = s_.Flag("tokenizer_use_tokenizer_vocab_size");
    std::optional<int64_t> size = by_tokenizer && tokenizer.has_value() ? tokenizer : model;
    if (!size.has_value()) size = tokenizer;
    if (!size.has_value() && default_size != 0) size = default_size;
    if (size.has_value()) return PadVocabulary(*size);
    if (s_.Find("vocab_size") == nullptr) {
      c_.Error("required", "vocab_size",
               "is not set: Megatron takes it from the tokenizer, which migrate does not read",
               "add --vocab-size N");
    }
    return 0;
  }

  // Megatron pads the embedding to a multiple of make_vocab_size_divisible_by times the tensor-parallel
  // degree. The added rows are parameters, so the job has them too.
  int64_t PadVocabulary(int64_t size) {
    const int64_t multiple = SpecConversion::Times(s_.Integer("make_vocab_size_divisible_by").value_or(128),
                                                   s_.Integer("tensor_model_parallel_size").value_or(1));
    const bool pads = s_.Flag("should_pad_vocab", true) && s_.Flag("pad_vocab_size", true);
    if (!pads || multiple <= 0 || size % multiple == 0) return size;
    return SpecConversion::Times(size / multiple + 1, multiple);
  }

  SpecConversion& c_;
  Settings& s_;
};

}  // namespace

void ConvertModel(SpecConversion* conversion) { ModelConverter(conversion).Run(); }

}  // namespace fsdpd
