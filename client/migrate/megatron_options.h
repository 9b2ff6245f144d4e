// What becomes of a setting that nobody read, by the lists of megatron_option_lists.h; who is on none of them
// is not called harmless.
#pragma once

#include <absl/strings/string_view.h>

#include <set>
#include <string>

#include "client/migrate/settings.h"

namespace fsdpd {

enum class OptionKind {
  kWithoutEffect,  // On what is trained: how fast, what is logged, where things lie. Or it is off.
  kOfLauncher,     // Of torchrun, Slurm or a profiler around them.
  kNotSupported,   // It changes the model, the data or the numbers.
  kUnknown,        // On no list; or on one by its beginning alone, and misspelt.
};

// Each published name (megatron_option_names.h) as option_names.h calls it.
const std::set<std::string>& PublishedNames();

OptionKind KindOf(const Setting& setting);

// What is not supported, for a message: "multi-latent attention". Empty when the name has to do.
absl::string_view MeaningOf(const Setting& setting);

// The option that an unknown one may have been meant to be, written as it was; empty when none is near.
// `read`: the names that rules and fields asked for.
std::string MeantOption(const Setting& setting, const std::set<std::string>& read);

}  // namespace fsdpd
