// Mapping from fields of the job spec to the settings that they were converted from, by the tables of
// option_names.h. It lets a violation of the spec's rules be reported at the line of the user's file, with
// the name written there.
#pragma once

#include <string>
#include <vector>

#include "base/spec_text/violation.h"
#include "client/migrate/settings.h"

namespace fsdpd {

// Returns the setting that `field` was converted from, or else the first setting of a field inside it.
// Returns null if no such setting is written. Marks the settings that it looks up as used.
const Setting* OriginOf(const std::string& field, Settings* settings);

// Places a violation of the spec's rules at the setting that the field came from, under the setting's name
// and with the field in the reason. Without such a setting the place is `file` and the name is the field.
LocatedViolation AtOrigin(const Violation& violation, const std::string& file, Settings* settings);

// Returns the fields of the spec that are unset because `violations` already report their settings. The
// spec's rules would report each of them a second time.
std::vector<std::string> UnreadFields(const LocatedViolations& violations);

}  // namespace fsdpd
