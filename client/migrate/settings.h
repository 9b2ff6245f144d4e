// Settings of a run: of Megatron, read from the run_config.yaml of Megatron Bridge or from the command line
// of a Megatron-LM script, or of another trainer, read from its configuration file. A setting has its
// canonical name (option_names.h) in all forms, and its original name and place for messages.
//
// A lookup marks a setting as used. Unused settings are reported at the end, because a setting that is
// dropped silently is a run that differs silently. Not thread-safe, and lookups modify the object.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/spec_text/located_violation.h"
#include "client/migrate/option_names.h"

namespace fsdpd {

struct Setting {
  std::string name;     // "data_parallel_sharding_strategy"
  std::string written;  // "--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy"
  std::vector<std::string> values;  // Empty for a flag without value. A Python object is its qualified name.
  Place place;
  bool used = false;
  bool open =
      false;  // The value is unknown: an unexpanded shell variable, which has been reported, or "auto".
  bool below = false;  // The values start on the next line, which may be another command.

  bool value_is_open() const { return open && !values.empty(); }
};

class Settings {
 public:
  void Add(Setting setting) { all_.push_back(std::move(setting)); }

  // Returns the last setting of that name, as argparse does. Null if it is not set, or if its value is None.
  const Setting* Find(absl::string_view name);
  // Returns all settings of that name: Megatron Bridge has some of them in several sections.
  std::vector<const Setting*> FindAll(absl::string_view name);

  // Typed lookups. A missing or invalid value adds an error to value_violations(), once per setting and rule.
  // An open setting (Setting::open) counts as unset and adds no further error.
  std::optional<std::string> Text(absl::string_view name);
  std::optional<std::string> Lower(absl::string_view name);  // In lower case, for enumerations.
  std::string Lower(absl::string_view name, const std::string& default_value) {
    return Lower(name).value_or(default_value);
  }
  bool Flag(absl::string_view name, bool default_value = false);
  bool AnyFlag(absl::string_view name);  // True in any section.
  std::optional<double> Real(absl::string_view name);
  double Real(absl::string_view name, double default_value) { return Real(name).value_or(default_value); }
  std::optional<int64_t> Integer(absl::string_view name);
  int64_t Integer(absl::string_view name, int64_t default_value) {
    return Integer(name).value_or(default_value);
  }

  // Replaces the values, for an adjustment. The place does not change.
  void Set(absl::string_view name, const std::string& value);

  // Returns an environment variable that is set before the command, or null. Its `written` is its name.
  const Setting* FindVariable(const std::string& name) const;
  const std::map<std::string, Setting>& variables() const { return variables_; }
  void AddVariable(Setting variable) { variables_[variable.name] = std::move(variable); }

  // The Python script that the command runs, or null. Its value is its path.
  const Setting* script() const { return script_.has_value() ? &*script_ : nullptr; }
  void SetScript(Setting script) { script_ = std::move(script); }

  // The place of the first `else`, `elif` or `case`, or null. All branches of the script are read.
  const Place* branch() const { return branch_.has_value() ? &*branch_ : nullptr; }
  void SetBranch(const Place& place) {
    if (!branch_.has_value()) branch_ = place;
  }

  Trainer trainer() const { return trainer_; }
  void SetTrainer(Trainer trainer) { trainer_ = trainer; }
  const OptionTable& table() const { return TableOf(trainer_); }

  // True if the run has settings that are not in the text, since it contains variables that may expand to
  // settings ("${ARGS[@]}"), or the trainer has them in its script. A setting that is not found may then
  // still be set.
  bool incomplete() const { return incomplete_; }
  void SetIncomplete() { incomplete_ = true; }

  const std::vector<Setting>& all() const { return all_; }
  std::vector<const Setting*> unused() const;
  const std::set<std::string>& requested() const { return requested_; }  // All names that were looked up.
  const LocatedViolations& value_violations() const { return value_violations_; }
  void AddValueViolation(LocatedViolation located) { value_violations_.push_back(std::move(located)); }

 private:
  void AddOnce(const Setting& setting, Violation violation);

  std::vector<Setting> all_;
  std::map<std::string, Setting> variables_;
  std::optional<Setting> script_;
  std::optional<Place> branch_;
  std::set<std::string> requested_;
  LocatedViolations value_violations_;
  Trainer trainer_ = Trainer::kMegatron;
  bool incomplete_ = false;
};

// Reads `text` as TOML if it has sections in brackets, as a command line if a flag comes before any word
// with a final colon, and as YAML otherwise. Returns errors that leave `*settings` unusable. Shell variables
// are not among them, but in value_violations().
LocatedViolations ReadSettings(absl::string_view text, const std::string& file, Settings* settings);

}  // namespace fsdpd
