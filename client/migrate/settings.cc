#include "client/migrate/settings.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <cmath>

#include "client/migrate/shell_words.h"
#include "client/yaml_tree.h"

namespace fsdpd {
namespace {

// Where the two forms, or older and newer versions, have different names for one thing.
const std::map<std::string, std::string>& Aliases() {
  static const auto* aliases = new std::map<std::string, std::string>{
      {"use_nccl_ub", "nccl_ub"},
      {"use_custom_fsdp", "use_megatron_fsdp"},
      {"layernorm_epsilon", "norm_epsilon"},
      {"sequence_length", "seq_length"},
      {"lr_wsd_decay_iters", "wsd_decay_iters"},
      {"gated_linear_unit", "swiglu"},
      {"qk_layernorm", "qk_norm"},
      {"grad_clip", "clip_grad"},
      {"use_rope_scaling", "rope_scaling"},
      {"fsdp_manual_registration", "manual_registration"},
  };
  return *aliases;
}

// Flags that say the opposite of the setting they are about.
const std::map<std::string, std::string>& Negations() {
  static const auto* negations = new std::map<std::string, std::string>{
      {"disable_bias_linear", "add_bias_linear"},
      {"untie_embeddings_and_output_weights", "share_embeddings_and_output_weights"},
  };
  return *negations;
}

bool IsFalse(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  return lower == "false" || lower == "0" || lower == "no" || lower == "off";
}

void AddNamed(Setting setting, Settings* settings) {
  const auto alias = Aliases().find(setting.name);
  if (alias != Aliases().end()) setting.name = alias->second;
  const auto negation = Negations().find(setting.name);
  if (negation != Negations().end()) {
    setting.name = negation->second;
    const bool set = setting.values.empty() || !IsFalse(setting.values.front());
    setting.values = {set ? "false" : "true"};
  }
  settings->Add(std::move(setting));
}

void AddTree(const TextNode& node, const std::string& path, Settings* settings) {
  for (const TextNode& child : node.children) {
    const std::string written = path.empty() ? child.key : absl::StrCat(path, ".", child.key);
    if (child.kind == TextNode::Kind::kMap) {
      AddTree(child, written, settings);
      continue;
    }
    if (child.kind == TextNode::Kind::kNull || absl::StartsWith(child.key, "_")) continue;
    Setting setting{child.key, written, {}, child.place, false};
    if (child.kind == TextNode::Kind::kScalar) setting.values = {child.text};
    for (const TextNode& item : child.children) setting.values.push_back(item.text);
    AddNamed(std::move(setting), settings);
  }
}

bool IsFlag(const std::string& word) { return absl::StartsWith(word, "--") && word.size() > 2; }

// NAME=value, in front of a command or after `export`.
bool IsAssignment(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  for (size_t i = 0; i < equals; ++i) {
    if (!absl::ascii_isalnum(word[i]) && word[i] != '_') return false;
  }
  return true;
}

Setting FlagOf(const ShellWord& word) {
  Setting setting;
  const size_t equals = word.text.find('=');
  setting.written = word.text.substr(0, equals);
  setting.name = absl::StrReplaceAll(setting.written.substr(2), {{"-", "_"}});
  setting.place = word.place;
  if (equals != std::string::npos) setting.values.push_back(word.text.substr(equals + 1));
  if (absl::StartsWith(setting.name, "no_") && setting.values.empty()) {
    setting.name = setting.name.substr(3);
    setting.values = {"false"};
  }
  return setting;
}

// What stands before the first flag is the command; an array's brackets are of the script around it.
void AddWords(const std::vector<ShellWord>& words, Settings* settings) {
  for (size_t i = 0; i < words.size();) {
    const std::string& text = words[i].text;
    if (!IsFlag(text)) {
      const size_t equals = text.find('=');
      if (IsAssignment(text)) {
        const std::string name = text.substr(0, equals);
        settings->AddVariable({name, name, {text.substr(equals + 1)}, words[i].place, false});
      }
      ++i;
      continue;
    }
    Setting setting = FlagOf(words[i++]);
    const bool complete = !setting.values.empty();
    while (!complete && i < words.size() && !IsFlag(words[i].text) && words[i].text != ")") {
      setting.values.push_back(words[i++].text);
    }
    AddNamed(std::move(setting), settings);
  }
}

bool LooksLikeArguments(const std::vector<ShellWord>& words) {
  for (const ShellWord& word : words) {
    if (IsFlag(word.text)) return true;
    if (!word.text.empty() && word.text.back() == ':') return false;
  }
  return false;
}

}  // namespace

Setting* Settings::Last(absl::string_view name) {
  for (auto it = all_.rbegin(); it != all_.rend(); ++it) {
    if (it->name == name) return &*it;
  }
  return nullptr;
}

const Setting* Settings::FindVariable(const std::string& name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : &found->second;
}

const Setting* Settings::Find(absl::string_view name) {
  const std::vector<const Setting*> all = FindAll(name);
  if (all.empty()) return nullptr;
  const Setting* last = all.back();
  return last->values.size() == 1 && last->values.front() == "None" ? nullptr : last;
}

std::vector<const Setting*> Settings::FindAll(absl::string_view name) {
  std::vector<const Setting*> found;
  for (Setting& setting : all_) {
    if (setting.name != name) continue;
    setting.used = true;
    found.push_back(&setting);
  }
  return found;
}

std::optional<std::string> Settings::Text(absl::string_view name) {
  const Setting* setting = Find(name);
  if (setting == nullptr || setting->values.empty()) return std::nullopt;
  return setting->values.front();
}

std::optional<std::string> Settings::Lower(absl::string_view name) {
  const std::optional<std::string> text = Text(name);
  return text.has_value() ? std::optional(absl::AsciiStrToLower(*text)) : std::nullopt;
}

bool Settings::Flag(absl::string_view name, bool otherwise) {
  const Setting* setting = Find(name);
  if (setting == nullptr) return otherwise;
  return setting->values.empty() || !IsFalse(setting->values.front());
}

std::optional<double> Settings::Real(absl::string_view name) {
  const Setting* setting = Find(name);
  if (setting == nullptr || setting->values.empty()) return std::nullopt;
  double value = 0;
  if (absl::SimpleAtod(setting->values.front(), &value) && std::isfinite(value)) return value;
  number_faults_.push_back(
      {setting->place,
       {"not_a_number", FaultLevel::kError, setting->written,
        absl::StrCat("'", setting->values.front(), "' is not a number"), "write a number", "", ""}});
  return std::nullopt;
}

std::optional<int64_t> Settings::Integer(absl::string_view name) {
  const std::optional<double> value = Real(name);
  if (!value.has_value()) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (*value == std::floor(*value) && std::abs(*value) <= kExact) return static_cast<int64_t>(*value);
  const Setting* setting = Find(name);
  number_faults_.push_back(
      {setting->place,
       {"not_a_whole_number", FaultLevel::kError, setting->written,
        absl::StrCat(setting->values.front(), " is not a whole number"), "write a whole number", "", ""}});
  return std::nullopt;
}

void Settings::Set(absl::string_view name, const std::string& value) {
  for (Setting& setting : all_) {
    if (setting.name == name) setting.values = {value};
  }
  if (Last(name) == nullptr) Add({std::string(name), std::string(name), {value}, {}, true});
}

std::vector<const Setting*> Settings::unused() const {
  std::vector<const Setting*> unused;
  for (const Setting& setting : all_) {
    if (!setting.used) unused.push_back(&setting);
  }
  return unused;
}

SpecFaults ReadSettings(absl::string_view text, const std::string& file, Settings* settings) {
  std::vector<ShellWord> words;
  SpecFaults faults = SplitShellWords(text, file, &words);
  if (LooksLikeArguments(words)) {
    if (faults.empty()) AddWords(words, settings);
    return faults;
  }
  TextNode root;
  faults = ParseYaml(text, file, &root);
  if (!faults.empty()) return faults;
  if (root.kind == TextNode::Kind::kMap) {
    AddTree(root, "", settings);
    return {};
  }
  return {{{file, 1, 1},
           {"no_settings", FaultLevel::kError, "",
            "this is neither a run_config.yaml nor a list of arguments such as --num-layers 32",
            "give the file that Megatron Bridge wrote, or the arguments of the pretraining script", "", ""}}};
}

}  // namespace fsdpd
