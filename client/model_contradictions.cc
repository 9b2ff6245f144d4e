#include "client/model_contradictions.h"

#include <absl/strings/str_cat.h>

#include <variant>

namespace fsdpd {
namespace {

class Fields {
 public:
  template <typename Value>
  void Compare(const char* field, const Value& checkpoint, const Value& told) {
    if (checkpoint == told) return;
    found_.push_back(
        absl::StrCat(field, " is ", TextOf(told), " there, and ", TextOf(checkpoint), " in the checkpoint"));
  }

  std::vector<std::string> Take() { return std::move(found_); }

 private:
  static std::string TextOf(bool flag) { return flag ? "true" : "false"; }
  static std::string TextOf(int64_t size) { return absl::StrCat(size); }
  static std::string TextOf(double number) { return absl::StrCat(number); }
  static std::string TextOf(const std::string& text) { return text; }

  std::vector<std::string> found_;
};

void Compare(const LlamaConfig& checkpoint, const LlamaConfig& told, Fields* fields) {
  const auto field = [&](const char* name, auto LlamaConfig::*member) {
    fields->Compare(name, checkpoint.*member, told.*member);
  };
  field("vocab_size", &LlamaConfig::vocab_size);
  field("hidden_size", &LlamaConfig::hidden_size);
  field("intermediate_size", &LlamaConfig::intermediate_size);
  field("layers", &LlamaConfig::layers);
  field("heads", &LlamaConfig::heads);
  field("kv_heads", &LlamaConfig::kv_heads);
  field("head_size", &LlamaConfig::head_size);
  field("rope_theta", &LlamaConfig::rope_theta);
  field("norm_epsilon", &LlamaConfig::norm_epsilon);
  field("tied_embeddings", &LlamaConfig::tied_embeddings);
  field("qk_norm", &LlamaConfig::qk_norm);
  field("attention_bias", &LlamaConfig::attention_bias);
  const RopeScaling &a = checkpoint.rope_scaling, &b = told.rope_scaling;
  fields->Compare("rope_scaling.factor", a.factor, b.factor);
  if (a.factor == 1 || b.factor == 1) return;  // Of none the rest says nothing.
  fields->Compare("rope_scaling.low_freq_factor", a.low_freq_factor, b.low_freq_factor);
  fields->Compare("rope_scaling.high_freq_factor", a.high_freq_factor, b.high_freq_factor);
  fields->Compare("rope_scaling.original_positions", a.original_positions, b.original_positions);
}

void Compare(const Gpt2Config& checkpoint, const Gpt2Config& told, Fields* fields) {
  const auto field = [&](const char* name, auto Gpt2Config::*member) {
    fields->Compare(name, checkpoint.*member, told.*member);
  };
  field("vocab_size", &Gpt2Config::vocab_size);
  field("hidden_size", &Gpt2Config::hidden_size);
  field("intermediate_size", &Gpt2Config::intermediate_size);
  field("layers", &Gpt2Config::layers);
  field("heads", &Gpt2Config::heads);
  field("positions", &Gpt2Config::positions);
  field("norm_epsilon", &Gpt2Config::norm_epsilon);
  field("tied_embeddings", &Gpt2Config::tied_embeddings);
}

std::string FamilyOf(const ModelConfig& model) {
  return std::holds_alternative<LlamaConfig>(model)  ? "llama"
         : std::holds_alternative<Gpt2Config>(model) ? "gpt2"
                                                     : "a plug-in's";
}

}  // namespace

std::vector<std::string> Contradictions(const ModelConfig& checkpoint, const ModelConfig& told) {
  Fields fields;
  fields.Compare("the family", FamilyOf(checkpoint), FamilyOf(told));
  if (checkpoint.index() != told.index()) return fields.Take();
  if (const auto* llama = std::get_if<LlamaConfig>(&checkpoint)) {
    Compare(*llama, std::get<LlamaConfig>(told), &fields);
  } else if (const auto* gpt2 = std::get_if<Gpt2Config>(&checkpoint)) {
    Compare(*gpt2, std::get<Gpt2Config>(told), &fields);
  }
  return fields.Take();
}

}  // namespace fsdpd
