#include "coordinator/schedule/placer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/dot_dot.h"
#include "base/limits.h"
#include "base/spec_text/rank_env.h"
#include "base/text.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxNodesInReason = 8;
constexpr size_t kMaxJobsInReason = 4;
constexpr size_t kMaxPathInReason = 200;

const char* KindOf(v1::Device device) { return device == v1::DEVICE_CPU ? "cpu" : "cuda"; }

std::string Count(int64_t n, absl::string_view noun) { return absl::StrCat(n, " ", noun, n == 1 ? "" : "s"); }

// Whether a slot of the node has enough memory for a rank.
bool HasMemory(const PlaceRequest& request, const NodeSlots& node) {
  return node.bytes_per_slot <= 0 || node.bytes_per_slot >= request.bytes_per_rank;
}

bool HasHostMemory(const PlaceRequest& request, const NodeSlots& node) {
  return node.host_bytes <= 0 || node.host_bytes >= request.host_bytes;
}

// Returns the label that the node lacks, or what its agent does not allow, as text; "" if it allows the job.
std::string NotAllowed(const PlaceRequest& request, const NodeSlots& node) {
  const LabelRule* const broken = FirstBroken(request.selector, node.labels);
  if (broken != nullptr) return WhyNot(*broken);
  for (const std::string& name : request.env) {
    if (!AllowsEnv(node.env, name)) return absl::StrCat("does not allow env ", name);
  }
  return LoadsPlugin(request, node)
             ? ""
             : absl::StrCat("has no --plugin-dir that contains ", CutText(request.plugin, kMaxPathInReason));
}

std::string SelectorText(const Selector& selector) {
  return absl::StrJoin(selector, ",",
                       [](std::string* out, const LabelRule& rule) { absl::StrAppend(out, TextOf(rule)); });
}

// `scarce`: memory is one of the limits.
std::string Needs(const PlaceRequest& request, bool scarce = false) {
  return absl::StrCat("needs ", Count(request.nodes, "node"),
                      request.selector.empty() ? "" : absl::StrCat(" of ", SelectorText(request.selector)),
                      " with ",
                      Count(request.ranks_per_node, absl::StrCat("free ", KindOf(request.device), " slot")),
                      scarce ? absl::StrCat(" of ", HumanBytes(request.bytes_per_rank)) : "",
                      request.nodes == 1 ? "" : " each");
}

std::string HoldersOf(const NodeSlots& node) {
  if (node.jobs.empty() && !node.measured) return "";
  std::vector<std::string> names(node.jobs.begin(),
                                 node.jobs.begin() + std::min(node.jobs.size(), kMaxJobsInReason));
  if (names.size() < node.jobs.size()) names.push_back("...");
  if (node.measured) names.insert(names.begin(), "its preflight");
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
    if (node->cordon.has_value()) {
      parts.push_back(absl::StrCat(node->name, " is cordoned",
                                   node->cordon->empty() ? "" : absl::StrCat(" (", *node->cordon, ")")));
    } else if (!HasMemory(request, *node)) {
      parts.push_back(absl::StrCat(node->name, " offers ", HumanBytes(node->bytes_per_slot), " per slot"));
    } else if (!HasHostMemory(request, *node)) {
      parts.push_back(absl::StrCat(node->name, " has ", HumanBytes(node->host_bytes),
                                   " of host memory, but the job's ranks there need ",
                                   HumanBytes(request.host_bytes)));
    } else if (const std::string why = NotAllowed(request, *node); !why.empty()) {
      parts.push_back(absl::StrCat(node->name, " ", why));
    } else if (node->disconnected) {
      parts.push_back(absl::StrCat(node->name, " is not ready"));
    } else {
      parts.push_back(absl::StrCat(node->name, " has ", node->free_devices.size(), " of ", node->slots,
                                   " free", HoldersOf(*node)));
    }
  }
  return absl::StrJoin(parts, ", ");
}

