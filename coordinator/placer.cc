#include "coordinator/placer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

namespace fsdpd {
namespace {

constexpr size_t kMaxNodesInReason = 8;
constexpr size_t kMaxJobsInReason = 4;

const char* KindOf(v1::Device device) { return device == v1::DEVICE_CPU ? "cpu" : "cuda"; }

std::string Count(int64_t n, absl::string_view noun) { return absl::StrCat(n, " ", noun, n == 1 ? "" : "s"); }

std::string Needs(const PlaceRequest& request) {
  return absl::StrCat("needs ", Count(request.nodes, "node"), " with ",
                      Count(request.ranks_per_node, absl::StrCat("free ", KindOf(request.device), " slot")),
                      request.nodes == 1 ? "" : " each");
}

std::string HoldersOf(const NodeSlots& node) {
  if (node.jobs.empty()) return "";
  std::vector<std::string> names(node.jobs.begin(),
                                 node.jobs.begin() + std::min(node.jobs.size(), kMaxJobsInReason));
  if (names.size() < node.jobs.size()) names.push_back("...");
  return absl::StrCat(" (held by ", absl::StrJoin(names, ", "), ")");
}

std::string Situation(const PlaceRequest& request, const std::vector<const NodeSlots*>& of_kind,
                      size_t others) {
  if (of_kind.empty()) {
    return others == 0 ? "no agent is connected"
                       : absl::StrCat("no registered node could take it: no ", KindOf(request.device),
                                      " agent is connected (", Count(static_cast<int64_t>(others), "agent"),
                                      " of another kind)");
  }
  std::vector<std::string> parts;
  for (const NodeSlots* node : of_kind) {
    if (parts.size() == kMaxNodesInReason) {
      parts.push_back(absl::StrCat("and ", of_kind.size() - kMaxNodesInReason, " more"));
      break;
    }
    parts.push_back(node->away ? absl::StrCat(node->name, " is away")
                               : absl::StrCat(node->name, " has ", node->free_devices.size(), " of ",
                                              node->slots, " free", HoldersOf(*node)));
  }
  return absl::StrJoin(parts, ", ");
}

// How many nodes could take their share of the ranks, were they idle.
int64_t CountAble(const PlaceRequest& request, const std::vector<const NodeSlots*>& of_kind) {
  return std::count_if(of_kind.begin(), of_kind.end(),
                       [&](const NodeSlots* node) { return node->slots >= request.ranks_per_node; });
}

// For a reason that says "more agents", not "wait".
std::string TooLargeHint(const PlaceRequest& request, int64_t able) {
  return absl::StrCat("; even when idle, only ", Count(able, "connected node"), " could take ",
                      Count(request.ranks_per_node, "rank"), ": start more or larger agents");
}

v1::Job::Placement PlacementOn(const NodeSlots& node, int64_t first_rank, int64_t ranks) {
  v1::Job::Placement placement;
  placement.set_node(node.name);
  placement.set_first_rank(static_cast<int32_t>(first_rank));
  placement.set_ranks(static_cast<int32_t>(ranks));
  for (int64_t i = 0; i < ranks; ++i) placement.add_devices(node.free_devices[i]);
  return placement;
}

}  // namespace

PlaceRequest RequestOf(const v1::JobSpec& resolved) {
  PlaceRequest request;
  const v1::Resources& resources = resolved.resources();
  request.nodes = std::max<int64_t>(1, resources.nodes());
  request.ranks_per_node = std::max<int64_t>(1, resources.ranks_per_node());
  if (resources.device() != v1::DEVICE_UNSPECIFIED) request.device = resources.device();
  return request;
}

PlaceDecision Place(const PlaceRequest& request, const std::vector<NodeSlots>& nodes) {
  std::vector<const NodeSlots*> of_kind, able;
  for (const NodeSlots& node : nodes) {
    if (node.device != request.device) continue;
    of_kind.push_back(&node);
    if (static_cast<int64_t>(node.free_devices.size()) >= request.ranks_per_node) able.push_back(&node);
  }
  const auto by_name = [](const NodeSlots* a, const NodeSlots* b) { return a->name < b->name; };
  std::sort(of_kind.begin(), of_kind.end(), by_name);

  PlaceDecision decision;
  if (static_cast<int64_t>(able.size()) < request.nodes) {
    const int64_t when_idle = CountAble(request, of_kind);
    decision.possible = when_idle >= request.nodes;
    decision.reason =
        absl::StrCat(Needs(request), "; ", Situation(request, of_kind, nodes.size() - of_kind.size()),
                     decision.possible || of_kind.empty() ? "" : TooLargeHint(request, when_idle));
    return decision;
  }
  std::sort(able.begin(), able.end(), [](const NodeSlots* a, const NodeSlots* b) {
    return std::make_pair(a->free_devices.size(), a->name) < std::make_pair(b->free_devices.size(), b->name);
  });
  able.resize(request.nodes);
  std::sort(able.begin(), able.end(), by_name);
  std::vector<std::string> names;
  for (const NodeSlots* node : able) {
    const int64_t first_rank = static_cast<int64_t>(decision.placements.size()) * request.ranks_per_node;
    decision.placements.push_back(PlacementOn(*node, first_rank, request.ranks_per_node));
    if (names.size() < kMaxNodesInReason) names.push_back(node->name);
  }
  if (names.size() < able.size()) names.push_back("...");
  decision.reason = absl::StrCat("launching ", Count(request.nodes * request.ranks_per_node, "rank"), " on ",
                                 absl::StrJoin(names, ", "));
  return decision;
}

std::string BehindReason(const PlaceRequest& request, const std::string& ahead) {
  return absl::StrCat(Needs(request), "; waits behind job ", ahead, ", which was submitted first");
}

}  // namespace fsdpd
