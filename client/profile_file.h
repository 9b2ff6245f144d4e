// What `--profile` means: the name of a shipped device profile, or a file with the keys of one (JSON or
// YAML). A file may start from a shipped one ("base: h200") and name only what differs.
//
// Every fault of a file is told with its place and key, among them values that no device has.
#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "base/spec_fault.h"
#include "fsdp/plan/predict/device_profile.h"

namespace fsdpd {

struct ProfileText {
  DeviceProfile profile;  // To be used when `faults` is empty.
  SpecFaults faults;
};

// NOT_FOUND when it is neither a shipped name nor a file that can be read; says which names there are.
absl::StatusOr<ProfileText> LoadProfile(const std::string& name_or_path);

// `file` is the name that faults carry, and the profile's where the text gives none.
ProfileText ParseProfile(absl::string_view text, const std::string& file);

}  // namespace fsdpd
