#include "coordinator/attempt/launch_waits.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstddef>

namespace fsdpd {
namespace {

// The reason is stored with the job and shown in a table, and the cluster may have thousands of nodes.
constexpr size_t kMaxNamed = 8;

std::string NamesOf(const std::vector<std::string>& nodes) {
  const auto end = nodes.begin() + static_cast<std::ptrdiff_t>(std::min(nodes.size(), kMaxNamed));
  const std::string names = absl::StrJoin(nodes.begin(), end, ", ");
  return nodes.size() <= kMaxNamed ? names : absl::StrCat(names, " and ", nodes.size() - kMaxNamed, " more");
}

}  // namespace

void LaunchWaits::Sent(const std::string& node, bool acknowledges, absl::Time now) {
  waits_[node] = {acknowledges, now, now};
}

void LaunchWaits::RestartWaits(absl::Time now) {
  for (auto& [node, wait] : waits_) wait.since = wait.sent_last = now;
}

std::vector<std::string> LaunchWaits::TakeDue(absl::Time now) {
  std::vector<std::string> due;
  for (auto& [node, wait] : waits_) {
    if (!wait.acknowledges || now - wait.sent_last < kResendLaunchEvery) continue;
    wait.sent_last = now;
    due.push_back(node);
  }
  return due;
}

bool LaunchWaits::Expired(const std::string& node, absl::Time now) const {
  const auto wait = waits_.find(node);
  return wait != waits_.end() && wait->second.acknowledges &&
         now - wait->second.since >= kLaunchAnsweredWithin;
}

LateLaunches LaunchWaits::Late(absl::Time now) const {
  std::vector<std::string> late, older;
  for (const auto& [node, wait] : waits_) {
    if (wait.acknowledges && now - wait.since >= kResendLaunchEvery) late.push_back(node);
    if (!wait.acknowledges && now - wait.since >= kOlderAgentSilentFor) older.push_back(node);
  }
  LateLaunches launches;
  if (late.size() + older.size() == 1) launches.node = late.empty() ? older[0] : late[0];
  // An older agent may be restoring a large checkpoint, so the nodes that will fail the attempt come first.
  if (!late.empty()) {
    launches.reason = absl::StrCat(kLaunchNotAcknowledged, NamesOf(late), "; resending it every ",
                                   absl::FormatDuration(kResendLaunchEvery), ", the attempt fails after ",
                                   absl::FormatDuration(kLaunchAnsweredWithin));
  } else if (!older.empty()) {
    launches.reason = absl::StrCat(kLaunchNotAcknowledged, NamesOf(older),
                                   ", of an older release that cannot acknowledge it; its ranks have not "
                                   "reported anything for ",
                                   absl::FormatDuration(kOlderAgentSilentFor));
  }
  return launches;
}

}  // namespace fsdpd
