// What a Megatron run was configured with, read from either form in which people have it: the run_config.yaml
// that Megatron Bridge writes, or the arguments of Megatron-LM's pretraining scripts. Both name a setting
// alike (`ddp.nccl_ub`, `--use-nccl-ub`); here each has Megatron-LM's own name, and keeps how and where it
// was written.
//
// Reading marks a setting as used, so that what nobody asked for can be told: a setting that is dropped in
// silence is a run that differs in silence.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/spec_fault.h"

namespace fsdpd {

struct Setting {
  std::string name;     // "data_parallel_sharding_strategy"
  std::string written;  // "--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy"
  std::vector<std::string> values;  // Empty for a flag without a value.
  Place place;
  bool used = false;
};

class Settings {
 public:
  void Add(Setting setting) { all_.push_back(std::move(setting)); }

  // The last one written counts, as on a command line. Null when there is none, or it says None.
  const Setting* Find(absl::string_view name);
  // Every one of that name: Bridge has some in several sections.
  std::vector<const Setting*> FindAll(absl::string_view name);

  std::optional<std::string> Text(absl::string_view name);
  std::optional<std::string> Lower(absl::string_view name);  // In lower case, for names of choices.
  bool Flag(absl::string_view name, bool otherwise = false);
  // A value that is no number is a fault of the setting.
  std::optional<double> Real(absl::string_view name);
  std::optional<int64_t> Integer(absl::string_view name);

  // What an adjustment changes; the place stays.
  void Set(absl::string_view name, const std::string& value);

  // A variable that is set in front of the command; null when it is not. Its `written` is its name.
  const Setting* FindVariable(const std::string& name) const;
  void AddVariable(Setting variable) { variables_[variable.name] = std::move(variable); }

  std::vector<const Setting*> unused() const;
  const SpecFaults& number_faults() const { return number_faults_; }

 private:
  Setting* Last(absl::string_view name);

  std::vector<Setting> all_;
  std::map<std::string, Setting> variables_;  // By name.
  SpecFaults number_faults_;
};

// Reads `text` by its look: arguments when its first word that counts is a flag or an assignment, else YAML.
// A fault leaves `*settings` unusable.
SpecFaults ReadSettings(absl::string_view text, const std::string& file, Settings* settings);

}  // namespace fsdpd