// Suffix for jobs that no amount of waiting can place.
std::string TooLargeHint(const PlaceRequest& request, int64_t able, bool scarce, bool cordoned) {
  std::string hint = absl::StrCat(
      "; even when idle, ", able == 0 ? "no ready node" : absl::StrCat("only ", Count(able, "ready node")),
      " could take ", Count(request.ranks_per_node, "rank"),
      scarce ? absl::StrCat(" of ", HumanBytes(request.bytes_per_rank), " each") : "",
      cordoned ? ": uncordon a node, or add nodes" : ": add nodes", ", or nodes with more slots or memory",
      request.selector.empty() ? "" : ", with these labels");
  if (scarce) hint += ", or submit the job again to plan it for the ready nodes";
  return hint;
}

using NodeList = std::vector<const NodeSlots*>;

bool ByDomainAndName(const NodeSlots* a, const NodeSlots* b) {
  return std::tie(a->domain, a->name) < std::tie(b->domain, b->name);
}

std::map<std::string, NodeList> ByDomain(const NodeList& nodes) {
  std::map<std::string, NodeList> domains;
  for (const NodeSlots* node : nodes) {
    if (!node->domain.empty()) domains[node->domain].push_back(node);
  }
  return domains;
}

// Returns nodes of a single domain; empty if no domain has enough.
NodeList FromOneDomain(const PlaceRequest& request, const std::map<std::string, NodeList>& domains) {
  NodeList best;
  std::pair<size_t, size_t> best_cost;
  for (const auto& [name, nodes] : domains) {
    if (static_cast<int64_t>(nodes.size()) < request.nodes) continue;
    const NodeList first(nodes.begin(), nodes.begin() + request.nodes);
    size_t elsewhere = 0;
    for (const NodeSlots* node : first) elsewhere += request.before.count(node->name) == 0;
    const std::pair<size_t, size_t> cost = {elsewhere, nodes.size()};
    if (!best.empty() && cost >= best_cost) continue;
    best = first;
    best_cost = cost;
  }
  std::sort(best.begin(), best.end(), ByDomainAndName);
  return best;
}

// Fills groups of nodes whose ranks communicate within layers from single domains, the largest domains first,
// as far as possible; other nodes follow.
NodeList ByGroups(const PlaceRequest& request, const NodeList& able,
                  const std::map<std::string, NodeList>& domains) {
  NodeList chosen;
  std::vector<const NodeList*> largest;
  for (const auto& [name, nodes] : domains) largest.push_back(&nodes);
  std::stable_sort(largest.begin(), largest.end(),
                   [](const NodeList* a, const NodeList* b) { return a->size() > b->size(); });
  for (const NodeList* nodes : largest) {
    const int64_t left = request.nodes - static_cast<int64_t>(chosen.size());
    const int64_t groups = std::min(left, static_cast<int64_t>(nodes->size())) / request.together;
    NodeList whole(nodes->begin(), nodes->begin() + groups * request.together);
    std::sort(whole.begin(), whole.end(), ByDomainAndName);
    chosen.insert(chosen.end(), whole.begin(), whole.end());
  }
  const std::set<const NodeSlots*> grouped(chosen.begin(), chosen.end());
  NodeList others;
  for (const NodeSlots* node : able) {
    if (static_cast<int64_t>(chosen.size() + others.size()) == request.nodes) break;
    if (grouped.count(node) == 0) others.push_back(node);
  }
  std::sort(others.begin(), others.end(), ByDomainAndName);
  chosen.insert(chosen.end(), others.begin(), others.end());
  return chosen;
}

