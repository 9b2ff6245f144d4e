// What a Megatron run was configured with, read from either form in which people have it: the run_config.yaml
// that Megatron Bridge writes, or the arguments of Megatron-LM's pretraining scripts. A setting has one name
// in both (option_names.h), and keeps how and where it was written.
//
// Reading marks a setting as used, so that what nobody asked for can be told: a setting that is dropped in
// silence is a run that differs in silence.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/spec_fault.h"

namespace fsdpd {

struct Setting {
  std::string name;     // "data_parallel_sharding_strategy"
  std::string written;  // "--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy"
  std::vector<std::string> values;  // Empty for a flag without a value; a Python object's name for an object.
  Place place;
  bool used = false;
  bool open = false;   // A shell variable is in its values: nobody here knows them, and that has been told.
  bool below = false;  // Its values begin on the next line, which may be another command's.

  bool value_is_open() const { return open && !values.empty(); }
};

class Settings {
 public:
  void Add(Setting setting) { all_.push_back(std::move(setting)); }

  // The last one written counts, as on a command line. Null when there is none, or it says None.
  const Setting* Find(absl::string_view name);
  // Every one of that name: Bridge has some in several sections.
  std::vector<const Setting*> FindAll(absl::string_view name);

  // A setting that needs a value and has none is a fault, as is one that needs a number and has another. One
  // that is open has no value, and no second fault.
  std::optional<std::string> Text(absl::string_view name);
  std::optional<std::string> Lower(absl::string_view name);  // In lower case, for names of choices.
  bool Flag(absl::string_view name, bool otherwise = false);
  bool AnyFlag(absl::string_view name);  // True in some section.
  std::optional<double> Real(absl::string_view name);
  std::optional<int64_t> Integer(absl::string_view name);

  // What an adjustment changes; the place stays.
  void Set(absl::string_view name, const std::string& value);

  // A variable that is set in front of the command; null when it is not. Its `written` is its name.
  const Setting* FindVariable(const std::string& name) const;
  const std::map<std::string, Setting>& variables() const { return variables_; }
  void AddVariable(Setting variable) { variables_[variable.name] = std::move(variable); }

  // The script that the command runs; null when there is none. Its value is its path.
  const Setting* script() const { return script_.has_value() ? &*script_ : nullptr; }
  void SetScript(Setting script) { script_ = std::move(script); }

  // Where `else` or `case` first chooses what is set; every branch was read. Null where nothing does.
  const Place* branch() const { return branch_.has_value() ? &*branch_ : nullptr; }
  void SetBranch(const Place& place) {
    if (!branch_.has_value()) branch_ = place;
  }

  // There are words that may be settings, and are not in the text: that one is not set cannot be said then.
  bool incomplete() const { return incomplete_; }
  void SetIncomplete() { incomplete_ = true; }

  const std::vector<Setting>& all() const { return all_; }
  std::vector<const Setting*> unused() const;
  const std::set<std::string>& asked() const { return asked_; }  // Every name that anybody looked for.
  const SpecFaults& value_faults() const { return value_faults_; }
  void AddValueFault(SpecFault fault) { value_faults_.push_back(std::move(fault)); }

 private:
  Setting* Last(absl::string_view name);
  void ValueFault(const Setting& setting, const char* rule, const std::string& reason, const char* fix);

  std::vector<Setting> all_;
  std::map<std::string, Setting> variables_;  // By name.
  std::optional<Setting> script_;
  std::optional<Place> branch_;
  std::set<std::string> asked_;
  SpecFaults value_faults_;
  bool incomplete_ = false;
};

// Reads `text` by its look: arguments when its first word that counts is a flag or an assignment, else YAML.
// A fault leaves `*settings` unusable. Shell variables do not: they are among its value_faults().
SpecFaults ReadSettings(absl::string_view text, const std::string& file, Settings* settings);

}  // namespace fsdpd
