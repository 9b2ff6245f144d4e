#include "coordinator/admission/admission.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <functional>

#include "base/api/label_selector.h"
#include "base/limits.h"
#include "base/spec_text/rank_env.h"
#include "base/text.h"
#include "coordinator/admission/spec_shape.h"
#include "coordinator/job/job_plan.h"
#include "coordinator/request/errors.h"
#include "fsdp/plan/rules/rules.h"
#include "fsdp/plan/spec/defaults.h"

namespace fsdpd {
namespace {

// The rules do not know which variables agents allow. Without a node of this device kind there is no agent to
// ask, and the warning of the rules remains.
void JudgeEnv(const v1::JobSpec& spec, v1::Device device, const std::vector<NodeSlots>& nodes,
              Violations* violations) {
  const auto is_of_kind = [&](const NodeSlots& node) { return node.device == device; };
  if (std::none_of(nodes.begin(), nodes.end(), is_of_kind)) return;
  for (int i = 0; i < spec.env_size(); ++i) {
    const std::string field = absl::StrCat("env[", i, "].name");
    const auto warning =
        std::find_if(violations->begin(), violations->end(), [&](const Violation& violation) {
          return violation.rule == kEnvNeedsPermission && violation.field == field;
        });
    if (warning == violations->end()) continue;
    const auto allows = [&](const NodeSlots& node) {
      return is_of_kind(node) && AllowsEnv(node.env, spec.env(i).name());
    };
    if (std::any_of(nodes.begin(), nodes.end(), allows)) {
      violations->erase(warning);
    } else {
      warning->level = ViolationLevel::kError;
    }
  }
}

// As for variables, the rules do not know which agents load plug-ins and packages. Without a node of this
// kind the job waits for one that does.
void JudgePlugin(const v1::JobSpec& spec, const PlaceRequest& request, const std::vector<NodeSlots>& nodes,
                 Violations* violations) {
  bool any = false, takes = false;
  for (const NodeSlots& node : nodes) {
    any |= node.device == request.device;
    takes |= node.device == request.device && LoadsPlugin(request, node);
  }
  if (!any || takes) return;
  Violation violation;
  violation.rule = "plugin_needs_permission";
  violation.level = ViolationLevel::kError;
  violation.field = spec.model().has_package() ? "model.package.path" : "model.plugin.path";
  violation.reason = absl::StrCat("no connected agent loads ", request.plugin,
                                  ": plug-ins and packages run code as the agent's user");
  violation.fix =
      "start the agents with --plugin-dir DIR, where DIR is a directory of the nodes that holds the file";
  violations->push_back(std::move(violation));
}

// A warning only, because nodes come and go. Without a node of this kind there is nothing to check.
void JudgeLabels(const PlaceRequest& request, const std::vector<NodeSlots>& nodes, Violations* violations) {
  int64_t of_kind = 0, meet = 0;
  for (const NodeSlots& node : nodes) {
    if (node.device != request.device) continue;
    ++of_kind;
    meet += Matches(request.selector, node.labels);
  }
  if (of_kind == 0 || meet >= request.nodes) return;
  if (meet == of_kind) return;  // The job lacks nodes, not labels.
  Violation violation;
  violation.rule = "node_selector_meets_nodes";
  violation.level = ViolationLevel::kWarn;
  violation.field = "resources.node_selector";
  violation.reason =
      absl::StrCat("matches ", meet, " of ", of_kind, " ready nodes of the job's device kind (want ",
                   request.nodes, "); the job waits for more nodes");
  violation.fix =
      "use labels of existing nodes (fsdpctl nodes -o wide), or start agents with these labels (--label)";
  violations->push_back(std::move(violation));
}

// An error, as for device memory: none of the connected nodes could ever run the job.
void JudgeHostMemory(const MemoryOffer& offer, PlaceRequest request, const std::vector<NodeSlots>& nodes,
                     Plan* plan) {
  if (!offer.firm || !plan->accepted()) return;
  request.bytes_per_rank = OfferNeeded(plan->resolved, plan->memory.peak_bytes, /*margin=*/true);
  std::vector<int64_t> has;
  for (const NodeSlots& node : nodes) {
    if (CouldTake(request, node)) has.push_back(node.host_bytes);
  }
  request.host_bytes = HostBytesOfNode(*plan);
  if (CountNodes(request, nodes).idle >= request.nodes) return;
  if (static_cast<int64_t>(has.size()) < request.nodes) return;  // The job lacks nodes, not host memory.
  std::sort(has.begin(), has.end(), std::greater<>());
  Violation violation;
  violation.rule = "host_memory_over_offer";
  violation.level = ViolationLevel::kError;
  violation.field = plan->memory.offloaded_bytes > 0 ? "fsdp.offload" : "checkpoint";
  violation.reason = absl::StrCat(
      "the job needs ", HumanBytes(request.host_bytes), " of host memory per node; of ", has.size(),
      " ready nodes with enough slots, the ",
      request.nodes == 1 ? "largest has " : absl::StrCat(request.nodes, " largest have at least "),
      HumanBytes(has[request.nodes - 1]));
  violation.fix =
      plan->memory.offloaded_bytes > 0
          ? "offload fewer activations or no optimizer state, or use fewer ranks per node"
          : "disable checkpoints (they are written from a snapshot in host memory), or use fewer ranks per "
            "node";
  plan->violations.push_back(std::move(violation));
}

}  // namespace

absl::Status CheckSize(const v1::JobSpec& spec) {
  const int64_t bytes = static_cast<int64_t>(spec.ByteSizeLong());
  if (bytes <= kMaxJobSpecBytes) return absl::OkStatus();
  return BadField("spec", absl::StrCat("is too large (got ", HumanBytes(bytes), ", want at most ",
                                       HumanBytes(kMaxJobSpecBytes), ")"));
}

Examined Admission::Examine(const v1::JobSpec& spec, int64_t budget_bytes_per_rank) const {
  const Violations shape = CheckSpecShape(spec);
  // An unknown enum number is cleared from its field and reported; the rules check the rest.
  std::vector<std::string> unparsed;
  for (const Violation& violation : shape) {
    if (violation.rule == kUnknownEnum) unparsed.push_back(violation.field);
  }
  const PlaceRequest request = RequestOf(WithDefaults(spec, nullptr));
  const std::vector<NodeSlots> nodes = nodes_();
  MemoryOffer offer{budget_bytes_per_rank, /*host_bytes=*/0, /*firm=*/true};
  if (budget_bytes_per_rank <= 0) offer = OfferTo(request, nodes);
  Examined examined{plan_(spec, offer.bytes_per_rank, unparsed), LeavesPlanOpen(spec, offer)};
  Violations* violations = &examined.plan.violations;
  violations->insert(violations->begin(), shape.begin(), shape.end());
  JudgeEnv(spec, request.device, nodes, violations);
  JudgePlugin(spec, request, nodes, violations);
  JudgeLabels(request, nodes, violations);
  if (budget_bytes_per_rank <= 0) JudgeHostMemory(offer, request, nodes, &examined.plan);
  return examined;
}

PlanInputs Admission::PlanInputsOf(const v1::JobSpec& spec) const {
  const PlaceRequest request = RequestOf(WithDefaults(spec, nullptr));
  const DeviceKind device = request.device == v1::DEVICE_CUDA ? DeviceKind::kCuda : DeviceKind::kCpu;
  return {CheckSpecShape(spec), OfferTo(request, nodes_()).bytes_per_rank, device};
}

}  // namespace fsdpd
