#include "coordinator/schedule/waiting.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <set>

namespace fsdpd {
namespace {

using Waiting = v1::Job::Waiting;

constexpr size_t kMaxJobs = 16;
constexpr size_t kMaxNames = 8;  // In a sentence.

Waiting Of(Waiting::Code code, const std::string& remedy) {
  Waiting waiting;
  waiting.set_code(code);
  waiting.set_remedy(remedy);
  return waiting;
}

void MakeIdle(NodeSlots* node) {
  node->disconnected = false;
  node->free_devices.clear();
  for (int device = 0; device < node->slots; ++device) node->free_devices.push_back(device);
}

std::vector<NodeSlots> AllIdle(std::vector<NodeSlots> nodes) {
  for (NodeSlots& node : nodes) MakeIdle(&node);
  return nodes;
}

std::vector<NodeSlots> AllBack(std::vector<NodeSlots> nodes) {
  for (NodeSlots& node : nodes) {
    if (node.disconnected) MakeIdle(&node);
  }
  return nodes;
}

std::vector<std::string> Cordoned(const std::vector<NodeSlots>& nodes) {
  std::vector<std::string> names;
  for (const NodeSlots& node : nodes) {
    if (node.cordon.has_value()) names.push_back(node.name);
  }
  return names;
}

std::vector<NodeSlots> AllOpen(std::vector<NodeSlots> nodes) {
  for (NodeSlots& node : nodes) node.cordon.reset();
  return nodes;
}

std::string Names(std::vector<std::string> names) {
  const bool all = names.size() <= kMaxNames;
  if (!all) names.resize(kMaxNames);
  return absl::StrCat(absl::StrJoin(names, ", "), all ? "" : ", ...");
}

Waiting ForRanks(const std::vector<NodeSlots>& nodes) {
  std::set<std::string> holders;
  std::vector<std::string> measured, ends;
  for (const NodeSlots& node : nodes) {
    holders.insert(node.jobs.begin(), node.jobs.end());
    if (node.measured) measured.push_back(node.name);
  }
  const std::vector<std::string> jobs(holders.begin(), holders.end());
  if (!jobs.empty()) ends.push_back(absl::StrCat(Names(jobs), " to end or be paused"));
  if (!measured.empty()) ends.push_back(absl::StrCat("the preflight of ", Names(measured), " to end"));
  Waiting waiting =
      Of(Waiting::CODE_SLOTS, ends.empty() ? std::string("free slots") : absl::StrJoin(ends, ", or "));
  for (size_t i = 0; i < jobs.size() && i < kMaxJobs; ++i) waiting.add_jobs(jobs[i]);
  return waiting;
}

}  // namespace

Waiting WaitingToBePlaced(const PlaceRequest& request, const std::vector<NodeSlots>& nodes) {
  std::vector<NodeSlots> of_kind;
  std::vector<std::string> disconnected;
  for (const NodeSlots& node : nodes) {
    if (node.device != request.device) continue;
    of_kind.push_back(node);
    if (node.disconnected) disconnected.push_back(node.name);
  }
  const char* kind = request.device == v1::DEVICE_CPU ? "cpu" : "cuda";
  if (of_kind.empty())
    return Of(Waiting::CODE_NO_AGENT, absl::StrCat("an agent started with --device ", kind));
  if (std::vector<std::string> cordoned = Cordoned(of_kind);
      !cordoned.empty() && !Place(request, AllIdle(of_kind)).placed() &&
      Place(request, AllIdle(AllOpen(of_kind))).placed())
    return Of(Waiting::CODE_CORDONED,
              absl::StrCat(Names(std::move(cordoned)), " to be uncordoned (fsdpctl uncordon)"));
  PlaceRequest any_labels = request;
  any_labels.selector.clear();
  if (!request.selector.empty() && !Place(request, AllIdle(of_kind)).placed() &&
      Place(any_labels, AllIdle(of_kind)).placed())
    return Of(Waiting::CODE_LABELS, "agents with the labels of its resources.node_selector (--label)");
  PlaceRequest any_memory = request;
  any_memory.bytes_per_rank = any_memory.host_bytes = 0;
  if (!Place(any_memory, AllIdle(of_kind)).placed())
    return Of(Waiting::CODE_NODES,
              "more nodes, nodes with more slots, or agents that admit the job (--allow-env, --plugin-dir)");
  PlaceRequest any_host = request;
  any_host.host_bytes = 0;
  if (!Place(request, AllIdle(of_kind)).placed() && Place(any_host, AllIdle(of_kind)).placed())
    return Of(Waiting::CODE_MEMORY, "nodes with more host memory");
  // The job would fit, so its plan does not.
  if (!Place(request, AllIdle(of_kind)).placed() || Place(request, of_kind).placed())
    return Of(Waiting::CODE_MEMORY,
              "agents with more memory per rank; or submit it again to plan it for the present ones");
  if (Place(request, AllBack(of_kind)).placed())
    return Of(Waiting::CODE_NODES_NOT_READY, absl::StrCat(Names(disconnected), " to reconnect"));
  return ForRanks(of_kind);
}

Waiting WaitingBehind(const std::string& ahead) {
  Waiting waiting =
      Of(Waiting::CODE_QUEUE_ORDER, absl::StrCat("the launch of ", ahead,
                                                 ", or its pause or cancellation; jobs submitted with "
                                                 "--preemptible may use idle slots until then"));
  waiting.add_jobs(ahead);
  return waiting;
}

Waiting WaitingForTime(absl::Time until) {
  Waiting waiting = Of(Waiting::CODE_BACKOFF, "the restart delay to pass");
  waiting.set_not_before_unix_nanos(absl::ToUnixNanos(until));
  return waiting;
}

Waiting WaitingForPlan() { return Of(Waiting::CODE_PLAN, "its plan, which is being compiled"); }

Waiting WaitingForRest() {
  return Of(Waiting::CODE_SLOTS, "the remaining ranks of its last attempt to exit");
}

Waiting WaitingForAgents() {
  return Of(Waiting::CODE_NODES_NOT_READY, "agents to reconnect, at most a few seconds");
}

Waiting WaitingForDisk() { return Of(Waiting::CODE_DISK, "space on the coordinator's disk"); }

Waiting WaitingToBeResumed(const std::string& id) {
  return Of(Waiting::CODE_PAUSED, absl::StrCat("fsdpctl resume ", id));
}

}  // namespace fsdpd
