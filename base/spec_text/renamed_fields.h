// Fields of a job spec that release 0.1 had under another name. Their numbers are the same, so binary
// messages need no conversion. Texts that fsdpd wrote itself (the spec in a checkpoint, the description of a
// plug-in) are still read; a spec of a user is rejected with the new name. clients/python and clients/go have
// the same table, which tests/tidy compares.
#pragma once

#include <absl/strings/string_view.h>

#include <string>
#include <vector>

namespace fsdpd {

struct RenamedField {
  std::string message;  // Without the package: "Data".
  std::string before;   // Name in release 0.1.
  std::string name;     // Current name.
};

const std::vector<RenamedField>& RenamedFields();

// Returns the current name of a field that had the name `key` (also in camelCase) in release 0.1, or "".
// `message` is a full name, such as "fsdpd.v1.Data".
std::string CurrentFieldName(absl::string_view message, absl::string_view key);

// Replaces old names in a JSON text of a spec or a description. REQUIRES: `json` was written by fsdpd, which
// puts no space before a colon.
std::string WithCurrentFieldNames(const std::string& json);

}  // namespace fsdpd
