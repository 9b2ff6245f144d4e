#include "coordinator/job/recorded_reason.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

namespace fsdpd {

bool HasRecordedReason(const v1::Job& job, const std::string& reason, absl::Span<const v1::JobState> during,
                       absl::Span<const absl::string_view> asked) {
  // Newest first, and only within the states since the first request. The newest event of a request decides:
  // an older equal reason was replaced since.
  for (int i = job.events_size(); --i >= 0;) {
    const v1::Job::Event& event = job.events(i);
    if (std::find(during.begin(), during.end(), event.state()) == during.end()) return false;
    const auto begins = [&](absl::string_view words) { return absl::StartsWith(event.message(), words); };
    if (std::any_of(asked.begin(), asked.end(), begins))
      return absl::EndsWith(event.message(), absl::StrCat(": ", reason));
  }
  return false;
}

}  // namespace fsdpd
