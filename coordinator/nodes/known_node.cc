#include "coordinator/nodes/known_node.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>

#include <algorithm>

#include "base/text.h"
#include "coordinator/schedule/job_labels.h"

namespace fsdpd {
namespace {

// Applies today's limits of a registration: an older release may have stored longer texts.
std::string Bounded(const std::string& text) { return CutText(absl::CHexEscape(text), kMaxRegisterText); }

}  // namespace

const char* StateOf(const NodeView& view) {
  if (view.connected) return "ready";
  if (view.left) return "left";
  return view.awaited ? "not-ready" : "lost";
}

v1::Node NodeOf(const NodeView& view, const Clock& clock) {
  v1::Node node;
  node.set_name(view.info.node());
  node.set_connected(view.connected);
  node.set_left(view.left);
  node.set_not_ready(view.awaited);
  node.set_device(view.info.device());
  node.set_slots(view.info.slots());
  node.set_free_slots(view.connected ? view.free_slots : 0);
  node.set_address(view.address);
  node.set_metrics_endpoint(view.info.metrics_endpoint());
  node.set_last_seen_unix_nanos(absl::ToUnixNanos(clock.WallOf(view.last_seen)));
  node.set_version(view.info.version());
  node.set_memory_bytes_per_slot(view.info.memory_bytes_per_slot());
  node.set_host_memory_bytes(view.info.host_memory_bytes());
  *node.mutable_labels() = view.info.labels();
  node.set_nvlink_domain(view.info.nvlink_domain());
  for (const std::string& job : view.unconfirmed_jobs) node.add_unconfirmed_jobs(job);
  node.set_revoked_serial(view.revoked_serial);
  return node;
}

NodeView ViewOf(const v1::Node& node, absl::Time date, const Clock& clock) {
  NodeView view;
  view.info.set_node(node.name());
  view.info.set_device(node.device());
  view.info.set_slots(node.slots());
  view.info.set_metrics_endpoint(Bounded(node.metrics_endpoint()));
  view.info.set_version(Bounded(node.version()));
  view.info.set_memory_bytes_per_slot(node.memory_bytes_per_slot());
  view.info.set_host_memory_bytes(node.host_memory_bytes());
  if (CheckedLabels(node.labels()).ok()) *view.info.mutable_labels() = node.labels();
  if (CheckLabelValue(node.nvlink_domain()).ok()) view.info.set_nvlink_domain(node.nvlink_domain());
  view.address = Bounded(node.address());
  view.left = node.left();
  view.unconfirmed_jobs.assign(node.unconfirmed_jobs().begin(), node.unconfirmed_jobs().end());
  // Earlier releases stored it in lower case, without a leading zero.
  view.revoked_serial = absl::AsciiStrToUpper(Bounded(node.revoked_serial()));
  if (view.revoked_serial.size() % 2 != 0) view.revoked_serial.insert(0, "0");
  const absl::Duration ago = date - absl::FromUnixNanos(node.last_seen_unix_nanos());
  view.last_seen = clock.Now() - std::max(ago, absl::Seconds(1));
  return view;
}

}  // namespace fsdpd
