// Classification of settings that the conversion did not read, by the lists of megatron_option_lists.h. A
// setting on no list is unknown, never without effect.
#pragma once

#include <absl/strings/string_view.h>

#include <set>
#include <string>

#include "client/migrate/settings.h"

namespace fsdpd {

enum class OptionKind {
  kWithoutEffect,  // Does not change the trained numbers (speed, logs, paths), or is off.
  kOfLauncher,     // An option of torchrun, Slurm or a profiler.
  kNotSupported,   // Changes the model, the data or the numbers.
  kUnknown,        // On no list, or a likely misspelling that matches only a prefix entry.
};

// Canonical names (option_names.h) of all published options (megatron_option_names.h).
const std::set<std::string>& PublishedNames();

OptionKind KindOf(const Setting& setting);

// Returns the unsupported feature for a message, such as "another kind of softmax". Empty if the list has
// only the name.
absl::string_view DescribeUnsupported(const Setting& setting);

// Returns the known option closest to an unknown one, in the same notation (flag or key), or an empty string
// if none is close. `read` is the set of names that rules and fields looked up (Settings::requested).
std::string SuggestOption(const Setting& setting, const std::set<std::string>& read);

}  // namespace fsdpd
