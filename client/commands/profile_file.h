// Device profile of `--profile`: the name of a shipped profile, or a JSON or YAML file. A file may inherit
// from a shipped profile ("base: h200") and override some of its keys.
//
// Parsing collects all errors of a file, each with its position and key. Values outside the range of real
// devices are errors too.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "base/spec_text/located_violation.h"
#include "fsdp/plan/predict/device_profile.h"

namespace fsdpd {

struct ProfileText {
  DeviceProfile profile;  // Valid only if `violations` is empty.
  LocatedViolations violations;
};

// Returns NOT_FOUND with the shipped names if the argument is neither one of them nor a readable file.
absl::StatusOr<ProfileText> LoadProfile(const std::string& name_or_path);

// `file` is the file name in errors, and the name of the profile if the text has none.
ProfileText ParseProfile(absl::string_view text, const std::string& file);

}  // namespace fsdpd
