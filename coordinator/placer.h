// Decides where a job's ranks go, and what memory it may be planned with. Pure: a request and a snapshot in,
// placements or the reason why not out.
//
// Policy: whole nodes are not required, but every chosen node gives `ranks_per_node` slots at once, each with
// the memory that a rank needs, and the node's own that they need together; nodes with the fewest free slots
// that suffice come first (so that large holes stay for large jobs), then those with the least memory, then
// by name. A job that was launched before stays where it was, as far as it may: what its ranks read is in
// that node's memory. A node that its last attempt failed by is the last that it gets. One that is cordoned
// is none at all, as if it were not there: no slot that falls free helps who waits for it. NVLink first: a
// job of several nodes gets those of one NVLink domain where one has them, the smallest that does; before all
// of the above but the node that it failed by. Where none has, nodes whose ranks exchange within layers
// (PlaceRequest::together) are of one each. Rank numbers follow domains and node names, so neighbours in rank
// order sit together. Order among jobs is the caller's: by priority, then first come, first served; whom one
// that waits holds up is said in reservations.h (BehindReason() words that case). Jobs that no slot which
// falls free could help (PlaceDecision::possible) claim none until there are nodes for them.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/label_selector.h"
#include "coordinator/job_labels.h"
#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {

struct PlaceRequest {
  int64_t nodes = 1;
  int64_t ranks_per_node = 1;
  v1::Device device = v1::DEVICE_CUDA;
  int64_t bytes_per_rank = 0;    // That a slot must offer; 0: any slot will do.
  std::vector<std::string> env;  // Variables that a node must allow.
  bool plugin = false;     // It loads one, which a node must take. Which files there it may, its agent says.
  Selector selector = {};  // That a node's labels must meet.
  // So many nodes in a row have ranks that exchange within layers; 1: no such ranks are on two nodes.
  int64_t together = 1;
  int64_t host_bytes = 0;  // That the ranks of a node, on GPUs, keep in its own memory.
  // Where its last attempt ran, and the node of those that had better not have the next one; "" for none.
  std::set<std::string> before = {};
  std::string avoided = {};
};

struct NodeSlots {
  std::string name;
  v1::Device device = v1::DEVICE_CPU;
  std::vector<int> free_devices;  // Local device indices, ascending.
  int slots = 0;
  std::vector<std::string> jobs;  // Which hold the slots that are not free.
  bool away = false;              // It may come back within its lease; nothing is free there until then.
  int64_t bytes_per_slot = 0;     // Memory for one rank; 0: not known, and taken to be enough.
  int64_t host_bytes = 0;  // The node's own, for all its ranks; 0: as above. Not less what jobs there take.
  std::set<std::string> env;          // Patterns of --allow-env (base/rank_env.h).
  bool plugins = false;               // Whether its agent loads any.
  Labels labels;                      // Its agent's.
  std::string domain;                 // Whose nodes reach each other by NVLink; "": this one reaches none.
  std::optional<std::string> cordon;  // Why no job is placed there; not set where jobs are.
  bool measured = false;              // What measures it has the slots that are not free, and none of `jobs`.
};

struct PlaceDecision {
  std::vector<v1::Job::Placement> placements;  // Empty when the job cannot be placed now.
  std::string reason;                          // What was chosen, or what would unblock the job.
  bool possible = true;                        // Whether the nodes could take it, were they idle.

  bool placed() const { return !placements.empty(); }
};

// Whether the node could take a part of the job, were it idle.
bool CouldTake(const PlaceRequest& request, const NodeSlots& node);

// How many could, and how many can now.
struct NodeCount {
  int64_t idle = 0;
  int64_t now = 0;
};
NodeCount CountNodes(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// What a job may be planned with.
struct MemoryOffer {
  int64_t bytes_per_rank = 0;  // 0: not known.
  int64_t host_bytes = 0;  // The most that the ranks on some node may keep in its own memory; 0: not known.
  bool firm = false;       // There are nodes enough to give the former, were they idle.
};

// REQUIRES: WithDefaults() (defaults.h). Without memory, which the job's plan knows (job_plan.h).
PlaceRequest RequestOf(const v1::JobSpec& filled);

// The most memory a rank may fill so that the job can still be placed. What the request says of memory has no
// meaning here.
MemoryOffer OfferTo(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// `nodes`: those connected or away, in any order.
PlaceDecision Place(const PlaceRequest& request, const std::vector<NodeSlots>& nodes);

// Why `request`, of `job`, waits although slots may be free: `ahead` goes before it and waits for the same
// kind.
std::string BehindReason(const PlaceRequest& request, const v1::Job& ahead, const v1::Job& job);
// The same without a name, for a job far down the queue.
std::string BehindOthersReason(const PlaceRequest& request);

}  // namespace fsdpd
