#include "coordinator/job/job_warnings.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <string>

#include "base/text.h"
#include "coordinator/job/job_machine.h"

namespace fsdpd {

bool TakeWarnings(const v1::StepReport& report, absl::Time now, v1::Job* job) {
  bool any = false;
  for (const std::string& text : report.warnings()) {
    const std::string warning = CutText(text, kMaxJobWarningBytes);
    const auto& known = job->warnings();
    if (known.size() >= kMaxJobWarnings || std::count(known.begin(), known.end(), warning) > 0) continue;
    job->add_warnings(warning);
    job->set_revision(job->revision() + 1);
    AddEvent(v1::EVENT_KIND_WARNING, absl::StrCat("warning: ", warning), now, job);
    any = true;
  }
  return any;
}

}  // namespace fsdpd
