#include "coordinator/job/directory_owner.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>

#include "coordinator/job/job_machine.h"

namespace fsdpd {
namespace {

int64_t SavedStep(const v1::Job& job) {
  return job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
}

// Whether `job` used the directory after the end of `ended`, and not before. Earlier use is harmless: `ended`
// was admitted after it, and owned the directory since.
bool TookOverAfter(const v1::Job& job, const v1::Job& ended) {
  if (job.create_unix_nanos() >= ended.end_unix_nanos()) return true;
  return !job.checkpoints().empty() && job.checkpoints().rbegin()->unix_nanos() >= ended.end_unix_nanos();
}

std::string Is(const v1::Job& job) {
  return absl::StrCat("job ", job.id(), ", which is ", absl::AsciiStrToLower(ShortName(job.state())));
}

}  // namespace

std::string DirectoryOf(const v1::JobSpec& spec) {
  const std::string& dir = spec.checkpoint().dir();
  if (dir.empty()) return "";
  std::string directory;
  for (const absl::string_view part : absl::StrSplit(dir, '/', absl::SkipEmpty())) {
    if (part != ".") absl::StrAppend(&directory, "/", part);
  }
  return directory.empty() ? "/" : directory;
}

Violation DirectoryIsTaken(const v1::Job& holder) {
  Violation violation;
  violation.rule = "checkpoint_dir_taken";
  violation.field = "checkpoint.dir";
  violation.reason = absl::StrCat(DirectoryOf(holder.spec()), " belongs to ", Is(holder),
                                  "; checkpoints of a second job would prevent it from resuming");
  const std::string ends = absl::StrCat("end that job first: fsdpctl cancel ", holder.id(), " --wait");
  violation.fix = absl::StrCat("choose another directory, or ",
                               holder.state() == v1::JOB_STATE_CANCELLING ? "wait until it has ended" : ends);
  return violation;
}

std::string WhyDirectoryIsLost(const v1::Job& ended, const std::vector<v1::Job>& sharing) {
  const std::string directory = DirectoryOf(ended.spec());
  const int64_t saved = SavedStep(ended);
  // If it started from a foreign checkpoint, only its ranks know the step.
  const bool begins_elsewhere = saved == 0 && !ended.spec().checkpoint().load().empty();
  for (const v1::Job& other : sharing) {
    if (other.id() == ended.id()) continue;
    if (!IsEnded(other.state())) {
      return absl::StrCat("its checkpoint.dir ", directory, " belongs to ", Is(other),
                          "; retry this job when that one has ended");
    }
    if (begins_elsewhere || SavedStep(other) <= saved || !TookOverAfter(other, ended)) continue;
    const std::string here = saved > 0 ? absl::StrCat(", `fsdpctl submit --from ", ended.id(), "@", saved,
                                                      "` with another checkpoint.dir from the older one")
                                       : std::string();
    return absl::StrCat(
        "job ", other.id(), " has taken its checkpoint.dir ", directory, " and saved step ", SavedStep(other),
        " there, after ", saved > 0 ? absl::StrCat("step ", saved, " of this job") : "the start of this job",
        "; `fsdpctl submit --from ", other.id(), "` resumes from the newer checkpoint", here,
        "; or move the checkpoints of ", other.id(), " elsewhere and `fsdpctl delete ", other.id(), "`");
  }
  return "";
}

}  // namespace fsdpd
