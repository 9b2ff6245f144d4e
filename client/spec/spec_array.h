// Job arrays (`submit --array PATH=V1,V2`): expansion of one spec into several, as overrides for spec_text.h.
// Pure functions.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

constexpr size_t kMaxArrayJobs = 256;
// Separator of the array id and the index of the job in a request id. The array id identifies the array's
// jobs.
constexpr char kArraySeparator[] = "/";

// Whether the request id belongs to `array`. An empty `array` matches every job.
bool IsInArray(const std::string& request_id, const std::string& array);

// Returns the overrides of each job: the Cartesian product of `arrays`, with the last path varying fastest. A
// comma in brackets or quotes does not separate values. Returns INVALID_ARGUMENT for a syntax error, and for
// a duplicate value or path, because two jobs would be identical.
absl::StatusOr<std::vector<std::vector<std::string>>> ArrayOverrides(const std::vector<std::string>& arrays);

}  // namespace fsdpd
