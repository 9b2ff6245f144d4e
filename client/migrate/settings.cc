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
#include "client/migrate/conversion_rules.h"
#include "client/migrate/other_trainers.h"
#include "client/migrate/shell_words.h"
#include "client/migrate/toml_tree.h"

namespace fsdpd {
namespace {

bool IsOneOf(const std::string& text, std::initializer_list<absl::string_view> words) {
  return std::count(words.begin(), words.end(), absl::AsciiStrToLower(text)) > 0;
}
bool IsFalse(const std::string& text) { return IsOneOf(text, {"false", "0", "no", "off", ""}); }
bool IsTrue(const std::string& text) { return IsOneOf(text, {"true", "1", "yes", "on"}); }

void AddNamed(const OptionName& name, Setting setting, Settings* settings) {
  setting.name = name.name;
  if (name.negated) {
    const bool set = setting.values.empty() || !IsFalse(setting.values.front());
    setting.values = {set ? "false" : "true"};
  }
  if (setting.name == "use_megatron_fsdp_v2") {  // Sets both the version and the flag.
    if (!setting.values.empty() && IsFalse(setting.values.front())) return;
    settings->Add({"megatron_fsdp_version", setting.written, {"2"}, setting.place});
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
    if (!values.empty()) settings->Add({names[i], written, std::move(values), splits.place});
  }
}

void AddKey(const std::string& section, const TextNode& child, Settings* settings) {
  Setting setting{
      child.key, section.empty() ? child.key : absl::StrCat(section, ".", child.key), {}, child.place};
  if (child.kind == TextNode::Kind::kNull && child.key == "megatron_fsdp_main_params_dtype") {
    setting.values = {"auto"};  // null is `auto`, not the default (fp32).
    return settings->Add(std::move(setting));
  }
  const bool is_adapter_class = section == "peft" && child.key == "_target_";
  if (child.kind == TextNode::Kind::kNull || (absl::StartsWith(child.key, "_") && !is_adapter_class)) return;
  // Megatron Bridge writes bf16 and fp16 in every section. A default `false` must not hide the section that
  // turns one on.
  const bool is_half_precision = child.key == "bf16" || child.key == "fp16";
  if (is_half_precision && child.kind == TextNode::Kind::kScalar && IsFalse(child.text)) return;
  if (section == "env_vars") return settings->AddVariable({child.key, child.key, {child.text}, child.place});
  if (child.key == "blend_per_split") return AddSplits(child, setting.written, settings);
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

// Adds every value of another trainer's configuration under its path. A value that is `auto` is set by the
// program that reads the file.
void AddPaths(const TextNode& node, const std::string& path, Settings* settings) {
  if (node.kind == TextNode::Kind::kNull) return;
  if (node.kind == TextNode::Kind::kMap) {
    for (const TextNode& child : node.children)
      AddPaths(child, path.empty() ? child.key : absl::StrCat(path, ".", child.key), settings);
    return;
  }
  Setting setting{path, path, {}, node.place};
  AddScalars(node, &setting.values);
  if (setting.values.empty()) setting.values = {""};
  setting.open = setting.values.front() == "auto";
  settings->Add(std::move(setting));
}

bool IsFlag(const std::string& word) { return absl::StartsWith(word, "--") && word.size() > 2; }

// NAME=value, before a command or after `export`.
bool IsAssignment(absl::string_view word) {
  const size_t equals = word.find('=');
  const auto is_name = [](char c) { return absl::ascii_isalnum(c) || c == '_'; };
  return equals != absl::string_view::npos && equals > 0 &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals), is_name);
}

// Megatron's pretraining scripts, or a user's own script.
bool IsScript(const std::string& word) { return absl::EndsWith(word, ".py"); }

// Adds a word that is neither a flag nor its value: a part of the command, an environment variable, the
// script, or a part of the shell's syntax.
void AddCommandWord(const ShellWord& word, Settings* settings) {
  const std::string& text = word.text;
  if (word.open && !IsAssignment(text)) settings->SetIncomplete();
  if (text == "else" || text == "elif" || text == "case") settings->SetBranch(word.place);
  if (IsAssignment(text)) {
    const std::string name = text.substr(0, text.find('='));
    settings->AddVariable({name, name, {text.substr(name.size() + 1)}, word.place});
  } else if (IsScript(text)) {
    settings->SetScript({"script", text, {text}, word.place});
  }
}

// Adds the settings, environment variables and script of a command line. Words before the first flag are the
// command; parentheses belong to shell arrays (ARGS=( ... )).
void AddWords(const std::vector<ShellWord>& words, Settings* settings) {
  const auto report = [&](const ShellWord& word, const std::string& setting) {
    for (LocatedViolation located : word.unknown) {
      located.violation.field = setting;
      settings->AddValueViolation(std::move(located));
    }
  };
  for (size_t i = 0; i < words.size();) {
    const std::string& text = words[i].text;
    if (!IsFlag(text)) {
      report(words[i], "");
      AddCommandWord(words[i++], settings);
      continue;
    }
    const size_t equals = text.find('=');
    Setting setting{"", text.substr(0, equals), {}, words[i].place};
    const OptionName name = NameOfFlag(absl::StrReplaceAll(setting.written.substr(2), {{"-", "_"}}));
    if (equals != std::string::npos) setting.values.push_back(text.substr(equals + 1));
    setting.open = words[i].open;
    report(words[i++], setting.written);
    const bool complete = equals != std::string::npos || name.negated;
    for (; !complete && i < words.size() && !IsFlag(words[i].text) && words[i].text != ")" &&
           !IsScript(words[i].text) && !words[i].ends_command;
         ++i) {
      if (setting.values.empty()) setting.below = words[i].starts_line;
      if (words[i].spreads) {
        // "${ARGS[@]}" may expand to values of this setting, or to further settings after a flag without a
        // value.
        settings->SetIncomplete();
        setting.open |= setting.values.empty();
        report(words[i], "");
      } else {
        setting.open |= words[i].open;
        report(words[i], setting.written);
        setting.values.push_back(words[i].text);
      }
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
// quoted string, and "--seed 7" in an array, which Megatron's scripts expand without quotes into two words.
// Also strips brackets and commas of a printed Python list, ['--lr', '1'].
std::vector<ShellWord> Unwrap(const std::vector<ShellWord>& words, LocatedViolations* unknown) {
  std::vector<ShellWord> plain;
  const bool listed = !words.empty() && absl::StartsWith(words.front().text, "[--");
  for (size_t i = 0; i < words.size(); ++i) {
    ShellWord word = words[i];
    const bool quoted = i > 0 && absl::StartsWith(words[i - 1].text, "-") &&
                        absl::EndsWith(words[i - 1].text, "c") && absl::StrContains(word.text, " --");
    const bool pair = IsFlag(word.text) && !word.open && word.text.find(' ') < word.text.find('=');
    std::vector<ShellWord> inner;
    if (quoted || pair) {
      const LocatedViolations violations = SplitShellWords(word.text, word.place.file, &inner);
      if (quoted ? AreShellVariables(violations) : violations.empty()) {
        // Variables in double quotes are reported once, each at its own place.
        unknown->insert(unknown->end(), word.unknown.begin(), word.unknown.end());
        for (ShellWord& each : inner) {
          each.place = word.place;
          if (word.open) each.unknown.clear();
          for (LocatedViolation& located : each.unknown) located.place = word.place;
          plain.push_back(std::move(each));
        }
        continue;
      }
    }
    if (listed) {
      absl::string_view text = word.text;
      absl::ConsumePrefix(&text, "[");
      if (!absl::ConsumeSuffix(&text, ",")) absl::ConsumeSuffix(&text, "]");
      word.text = std::string(text);
    }
    plain.push_back(std::move(word));
  }
  return plain;
}

bool LooksLikeArguments(const std::vector<ShellWord>& words) {
  for (const ShellWord& word : words) {
    if (IsFlag(word.text)) return true;
    if (!word.text.empty() && word.text.back() == ':') return false;
  }
  return false;
}

// Reads the tree of a configuration file.
LocatedViolations ReadTree(const TextNode& root, const std::string& file, Settings* settings) {
  if (LocatedViolations duplicate = DuplicateKeys(root); !duplicate.empty()) return duplicate;
  if (root.kind != TextNode::Kind::kMap) return {{{file, 1, 1}, MakeViolation("no_settings", "")}};
  settings->trainer() == Trainer::kMegatron ? AddSections(root, settings) : AddPaths(root, "", settings);
  return {};
}

}  // namespace

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

void Settings::AddOnce(const Setting& setting, Violation violation) {
  for (const LocatedViolation& located : value_violations_) {  // Several readers may look up one setting.
    if (located.violation.field == setting.written && located.violation.rule == violation.rule) return;
  }
  value_violations_.push_back({setting.place, std::move(violation)});
}

std::optional<std::string> Settings::Text(absl::string_view name) {
  const Setting* setting = Find(name);
  if (setting == nullptr || setting->open) return std::nullopt;
  if (!setting->values.empty()) return setting->values.front();
  AddOnce(*setting, {"no_value", ViolationLevel::kError, setting->written, "has no value",
                     "write one after it, or leave it out", "", ""});
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
  AddOnce(*setting, MakeViolation("not_true_or_false", setting->written, {setting->values.front()}));
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
  const Setting* setting = Find(name);
  AddOnce(*setting, MakeViolation("not_a_number", setting->written, {*text}));
  return std::nullopt;
}

std::optional<int64_t> Settings::Integer(absl::string_view name) {
  const std::optional<double> value = Real(name);
  if (!value.has_value()) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (*value == std::floor(*value) && std::abs(*value) <= kExact) return static_cast<int64_t>(*value);
  const Setting* setting = Find(name);
  AddOnce(*setting, MakeViolation("not_a_whole_number", setting->written, {setting->values.front()}));
  return std::nullopt;
}

void Settings::Set(absl::string_view name, const std::string& value) {
  bool found = false;
  for (Setting& setting : all_) {
    if (setting.name != name) continue;
    setting.values = {value};
    found = true;
  }
  if (!found) Add({std::string(name), std::string(name), {value}, {}, true});
}

std::vector<const Setting*> Settings::unused() const {
  std::vector<const Setting*> unused;
  for (const Setting& setting : all_) {
    if (!setting.used) unused.push_back(&setting);
  }
  return unused;
}

LocatedViolations ReadSettings(absl::string_view text, const std::string& file, Settings* settings) {
  TextNode root;
  Trainer trainer = Trainer::kMegatron;
  if (const int section = FindTomlSection(text); section > 0) {
    LocatedViolations violations = ParseToml(text, file, &root);
    if (violations.empty()) violations = FindTrainerOfToml(root, {file, section, 1}, &trainer);
    settings->SetTrainer(trainer);
    return violations.empty() ? ReadTree(root, file, settings) : violations;
  }
  std::vector<ShellWord> words;
  LocatedViolations violations = SplitShellWords(text, file, &words, /*expand=*/true);
  LocatedViolations unknown;
  words = Unwrap(words, &unknown);
  if (LooksLikeArguments(words)) {
    if (!AreShellVariables(violations)) return violations;
    for (LocatedViolation& located : unknown) settings->AddValueViolation(std::move(located));
    AddWords(words, settings);
    return {};
  }
  violations = ParseYaml(text, file, &root);
  if (violations.empty() && root.kind == TextNode::Kind::kMap) violations = FindTrainer(root, &trainer);
  settings->SetTrainer(trainer);
  return violations.empty() ? ReadTree(root, file, settings) : violations;
}

}  // namespace fsdpd
