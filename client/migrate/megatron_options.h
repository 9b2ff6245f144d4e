// What becomes of the settings that no rule reads and no field of a spec takes: two lists of Megatron-LM's
// and Megatron Bridge's options, and whoever is on neither is not called harmless.
#pragma once

#include "client/migrate/settings.h"

namespace fsdpd {

enum class OptionKind {
  kWithoutEffect,  // On what is trained: how fast, what is logged, where things lie. Or it is off.
  kNotSupported,   // It changes the model, the data or the numbers.
  kUnknown,        // On neither list.
};

OptionKind KindOf(const Setting& setting);

}  // namespace fsdpd
