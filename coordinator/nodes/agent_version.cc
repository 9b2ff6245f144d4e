#include "coordinator/nodes/agent_version.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include "base/check.h"
#include "base/spec_text/located_violation.h"
#include "base/text.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxShownBytes = 40;

bool ReadRelease(absl::string_view version, int* release) {
  return absl::SimpleAtoi(version.substr(0, version.find('.')), release);
}

}  // namespace

absl::Status CheckAgentVersion(absl::string_view agent, absl::string_view own) {
  int theirs = 0, ours = 0;
  FSDPD_CHECK(ReadRelease(own, &ours));
  if (!ReadRelease(agent, &theirs) || theirs == ours) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("agent: incompatible version (got ", Escaped(CutText(agent, kMaxShownBytes)), ", want ",
                   ours, ".x for coordinator ", own, "); ",
                   theirs < ours ? "upgrade the agent" : "upgrade the coordinator first"));
}

}  // namespace fsdpd
