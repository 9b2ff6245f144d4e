#include "client/migrate/settings.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cmath>

#include "base/spec_text/yaml_tree.h"
#include "client/migrate/option_names.h"
#include "client/migrate/other_trainers.h"
#include "client/migrate/shell_words.h"

namespace fsdpd {
namespace {

bool IsFalse(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  return lower == "false" || lower == "0" || lower == "no" || lower == "off" || lower.empty();
}

bool IsTrue(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  return lower == "true" || lower == "1" || lower == "yes" || lower == "on";
}

void AddNamed(const OptionName& name, Setting setting, Settings* settings) {
  setting.name = name.name;
  if (name.negated) {
    const bool set = setting.values.empty() || !IsFalse(setting.values.front());
    setting.values = {set ? "false" : "true"};
  }
  if (setting.name == "use_megatron_fsdp_v2") {  // Sets both the version and the flag.
    if (!setting.values.empty() && IsFalse(setting.values.front())) return;
    settings->Add({"megatron_fsdp_version", setting.written, {"2"}, setting.place, false});
    setting.name = "use_megatron_fsdp";
  }
  settings->Add(std::move(setting));
}

// Returns the name of a Python object. Megatron Bridge writes an object as a map with the name in `_target_`
// and its construction: a dtype as {_call_: false, _target_: torch.float32}, an enum value as {_args_:
// [auto], _call_: true, ...}. Null for any other map.
const TextNode* ObjectName(const TextNode& node) {
  if (node.Find("_call_") == nullptr && node.Find("_partial_") == nullptr) return nullptr;
  if (const TextNode* name = node.Find("_name_"); name != nullptr) return name;
  return node.Find("_target_");
}

void AddScalars(const TextNode& node, std::vector<std::string>* values) {
  if (node.kind == TextNode::Kind::kScalar) values->push_back(node.text);
  for (const TextNode& child : node.children) AddScalars(child, values);
}

// Converts [[a, b], [0.3, 0.7]] to the values of --data-path 0.3 a 0.7 b. Without the second list, Megatron
// weights files by length.
std::vector<std::string> ValuesOfBlend(const TextNode& blend) {
  std::vector<std::string> paths, weights, values;
  if (!blend.children.empty()) AddScalars(blend.children[0], &paths);
  if (blend.children.size() > 1) AddScalars(blend.children[1], &weights);
  for (size_t i = 0; i < paths.size(); ++i) {
    if (i < weights.size()) values.push_back(weights[i]);
    values.push_back(paths[i]);
  }
  return values;
}

// Adds the three blends of blend_per_split: training, validation and test.
void AddSplits(const TextNode& splits, const std::string& written, Settings* settings) {
  const char* const names[] = {"train_data_path", "valid_data_path", "test_data_path"};
  for (size_t i = 0; i < splits.children.size() && i < 3; ++i) {
    std::vector<std::string> values = ValuesOfBlend(splits.children[i]);
    if (!values.empty()) settings->Add({names[i], written, std::move(values), splits.place, false});
  }
}

void AddKey(const std::string& section, const TextNode& child, Settings* settings) {
  const std::string written = section.empty() ? child.key : absl::StrCat(section, ".", child.key);
  if (child.kind == TextNode::Kind::kNull && child.key == "megatron_fsdp_main_params_dtype")
    return settings->Add(
        {child.key, written, {"auto"}, child.place});  // null is `auto`, not the default (fp32).
  if (child.kind == TextNode::Kind::kNull || absl::StartsWith(child.key, "_")) return;
  // Megatron Bridge writes bf16 and fp16 in every section. A default `false` must not hide the section that
  // turns one on.
  const bool is_half_precision = child.key == "bf16" || child.key == "fp16";
  if (is_half_precision && child.kind == TextNode::Kind::kScalar && IsFalse(child.text)) return;
  if (section == "env_vars") {
    return settings->AddVariable({child.key, child.key, {child.text}, child.place, false});
  }
  if (child.key == "blend_per_split") return AddSplits(child, written, settings);
  Setting setting{child.key, written, {}, child.place, false};
  if (child.key == "blend") {
    setting.values = ValuesOfBlend(child);
    return AddNamed({"data_path"}, std::move(setting), settings);
  }
  const TextNode* object = child.kind == TextNode::Kind::kMap ? ObjectName(child) : nullptr;
  AddScalars(object != nullptr ? *object : child, &setting.values);
  if (setting.values.empty())
    setting.values = {""};  // An empty list or map, which is not a flag without value.
  AddNamed(NameOfKey(section, child.key), std::move(setting), settings);
}

// Adds all sections. In Megatron Bridge, keys of mixed_precision override the same keys of other sections,
// even if their value is null.
void AddSections(const TextNode& root, Settings* settings) {
  const TextNode* const precision = root.Find("mixed_precision");
  for (const TextNode& child : root.children) {
    if (child.kind != TextNode::Kind::kMap || ObjectName(child) != nullptr) {
      AddKey("", child, settings);
      continue;
    }
    for (const TextNode& setting : child.children) {
      const bool overwritten =
          precision != nullptr && &child != precision && precision->Find(setting.key) != nullptr;
      if (!overwritten) AddKey(child.key, setting, settings);
    }
  }
}

bool IsFlag(const std::string& word) { return absl::StartsWith(word, "--") && word.size() > 2; }

// NAME=value, before a command or after `export`.
bool IsAssignment(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  for (size_t i = 0; i < equals; ++i) {
    if (!absl::ascii_isalnum(word[i]) && word[i] != '_') return false;
  }
  return true;
}

// Megatron's pretraining scripts, or a user's own script.
bool IsScript(const std::string& word) { return absl::EndsWith(word, ".py"); }

// Sets the field of the errors about a word's shell variables to the setting that the word belongs to.
void SetFieldOfVariables(const ShellWord& word, const std::string& setting, LocatedViolations* violations) {
  for (LocatedViolation& located : *violations) {
    for (const Place& place : word.variables) {
      if (located.place.line == place.line && located.place.column == place.column)
        located.violation.field = setting;
    }
  }
}

// Adds the settings, environment variables and script of a command line. Words before the first flag are the
// command; parentheses belong to shell arrays (ARGS=( ... )).
void AddWords(const std::vector<ShellWord>& words, Settings* settings, LocatedViolations* violations) {
  for (size_t i = 0; i < words.size();) {
    const std::string& text = words[i].text;
    const size_t equals = text.find('=');
    if (!IsFlag(text)) {
      if (words[i].open() && !IsAssignment(text)) settings->SetIncomplete();
      if (text == "else" || text == "elif" || text == "case") settings->SetBranch(words[i].place);
      if (IsAssignment(text)) {
        const std::string name = text.substr(0, equals);
        settings->AddVariable({name, name, {text.substr(equals + 1)}, words[i].place, false});
      } else if (IsScript(text)) {
        settings->SetScript({"script", text, {text}, words[i].place, false});
      }
      ++i;
      continue;
    }
    Setting setting{"", text.substr(0, equals), {}, words[i].place, false};
    const OptionName name = NameOfFlag(absl::StrReplaceAll(setting.written.substr(2), {{"-", "_"}}));
    if (equals != std::string::npos) setting.values.push_back(text.substr(equals + 1));
    const auto look = [&](const ShellWord& word) {
      if (!word.open()) return;
      setting.open = true;
      SetFieldOfVariables(word, setting.written, violations);
    };
    look(words[i++]);
    const bool complete = equals != std::string::npos || name.negated;
    while (!complete && i < words.size() && !IsFlag(words[i].text) && words[i].text != ")" &&
           !IsScript(words[i].text) && !words[i].ends_command) {
      if (setting.values.empty()) setting.below = words[i].starts_line;
      if (words[i].spreads) {
        // "${ARGS[@]}" may expand to values of this setting, or to further settings after a flag without a
        // value.
        settings->SetIncomplete();
        setting.open |= setting.values.empty();
      } else {
        look(words[i]);
        setting.values.push_back(words[i].text);
      }
      ++i;
    }
    AddNamed(name, std::move(setting), settings);
  }
}

bool AreShellVariables(const LocatedViolations& violations) {
  return std::all_of(violations.begin(), violations.end(), [](const LocatedViolation& located) {
    return located.violation.rule == kShellVariable;
  });
}

// Splits words that contain several words: the command in `bash -c "..."`, whose words get the place of the
// quoted string, and "--seed 7" in an array. Also strips brackets and commas of a printed Python list,
// ['--lr', '1'].
void Unwrap(std::vector<ShellWord>* words, LocatedViolations* violations) {
  std::vector<ShellWord> plain;
  const bool listed = !words->empty() && absl::StartsWith(words->front().text, "[--");
  for (size_t i = 0; i < words->size(); ++i) {
    ShellWord word = (*words)[i];
    std::vector<ShellWord> inner;
    const bool quoted = i > 0 && absl::StartsWith((*words)[i - 1].text, "-") &&
                        absl::EndsWith((*words)[i - 1].text, "c") && absl::StrContains(word.text, " --");
    if (const LocatedViolations of_inner =
            quoted ? SplitShellWords(word.text, word.place.file, &inner) : LocatedViolations();
        quoted && AreShellVariables(of_inner)) {
      // Variables in double quotes have been reported already, each at its own place.
      for (const LocatedViolation& located : of_inner) {
        if (!word.open()) violations->push_back({word.place, located.violation});
      }
      for (ShellWord& each : inner) {
        each.place = word.place;
        for (Place& place : each.variables) place = word.place;
        plain.push_back(std::move(each));
      }
      continue;
    }
    // "--seed 7" as one element of an array, which Megatron's scripts expand without quotes into two words.
    std::vector<ShellWord> several;
    if (IsFlag(word.text) && !word.open() && word.text.find(' ') < word.text.find('=') &&
        SplitShellWords(word.text, word.place.file, &several).empty()) {
      for (ShellWord& each : several) {
        each.place = word.place;
        plain.push_back(std::move(each));
      }
      continue;
    }
    if (listed) {
      absl::string_view text = word.text;
      absl::ConsumePrefix(&text, "[");
      if (!absl::ConsumeSuffix(&text, ",")) absl::ConsumeSuffix(&text, "]");
      word.text = std::string(text);
    }
    plain.push_back(std::move(word));
  }
  *words = std::move(plain);
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
  requested_.insert(std::string(name));
  std::vector<const Setting*> found;
  for (Setting& setting : all_) {
    if (setting.name != name) continue;
    setting.used = true;
    found.push_back(&setting);
  }
  return found;
}

void Settings::ValueViolation(const Setting& setting, const char* rule, const std::string& reason,
                              const char* fix) {
  for (const LocatedViolation& located : value_violations_) {  // Several readers may look up one setting.
    if (located.violation.field == setting.written && located.violation.rule == rule) return;
  }
  value_violations_.push_back(
      {setting.place, {rule, ViolationLevel::kError, setting.written, reason, fix, "", ""}});
}

std::optional<std::string> Settings::Text(absl::string_view name) {
  const Setting* setting = Find(name);
  if (setting == nullptr || setting->open) return std::nullopt;
  if (!setting->values.empty()) return setting->values.front();
  ValueViolation(*setting, "no_value", "has no value", "write one after it, or leave it out");
  return std::nullopt;
}

std::optional<std::string> Settings::Lower(absl::string_view name) {
  const std::optional<std::string> text = Text(name);
  return text.has_value() ? std::optional(absl::AsciiStrToLower(*text)) : std::nullopt;
}

bool Settings::Flag(absl::string_view name, bool default_value) {
  const Setting* setting = Find(name);
  if (setting == nullptr || setting->value_is_open()) return default_value;
  if (setting->values.empty() || IsTrue(setting->values.front())) return true;
  if (IsFalse(setting->values.front())) return false;
  if (setting->below) return true;
  ValueViolation(*setting, "not_true_or_false",
                 absl::StrCat("'", setting->values.front(), "' is not true or false"), "write true or false");
  return false;
}

bool Settings::AnyFlag(absl::string_view name) {
  for (const Setting* setting : FindAll(name)) {
    if (setting->value_is_open()) continue;
    if (setting->values.empty() || (!IsFalse(setting->values.front()) && setting->values.front() != "None")) {
      return true;
    }
  }
  return false;
}

std::optional<double> Settings::Real(absl::string_view name) {
  const std::optional<std::string> text = Text(name);
  if (!text.has_value()) return std::nullopt;
  double value = 0;
  if (absl::SimpleAtod(*text, &value) && std::isfinite(value)) return value;
  ValueViolation(*Find(name), "not_a_number", absl::StrCat("'", *text, "' is not a number"),
                 "write a number");
  return std::nullopt;
}

std::optional<int64_t> Settings::Integer(absl::string_view name) {
  const std::optional<double> value = Real(name);
  if (!value.has_value()) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (*value == std::floor(*value) && std::abs(*value) <= kExact) return static_cast<int64_t>(*value);
  const Setting* setting = Find(name);
  ValueViolation(*setting, "not_a_whole_number",
                 absl::StrCat(setting->values.front(), " is not a whole number"), "write a whole number");
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

LocatedViolations ReadSettings(absl::string_view text, const std::string& file, Settings* settings) {
  if (std::optional<LocatedViolation> toml = FindToml(text, file)) return {*std::move(toml)};
  std::vector<ShellWord> words;
  LocatedViolations violations = SplitShellWords(text, file, &words);
  ExpandAssigned(&words, &violations);
  Unwrap(&words, &violations);
  if (LooksLikeArguments(words)) {
    if (!AreShellVariables(violations)) return violations;
    AddWords(words, settings, &violations);
    for (LocatedViolation& located : violations) settings->AddValueViolation(std::move(located));
    return {};
  }
  TextNode root;
  violations = ParseYaml(text, file, &root);
  if (violations.empty() && root.kind == TextNode::Kind::kMap) {
    if (std::optional<LocatedViolation> other = FindOtherTrainer(root)) return {*std::move(other)};
  }
  if (violations.empty()) violations = DuplicateKeys(root);
  if (!violations.empty()) return violations;
  if (root.kind == TextNode::Kind::kMap) {
    AddSections(root, settings);
    return {};
  }
  return {{{file, 1, 1},
           {"no_settings", ViolationLevel::kError, "",
            "the text is neither a run_config.yaml nor a list of arguments such as --num-layers 32",
            "pass the file that Megatron Bridge wrote, or the arguments of the pretraining script", "", ""}}};
}

}  // namespace fsdpd
