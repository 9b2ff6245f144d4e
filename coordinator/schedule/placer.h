// Scheduler decision: picks the nodes of a job and the memory that it may be planned with. Pure: maps a
// request and a snapshot to placements, or to the reason why there are none.
//
// Each chosen node provides `ranks_per_node` slots, each with the memory of a rank, and enough host memory
// for all of them. Candidates are ranked in this order:
//
//   1. The node that caused the last attempt to fail is used last.
//   2. NVLink: a job of several nodes gets nodes of one NVLink domain: the one with the most nodes of the
//      previous attempt, then the smallest. If no domain suffices, each group of PlaceRequest::together
//      nodes, whose ranks communicate within layers, is of one domain if possible.
//   3. The nodes of the previous attempt, because their page cache holds what the ranks read.
//   4. The fewest free slots that suffice, so that large free blocks remain for large jobs.
//   5. The least memory, then the name.
//
// A cordoned node is treated as absent, so slots that become free there help no job. Rank numbers follow
// domains and node names, so neighbors in rank order are close. The caller orders jobs by priority, then by
// submission. reservations.h defines which jobs a waiting job holds up; BehindReason() formats that reason.
// Jobs that do not fit even on idle nodes (PlaceDecision::possible is false) reserve nothing until enough
// nodes exist.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/api/label_selector.h"
#include "coordinator/schedule/job_labels.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct PlaceRequest {
  int64_t nodes = 1;
  int64_t ranks_per_node = 1;
  v1::Device device = v1::DEVICE_CUDA;
  int64_t bytes_per_rank = 0;    // Minimum memory of a slot; 0: any slot suffices.
  std::vector<std::string> env;  // Variables that a node must allow.
  std::string plugin = {};       // Path of the job's plug-in or package; "": none.
  Selector selector = {};        // The node's labels must match it.
  // Number of consecutive nodes whose ranks communicate within layers; 1: no such ranks are on two nodes.
  int64_t together = 1;
  int64_t host_bytes = 0;  // Host memory that the GPU ranks of a node hold together.
  // The nodes of the previous attempt, and those to avoid for the next one.
  std::set<std::string> before = {};
  std::set<std::string> avoided = {};
};

struct NodeSlots {
  std::string name;
  v1::Device device = v1::DEVICE_CPU;
  std::vector<int> free_devices;  // Local device indices, ascending.
  int slots = 0;
  std::vector<std::string> jobs;  // Jobs that hold the slots that are not free.
  bool disconnected = false;      // Disconnected within its lease; none of its slots counts as free.
  int64_t bytes_per_slot = 0;     // Memory for one rank; 0: unknown, assumed to suffice.
  int64_t host_bytes = 0;         // Host memory for all ranks, without subtracting running jobs; 0: as above.
  std::set<std::string> env;      // Patterns of --allow-env (base/spec_text/rank_env.h).
  std::vector<std::string> plugin_dirs;  // As in v1::Register; "/": unknown, and any path may be allowed.
  Labels labels;                         // The agent's labels.
  std::string domain;                    // NVLink domain: its nodes are connected by NVLink; "": none.
  std::optional<std::string> cordon;     // Reason for the cordon; not set if jobs may be placed here.
  bool measured = false;                 // A preflight holds the slots that are not free, and no job does.
};

struct PlaceDecision {
  std::vector<v1::Job::Placement> placements;  // Empty if the job cannot be placed now.
  std::string reason;    // The choice made, or the condition that would unblock the job.
  bool possible = true;  // Whether the nodes could take the job if they were idle.

  bool placed() const { return !placements.empty(); }
};

// Whether the node could take a part of the job if it were idle.
bool CouldTake(const PlaceRequest& request, const NodeSlots& node);

// Whether the node's agent allows the plug-in or package of the job, if it has one.
bool LoadsPlugin(const PlaceRequest& request, const NodeSlots& node);

// Number of nodes that could take a part of the job if they were idle, and that can now.
struct NodeCount {
  int64_t idle = 0;
  int64_t now = 0;
};
NodeCount CountNodes(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// The memory that a job may be planned with.
struct MemoryOffer {
  int64_t bytes_per_rank = 0;  // 0: unknown.
  int64_t host_bytes = 0;      // Host memory that the ranks of a node may use; 0: unknown.
  bool firm = false;           // Enough nodes offer bytes_per_rank, if they were idle.
};

// REQUIRES: WithDefaults() (defaults.h) was applied. Excludes memory, which the job's plan defines
// (job_plan.h).
PlaceRequest RequestOf(const v1::JobSpec& filled);

// Returns the largest memory per rank with which the job can still be placed. Ignores the memory in the
// request.
MemoryOffer OfferTo(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// `nodes`: connected or within their lease, in any order.
PlaceDecision Place(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// The reason why `request`, of `job`, waits although slots may be free: `ahead` has precedence and waits for
// the same kind of node.
std::string BehindReason(const PlaceRequest& request, const v1::Job& ahead, const v1::Job& job);
// The same without a job name, for jobs far down the queue.
std::string BehindOthersReason(const PlaceRequest& request);

}  // namespace fsdpd
