// Tables of the settings of Megatron and of other trainers, and canonical names of Megatron's settings.
//
// Megatron-LM's flags, Megatron Bridge's sections and their versions use several names for one setting, and
// some flags negate the setting (--disable-bias-linear, --no-rope-fusion). The canonical name is the name of
// the value that is set: add_bias_linear, apply_rope_fusion. The canonical name of another trainer's setting
// is its path in the file: training.seq_len.
#pragma once

#include <absl/strings/string_view.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace fsdpd {

struct OptionName {
  std::string name;
  bool negated = false;  // Setting the flag turns the setting off.
};

// `written` is the flag without its two hyphens, and with _ for -.
OptionName NameOfFlag(const std::string& written);

// Name of `key` in `section` (empty: top level). Some sections reuse a name with another meaning, such as
// tokenizer.rank and nvrx_straggler.enabled. Their names get the section as a prefix: tokenizer_rank.
OptionName NameOfKey(const std::string& section, const std::string& key);

// A field of the spec and the settings that it is converted from.
struct FieldRow {
  enum class Source {
    kConverter,  // A function of a converter writes the field.
    kRequired,   // The setting must be set.
    kIfSet,
    kDefault,  // `default_value` if the setting is not set.
  };
  std::string path, parent, name;     // "optimizer.adamw.betas[0]", "optimizer.adamw", "betas[0]"
  std::vector<std::string> settings;  // The first one that is set counts.
  Source source = Source::kConverter;
  std::string default_value;
};

// A setting that changes the model, the data or the numbers, and that a spec cannot express.
struct RefusedSetting {
  std::string default_value;  // A setting with this value has no effect. Empty: the value is "off".
  std::string feature;        // The unsupported feature, for messages.
};

struct OptionTable {
  // The first matching row with a setting is a field's origin, so a parent comes after the fields inside it.
  std::vector<FieldRow> fields;
  // By canonical name. A trailing * matches the rest of a name.
  std::map<std::string, RefusedSetting> refused;
  std::map<std::string, bool> ignored, launcher;
  std::set<std::string> known;  // Canonical names, without those of launchers.
};

enum class Trainer { kMegatron, kTorchtitan, kDeepSpeed, kAccelerate };
constexpr Trainer kTrainers[] = {Trainer::kMegatron, Trainer::kTorchtitan, Trainer::kDeepSpeed,
                                 Trainer::kAccelerate};

const OptionTable& TableOf(Trainer trainer);

// Returns the entry that matches the most characters of the name, or `entries.end()`.
template <typename Entries>
typename Entries::const_iterator FindLongestMatch(const std::string& name, const Entries& entries) {
  auto found = entries.find(name);
  for (size_t size = name.size(); found == entries.end() && size > 0; --size)
    found = entries.find(name.substr(0, size) + "*");
  return found;
}

}  // namespace fsdpd
