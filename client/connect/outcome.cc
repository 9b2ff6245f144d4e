#include "client/connect/outcome.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "base/net/connect_error.h"
#include "base/process/error_line.h"
#include "client/connect/coordinator_client.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

namespace {

// From the coordinator, or from a command that searched the list of nodes.
bool IsUnknownNode(const absl::Status& status) {
  return ReasonOf(status) == "NODE_NOT_FOUND" || absl::StartsWith(status.message(), "no node ");
}

// Hint about the command that lists the existing jobs or nodes.
const char* HintOf(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  const bool of_flag = absl::StartsWith(status.message(), "--");
  // The job exists.
  for (const char* of_job :
       {"ATTEMPT_NOT_FOUND", "EVIDENCE_NOT_FOUND", "STEP_TIMELINE_NOT_FOUND", "TRACE_NOT_FOUND"}) {
    if (reason == of_job) return "";
  }
  if (of_flag) return "";
  return IsUnknownNode(status) ? "; `fsdpctl nodes` lists the nodes" : "; `fsdpctl get` lists the jobs";
}

}  // namespace

int ReportError(const absl::Status& status, const std::string& address, Console* console,
                const std::string& job) {
  std::string message;
  for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    absl::StrAppend(&message, message.empty() ? "" : "\n", Escaped(std::string(line)));
  }
  const std::string reason = ReasonOf(status);
  std::string id = reason.empty() ? absl::StatusCodeToString(status.code()) : reason;
  int code = kExitFailed;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      code = kExitUnavailable;
      // A status with a reason is from the coordinator. One without is a connection error of gRPC.
      if (!reason.empty()) break;
      if (NothingListens(message)) {
        id = "COORDINATOR_UNREACHABLE";
        message += "; is it running? start one with fsdpd-coordinator, or set --server/FSDPD_SERVER";
      }
      message = absl::StrCat("cannot reach the coordinator at ", address, ": ", message);
      break;
    case absl::StatusCode::kDeadlineExceeded:
      code = kExitTimeout;
      message = absl::StrCat("the coordinator at ", address,
                             " did not answer in time: it is busy or blocked; increase --timeout SECONDS");
      if (MayHaveTakenEffect(status))
        message += "; the call may have taken effect, check before you repeat it";
      break;
    case absl::StatusCode::kNotFound:
      code = kExitNotFound;
      if (IsUnknownNode(status)) id = "NODE_NOT_FOUND";
      message += HintOf(status);
      break;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    case absl::StatusCode::kInvalidArgument:
      code = reason == "INVALID_SPEC" ? kExitSpecRefused : kExitUsage;
      break;
    default:
      break;
  }
  console->err << "fsdpctl: " << (job.empty() ? "" : absl::StrCat(Escaped(job), ": "))
               << WithErrorId(message, id) << "\n";
  return code;
}

int ReportViolations(const LocatedViolations& violations, Console* console) {
  int code = kExitOk;
  for (const LocatedViolation& fault : violations) {
    console->err << Render(fault) << "\n";
    if (fault.violation.level == ViolationLevel::kError) code = kExitSpecRefused;
  }
  return code;
}

v1::ValidateJobResponse ToProto(const LocatedViolations& violations) {
  v1::ValidateJobResponse response;
  for (const LocatedViolation& fault : violations) {
    v1::Violation* proto = response.add_violations();
    *proto = ToProto(fault.violation);
    proto->set_file(fault.place.file);
    proto->set_line(fault.place.line);
    proto->set_column(fault.place.column);
  }
  return response;
}

Violation ToViolation(const v1::Violation& fault) {
  const ViolationLevel level = fault.severity() == v1::SEVERITY_WARN     ? ViolationLevel::kWarn
                               : fault.severity() == v1::SEVERITY_ADJUST ? ViolationLevel::kAdjust
                                                                         : ViolationLevel::kError;
  return {fault.rule(), level, fault.field(), fault.reason(), fault.fix(), fault.before(), fault.after()};
}

int ExitCodeOf(v1::JobState ended) { return ended == v1::JOB_STATE_SUCCEEDED ? kExitOk : kExitJobFailed; }

}  // namespace fsdpd
