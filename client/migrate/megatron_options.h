// Classification of settings that the conversion did not read, by the tables of option_names.h. A setting in
// no table is unknown, never without effect.
#pragma once

#include <set>
#include <string>

#include "client/migrate/option_names.h"
#include "client/migrate/settings.h"

namespace fsdpd {

enum class OptionKind {
  kWithoutEffect,  // Does not change the trained numbers (speed, logs, paths), or is off.
  kOfLauncher,     // An option of torchrun, Slurm or a profiler.
  kNotSupported,   // Changes the model, the data or the numbers.
  kUnknown,        // Not in the table, or a likely misspelling that matches only a prefix entry.
};

OptionKind KindOf(const Setting& setting, const OptionTable& table = TableOf(Trainer::kMegatron));

// Returns the unsupported feature for a message: "another kind of softmax is not supported".
std::string DescribeUnsupported(const Setting& setting,
                                const OptionTable& table = TableOf(Trainer::kMegatron));

// Returns the known option closest to an unknown one, in the same notation (flag or key), or an empty string
// if none is close. `read` is the set of names that rules and fields looked up (Settings::requested).
std::string SuggestOption(const Setting& setting, const std::set<std::string>& read,
                          const OptionTable& table = TableOf(Trainer::kMegatron));

}  // namespace fsdpd
