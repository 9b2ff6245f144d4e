// Violation of a validation rule by a job spec: the field, the reason and the fix. Validation collects all
// violations and does not stop at the first.
#pragma once

#include <string>
#include <vector>

namespace fsdpd {

enum class ViolationLevel {
  kError,   // The job is rejected.
  kAdjust,  // A value is changed from `before` to `after`.
  kWarn,    // The job runs, but the user should know.
};

struct Violation {
  std::string rule;  // Stable id, "unknown_field", "world_divides_batch", ...
  ViolationLevel level = ViolationLevel::kError;
  std::string field;   // Path in the job spec: "fsdp.outer.size", "data.tokens[1].path".
  std::string reason;  // What is wrong and why it matters, with the numbers.
  std::string fix;     // What to write instead.
  std::string before;  // kAdjust only.
  std::string after;   // kAdjust only.
};

using Violations = std::vector<Violation>;

inline bool HasErrors(const Violations& violations) {
  for (const Violation& v : violations) {
    if (v.level == ViolationLevel::kError) return true;
  }
  return false;
}

// Whether the field is `parent` or below it: "data.tokens[1].path" is within "data.tokens".
inline bool IsWithin(const std::string& field, const std::string& parent) {
  if (field.compare(0, parent.size(), parent) != 0) return false;
  return field.size() == parent.size() || field[parent.size()] == '.' || field[parent.size()] == '[';
}

}  // namespace fsdpd
