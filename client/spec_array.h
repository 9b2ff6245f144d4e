// `submit --array PATH=V1,V2`: which specs are made of one, as overrides for spec_text.h.
//
// Pure.
#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace fsdpd {

constexpr size_t kMaxArrayJobs = 256;
// What joins an array's name and a job's number into the request id that the job is submitted with, by which
// the jobs of one array are known.
constexpr char kArrayMark[] = "/";

// `array`: empty for any job.
bool IsOfArray(const std::string& request_id, const std::string& array);

// Of each job its overrides, one for each of `arrays`: every combination, the last path's values first. A
// comma within brackets or quotes parts nothing. INVALID_ARGUMENT says what is wrong; a value or a path that
// is there twice is, as two jobs would be the same.
absl::StatusOr<std::vector<std::vector<std::string>>> ArrayOverrides(const std::vector<std::string>& arrays);

}  // namespace fsdpd
