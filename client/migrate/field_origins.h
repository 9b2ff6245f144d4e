// Which settings of a Megatron run a field of the spec comes from: what the spec's rules say of a field is
// told where somebody wrote it, and under the name that it has there.
#pragma once

#include <string>
#include <vector>

#include "base/violation.h"
#include "client/migrate/settings.h"

namespace fsdpd {

// The setting that `field` came from, or the first that something within it came from; null when nobody wrote
// one.
const Setting* OriginOf(const std::string& field, Settings* settings);

// A fault that the spec's rules found in what was made of `settings`: at its origin and under that name, with
// the field in its reason. Where nobody wrote one, in `file` and under the field's own.
SpecFault AtOrigin(const Violation& violation, const std::string& file, Settings* settings);

// The fields of the spec that are missing because of what `faults` say already: what the spec's rules would
// say of them again is nothing that a person wrote.
std::vector<std::string> UnreadFields(const SpecFaults& faults);

// For a test that all fields are here: their names.
std::vector<std::string> FieldsWithOrigin();

}  // namespace fsdpd