// Returns the nodes in rank order. `able` is sorted by preference and has enough nodes.
NodeList Choose(const PlaceRequest& request, NodeList able) {
  // `avoided` sort last. Drop them before NVLink is considered: a job that fails there each time gains
  // nothing by it.
  while (static_cast<int64_t>(able.size()) > request.nodes && request.avoided.count(able.back()->name) != 0)
    able.pop_back();
  if (request.nodes > 1) {
    const std::map<std::string, NodeList> domains = ByDomain(able);
    NodeList chosen = FromOneDomain(request, domains);
    if (chosen.empty() && request.together > 1) chosen = ByGroups(request, able, domains);
    if (!chosen.empty()) return chosen;
  }
  NodeList chosen(able.begin(), able.begin() + request.nodes);
  std::sort(chosen.begin(), chosen.end(), ByDomainAndName);
  return chosen;
}

std::string DomainWords(const NodeList& chosen) {
  const std::string& domain = chosen.front()->domain;
  const bool one = std::all_of(chosen.begin(), chosen.end(),
                               [&](const NodeSlots* node) { return node->domain == domain; });
  return chosen.size() < 2 || domain.empty() || !one ? "" : absl::StrCat(" of NVLink domain ", domain);
}

// Number of consecutive nodes whose ranks communicate within layers: the product of the innermost axes
// (fsdp/plan/mesh/mesh.h), in groups that start at a node boundary. The spec may not have been validated yet.
int64_t NodesTogether(const v1::JobSpec& filled) {
  const int64_t nodes = filled.resources().nodes(), ranks = filled.resources().ranks_per_node();
  if (ranks < 1 || ranks > kMaxWorld) return 1;
  int64_t group = 1;
  for (const int64_t size :
       {filled.parallel().tensor(), filled.parallel().context(), filled.parallel().expert()}) {
    if (size < 1 || size > kMaxWorld) return 1;
    group *= size;
  }
  return std::clamp<int64_t>(std::lcm(group, ranks) / ranks, 1, std::max<int64_t>(nodes, 1));
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

bool LoadsPlugin(const PlaceRequest& request, const NodeSlots& node) {
  return request.plugin.empty() ||
         std::any_of(node.plugin_dirs.begin(), node.plugin_dirs.end(),
                     [&](const std::string& dir) { return IsBelow(request.plugin, dir); });
}

bool CouldTake(const PlaceRequest& request, const NodeSlots& node) {
  return !node.cordon.has_value() && node.device == request.device && node.slots >= request.ranks_per_node &&
         HasMemory(request, node) && HasHostMemory(request, node) && NotAllowed(request, node).empty();
}

NodeCount CountNodes(const PlaceRequest& request, const std::vector<NodeSlots>& nodes) {
  NodeCount count;
  for (const NodeSlots& node : nodes) {
    if (!CouldTake(request, node)) continue;
    ++count.idle;
    if (static_cast<int64_t>(node.free_devices.size()) >= request.ranks_per_node) ++count.now;
  }
  return count;
}

PlaceRequest RequestOf(const v1::JobSpec& filled) {
  const v1::Resources& resources = filled.resources();
  PlaceRequest request = {resources.nodes(), resources.ranks_per_node(), resources.device(), 0, {}};
  const v1::Model& model = filled.model();
  const std::filesystem::path plugin = model.has_package() ? model.package().path() : model.plugin().path();
  request.plugin = plugin.lexically_normal();
  // A rule rejects invalid ones.
  request.selector = ParseSelector(resources.node_selector()).value_or(Selector());
  request.together = NodesTogether(filled);
  for (const v1::Variable& variable : filled.env()) {
    if (!WhyNeedsAllowEnv(variable.name()).empty()) request.env.push_back(variable.name());
  }
  return request;
}

MemoryOffer OfferTo(const PlaceRequest& request, const std::vector<NodeSlots>& nodes) {
  constexpr int64_t kNotKnown = std::numeric_limits<int64_t>::max();
  PlaceRequest any_memory = request;
  any_memory.bytes_per_rank = any_memory.host_bytes = 0;
  std::vector<int64_t> offers;
  MemoryOffer offer;
  for (const NodeSlots& node : nodes) {
    if (node.disconnected || !CouldTake(any_memory, node)) continue;
    offers.push_back(node.bytes_per_slot > 0 ? node.bytes_per_slot : kNotKnown);
    offer.host_bytes = std::max(offer.host_bytes, node.host_bytes);
  }
  if (offers.empty() || request.nodes < 1) return {};
  std::sort(offers.begin(), offers.end(), std::greater<>());
  offer.firm = static_cast<int64_t>(offers.size()) >= request.nodes;
  // A job of n nodes can use the n nodes with the most memory that have enough slots, so the n-th of them
  // bounds the memory per rank. With fewer than n such nodes, more may still connect with as much memory as
  // the best present one, so only a plan that fits none of them is rejected.
  const int64_t bytes = offers[offer.firm ? request.nodes - 1 : 0];
  offer.bytes_per_rank = bytes == kNotKnown ? 0 : bytes;
  return offer;
}

PlaceDecision Place(const PlaceRequest& request, const std::vector<NodeSlots>& nodes) {
  NodeList of_kind, able;
  int64_t when_idle = 0;
  bool scarce = false, cordoned = false;
  for (const NodeSlots& node : nodes) {
    if (node.device != request.device) continue;
    of_kind.push_back(&node);
    cordoned |= node.cordon.has_value();
    scarce |= !HasMemory(request, node);
    if (!CouldTake(request, node)) continue;
    ++when_idle;
    if (static_cast<int64_t>(node.free_devices.size()) >= request.ranks_per_node) able.push_back(&node);
  }
  const auto by_name = [](const NodeSlots* a, const NodeSlots* b) { return a->name < b->name; };
  std::sort(of_kind.begin(), of_kind.end(), by_name);

  PlaceDecision decision;
  if (static_cast<int64_t>(able.size()) < request.nodes) {
    decision.possible = when_idle >= request.nodes;
    decision.reason = absl::StrCat(
        Needs(request, scarce), "; ", Situation(request, of_kind, nodes.size() - of_kind.size()),
        decision.possible || of_kind.empty() ? "" : TooLargeHint(request, when_idle, scarce, cordoned));
    return decision;
  }
  const auto rank_of = [&](const NodeSlots* node) {
    const bool elsewhere = request.before.count(node->name) == 0;
    return std::make_tuple(request.avoided.count(node->name) != 0, elsewhere, node->free_devices.size(),
                           node->bytes_per_slot, node->name);
  };
  std::sort(able.begin(), able.end(),
            [&](const NodeSlots* a, const NodeSlots* b) { return rank_of(a) < rank_of(b); });
  const NodeList chosen = Choose(request, std::move(able));
  std::vector<std::string> names;
  for (const NodeSlots* node : chosen) {
    const int64_t first_rank = static_cast<int64_t>(decision.placements.size()) * request.ranks_per_node;
    decision.placements.push_back(PlacementOn(*node, first_rank, request.ranks_per_node));
    if (names.size() < kMaxNodesInReason) names.push_back(node->name);
  }
  if (names.size() < chosen.size()) names.push_back("...");
  decision.reason = absl::StrCat("launching ", Count(request.nodes * request.ranks_per_node, "rank"), " on ",
                                 absl::StrJoin(names, ", "), DomainWords(chosen));
  return decision;
}

std::string BehindReason(const PlaceRequest& request, const v1::Job& ahead, const v1::Job& job) {
  const int64_t priority = ahead.spec().priority();
  return absl::StrCat(Needs(request), "; waits behind job ", ahead.id(), ", which ",
                      priority > job.spec().priority() ? absl::StrCat("has priority ", priority)
                                                       : std::string("was submitted first"));
}

std::string BehindOthersReason(const PlaceRequest& request) {
  return absl::StrCat(Needs(request), "; waits behind other jobs in the queue");
}

}  // namespace fsdpd
