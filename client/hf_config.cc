#include "client/hf_config.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <cmath>
#include <set>

#include "client/yaml_tree.h"

namespace fsdpd {
namespace {

class HfReader {
 public:
  explicit HfReader(const TextNode& root) : root_(root) {}

  SpecFaults Read(v1::Llama* llama) {
    if (!CheckFamily()) return faults_;
    CheckKeysAreUnique();
    llama->set_vocab_size(Integer("vocab_size", 0));
    llama->set_hidden_size(Integer("hidden_size", 0));
    llama->set_intermediate_size(Integer("intermediate_size", 0));
    llama->set_layers(Integer("num_hidden_layers", 0));
    llama->set_heads(Integer("num_attention_heads", 0));
    llama->set_kv_heads(Integer("num_key_value_heads", llama->heads()));
    llama->set_rope_theta(RopeTheta());
    llama->set_norm_epsilon(Number(root_, "rms_norm_eps", 1e-6));
    llama->set_tied_embeddings(Flag("tie_word_embeddings"));
    CheckWhatIsNotSupported(*llama);
    return faults_;
  }

 private:
  void Fault(const Place& place, std::string rule, std::string reason, std::string fix) {
    faults_.push_back({place,
                       {std::move(rule), FaultLevel::kError, "model.hf_config", std::move(reason),
                        std::move(fix), "", ""}});
  }
  void NotSupported(const TextNode& node, absl::string_view what) {
    Fault(node.key_place, "hf_not_supported", absl::StrCat(what, " is not supported yet"), "");
  }

  bool CheckFamily() {
    if (root_.kind != TextNode::Kind::kMap) {
      Fault(root_.place, "hf_no_config", "is not a config.json",
            "give the file that lies beside the weights");
      return false;
    }
    const TextNode* type = root_.Find("model_type");
    if (type == nullptr) {
      Fault(root_.place, "hf_no_config", "has no model_type", "give the file that lies beside the weights");
      return false;
    }
    if (type->text != "llama") {
      NotSupported(*type, absl::StrCat("model_type '", type->text.substr(0, 80), "' (only llama is)"));
      return false;
    }
    const TextNode* architectures = root_.Find("architectures");
    if (architectures == nullptr) return true;
    for (const TextNode& name : architectures->children) {
      if (name.text == "LlamaForCausalLM") return true;
    }
    NotSupported(*architectures, "an architecture other than LlamaForCausalLM");
    return false;
  }

  void CheckKeysAreUnique() {
    std::set<std::string> seen;
    for (const TextNode& child : root_.children) {
      if (seen.insert(child.key).second) continue;
      Fault(child.key_place, "duplicate_field", absl::StrCat(child.key, " is written twice"), "keep one");
    }
  }

  // Null when absent or null, which mean the same in these files.
  const TextNode* Present(const TextNode& parent, absl::string_view key) const {
    const TextNode* node = parent.Find(key);
    return node == nullptr || node->kind == TextNode::Kind::kNull ? nullptr : node;
  }

  // `otherwise` 0: the field is required.
  int64_t Integer(absl::string_view key, int64_t otherwise) {
    const TextNode* node = Present(root_, key);
    int64_t value = 0;
    if (node == nullptr) {
      if (otherwise == 0) Fault(root_.place, "hf_no_config", absl::StrCat("has no ", key), "");
      return otherwise;
    }
    if (absl::SimpleAtoi(node->text, &value) && value > 0) return value;
    Fault(node->place, "wrong_type", absl::StrCat(key, " '", node->text.substr(0, 80), "' is not a size"),
          "");
    return 0;
  }

  double Number(const TextNode& parent, absl::string_view key, double otherwise) {
    const TextNode* node = Present(parent, key);
    double value = 0;
    if (node == nullptr) return otherwise;
    if (absl::SimpleAtod(node->text, &value) && std::isfinite(value) && value > 0) return value;
    Fault(node->place, "wrong_type",
          absl::StrCat(key, " '", node->text.substr(0, 80), "' is not a number above 0"), "");
    return otherwise;
  }

  bool Flag(absl::string_view key) {
    const TextNode* node = Present(root_, key);
    if (node == nullptr || node->text == "false") return false;
    if (node->text != "true") {
      Fault(node->place, "wrong_type",
            absl::StrCat(key, " '", node->text.substr(0, 80), "' is not true or false"), "");
    }
    return node->text == "true";
  }

  // At the top in most files; newer ones group it with its kind under rope_parameters.
  double RopeTheta() {
    if (const TextNode* scaling = Present(root_, "rope_scaling")) NotSupported(*scaling, "rope_scaling");
    const TextNode* parameters = Present(root_, "rope_parameters");
    if (parameters == nullptr) return Number(root_, "rope_theta", 10000);
    const TextNode* type = Present(*parameters, "rope_type");
    if (type != nullptr && type->text != "default")
      NotSupported(*type, absl::StrCat("rope_type '", type->text, "'"));
    return Number(*parameters, "rope_theta", Number(root_, "rope_theta", 10000));
  }

  void CheckWhatIsNotSupported(const v1::Llama& llama) {
    for (const char* bias : {"attention_bias", "mlp_bias"}) {
      if (Flag(bias)) NotSupported(*root_.Find(bias), bias);
    }
    const TextNode* activation = Present(root_, "hidden_act");
    if (activation != nullptr && activation->text != "silu") {
      NotSupported(*activation,
                   absl::StrCat("hidden_act '", activation->text.substr(0, 80), "' (only silu is)"));
    }
    if (Present(root_, "head_dim") != nullptr && llama.heads() > 0 &&
        Integer("head_dim", 0) != llama.hidden_size() / llama.heads()) {
      NotSupported(*root_.Find("head_dim"), "a head_dim other than hidden_size / num_attention_heads");
    }
  }

  const TextNode& root_;
  SpecFaults faults_;
};

}  // namespace

SpecFaults ReadHfConfig(absl::string_view text, const std::string& file, v1::Llama* llama) {
  TextNode root;
  SpecFaults faults = ParseYaml(text, file, &root);
  for (SpecFault& fault : faults) fault.violation.field = "model.hf_config";
  if (!faults.empty()) return faults;
  return HfReader(root).Read(llama);
}

}  // namespace fsdpd
