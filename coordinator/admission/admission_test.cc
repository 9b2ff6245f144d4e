#include "coordinator/admission/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

std::set<std::string> ErrorFields(const Plan& plan) {
  std::set<std::string> fields;
  for (const Violation& violation : plan.violations) {
    if (violation.level == ViolationLevel::kError) fields.insert(violation.field);
  }
  return fields;
}

NodeSlots Node(const std::string& name, int64_t bytes_per_slot, v1::Device device = v1::DEVICE_CPU) {
  NodeSlots node;
  node.name = name;
  node.device = device;
  node.slots = 1;
  node.free_devices = {0};
  node.bytes_per_slot = bytes_per_slot;
  return node;
}

Admission With(std::vector<NodeSlots> nodes) {
  return Admission([nodes = std::move(nodes)] { return nodes; });
}

constexpr int64_t kPlenty = int64_t{1} << 30;
constexpr int64_t kTooLittle = 4096;

TEST(Admission, AcceptsValidSpecWithItsMemory) {
  const Examined examined = With({}).Examine(TinySpec());
  EXPECT_TRUE(examined.plan.accepted());
  EXPECT_GT(examined.plan.memory.peak_bytes, 0);
  EXPECT_TRUE(examined.open) << "the memory of its nodes is unknown";
}

TEST(Admission, RejectsSpecThatExceedsAllNodes) {
  EXPECT_FALSE(With({Node("a", kTooLittle)}).Examine(TinySpec()).plan.accepted());
  EXPECT_TRUE(With({Node("a", kTooLittle, v1::DEVICE_CUDA)}).Examine(TinySpec()).plan.accepted());
}

TEST(Admission, SmallerNodeDoesNotRejectJob) {
  const Examined examined = With({Node("a", kTooLittle), Node("b", kPlenty)}).Examine(TinySpec());
  EXPECT_TRUE(examined.plan.accepted());
  EXPECT_FALSE(examined.open);
  EXPECT_EQ(examined.plan.resolved.resources().memory_budget_bytes(), kPlenty);
}

TEST(Admission, LargerNodeDoesNotAcceptJob) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->set_nodes(2);
  EXPECT_FALSE(With({Node("a", kTooLittle), Node("b", kPlenty)}).Examine(spec).plan.accepted());
  EXPECT_TRUE(With({Node("a", kPlenty), Node("b", kPlenty)}).Examine(spec).plan.accepted());
}

TEST(Admission, LeavesPlanOpenWithTooFewNodes) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->set_nodes(2);
  EXPECT_TRUE(With({Node("a", kPlenty)}).Examine(spec).open);
  spec.mutable_resources()->set_memory_budget_bytes(kPlenty);
  EXPECT_FALSE(With({Node("a", kPlenty)}).Examine(spec).open) << "the budget is the spec's own";
}

TEST(Admission, UsesTheGivenMemoryBudget) {
  EXPECT_EQ(With({Node("a", 2 * kPlenty)})
                .Examine(TinySpec(), kPlenty)
                .plan.resolved.resources()
                .memory_budget_bytes(),
            kPlenty);
}

TEST(Admission, UnsetDeviceMeansCuda) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->clear_device();
  EXPECT_FALSE(With({Node("a", kTooLittle, v1::DEVICE_CUDA)}).Examine(spec).plan.accepted());
  EXPECT_TRUE(With({Node("a", kTooLittle)}).Examine(spec).plan.accepted());
}

TEST(Admission, AgentsDecideOnUnknownVariables) {
  v1::JobSpec spec = TinySpec();
  spec.add_env()->set_name("NCCL_DEBUG");
  spec.add_env()->set_name("CUDA_CACHE_PATH");
  const auto violations = [&](std::vector<NodeSlots> nodes) {
    return With(std::move(nodes)).Examine(spec).plan.violations;
  };
  NodeSlots allows = Node("a", kPlenty);
  allows.env = {"CUDA_CACHE_*"};
  EXPECT_TRUE(violations({allows, Node("b", kPlenty)}).empty());
  const Violations refused = violations({Node("b", kPlenty)});
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].level, ViolationLevel::kError);
  EXPECT_EQ(refused[0].field, "env[1].name");
  EXPECT_THAT(refused[0].fix, ::testing::HasSubstr("--allow-env CUDA_CACHE_PATH"));
  allows.device = v1::DEVICE_CUDA;
  ASSERT_EQ(violations({allows}).size(), 1u);
  EXPECT_EQ(violations({allows})[0].level, ViolationLevel::kWarn) << "no cpu node is connected";
}

TEST(Admission, ReportsShapeAndRuleViolationsTogether) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_fsdp()->set_strategy(static_cast<v1::Strategy>(77));
  spec.set_name("Not A Name");
  const Plan plan = With({}).Examine(spec).plan;
  EXPECT_FALSE(plan.accepted());
  EXPECT_THAT(ErrorFields(plan), ::testing::IsSupersetOf({"fsdp.strategy", "name"}));
}

TEST(Admission, ReportsUnknownEnumNumberOnce) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_fsdp()->set_strategy(static_cast<v1::Strategy>(77));
  spec.mutable_precision()->set_compute(static_cast<v1::DType>(77));
  const Plan plan = With({}).Examine(spec).plan;
  EXPECT_EQ(plan.violations.size(), 2u);
  EXPECT_FALSE(plan.accepted());
}

TEST(Admission, RejectsOversizedSpecs) {
  v1::JobSpec spec = TinySpec();
  EXPECT_TRUE(CheckSize(spec).ok());
  spec.mutable_checkpoint()->set_dir(std::string(kMaxJobSpecBytes, 'x'));
  EXPECT_EQ(CheckSize(spec).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Admission, PluginNeedsAgentsThatLoadPlugins) {
  v1::JobSpec spec = TinySpec();
  std::string field = "model.plugin.path";
  spec.mutable_model()->mutable_plugin()->set_path("/plugins/mine.so");
  const auto refusal = [&](std::vector<NodeSlots> nodes) {
    std::string fix;
    for (const Violation& violation : With(std::move(nodes)).Examine(spec).plan.violations) {
      if (violation.rule != "plugin_needs_permission") continue;
      EXPECT_EQ(violation.level, ViolationLevel::kError);
      EXPECT_EQ(violation.field, field);
      fix = violation.fix;
    }
    return fix;
  };
  EXPECT_THAT(refusal({Node("a", kPlenty)}), ::testing::HasSubstr("--plugin-dir DIR"));
  NodeSlots takes = Node("b", kPlenty);
  takes.plugin_dirs = {"/plugins"};
  EXPECT_EQ(refusal({Node("a", kPlenty), takes}), "");
  EXPECT_EQ(refusal({}), "");
  spec.mutable_model()->mutable_plugin()->set_path("/other/mine.so");
  EXPECT_NE(refusal({takes}), "");
  spec.mutable_model()->mutable_plugin()->set_path("/plugins/mine.so");
  takes.device = v1::DEVICE_CUDA;
  EXPECT_NE(refusal({Node("a", kPlenty), takes}), "") << "that one runs other jobs";
  field = "model.package.path";
  spec.mutable_model()->mutable_package()->set_path("/plugins/mine.fsdpd");
  EXPECT_THAT(refusal({Node("a", kPlenty)}), ::testing::HasSubstr("--plugin-dir DIR"));
}

TEST(Admission, RejectsHostMemoryAboveEveryNode) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->set_device(v1::DEVICE_CUDA);
  spec.mutable_fsdp()->mutable_offload()->set_optimizer(true);
  constexpr int64_t kLarge = int64_t{80} << 30;
  NodeSlots small = Node("a", kLarge, v1::DEVICE_CUDA), large = Node("b", kLarge, v1::DEVICE_CUDA);
  const auto refusal = [&](std::vector<NodeSlots> nodes) {
    const Examined examined = With(std::move(nodes)).Examine(spec);
    for (const Violation& violation : examined.plan.violations) {
      if (violation.rule == "host_memory_over_offer")
        return absl::StrCat(violation.field, ": ", violation.reason);
    }
    EXPECT_TRUE(examined.plan.accepted());
    return std::string();
  };
  EXPECT_EQ(refusal({small}), "") << "unknown memory";
  small.host_bytes = kTooLittle;
  large.host_bytes = kLarge;
  EXPECT_THAT(refusal({small}), ::testing::HasSubstr("the largest has 4.00 KiB"));
  EXPECT_THAT(refusal({small}), ::testing::StartsWith("fsdp.offload: "));
  EXPECT_EQ(refusal({small, large}), "");
  NodeSlots slight = Node("c", kTooLittle, v1::DEVICE_CUDA);
  slight.host_bytes = kLarge;
  EXPECT_NE(refusal({small, slight}), "") << "its GPU is too small for the plan";
  spec.mutable_resources()->set_nodes(2);
  EXPECT_THAT(refusal({small, large}), ::testing::HasSubstr("the 2 largest have at least 4.00 KiB"));
  EXPECT_EQ(refusal({small}), "") << "more nodes may connect";
}

TEST(Admission, CountsSnapshotsOfFirstReplicaOnly) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->set_device(v1::DEVICE_CUDA);
  spec.mutable_resources()->set_ranks_per_node(2);
  spec.mutable_train()->set_global_batch(4);
  spec.mutable_checkpoint()->set_dir("/checkpoints");
  spec.mutable_checkpoint()->set_every_steps(1);
  const Plan sharded = MakePlan(spec, 0);
  ASSERT_TRUE(sharded.accepted()) << sharded.violations[0].reason;
  EXPECT_EQ(HostBytesOfNode(sharded), 2 * sharded.memory.host_bytes);
  spec.mutable_fsdp()->set_strategy(v1::STRATEGY_NO_SHARD);
  const Plan whole = MakePlan(spec, 0);
  EXPECT_EQ(HostBytesOfNode(whole), whole.memory.host_bytes) << "only rank 0 saves";
}

TEST(Admission, WarnsIfTooFewNodesHaveTheLabels) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_resources()->set_node_selector("gpu=h200");
  const auto warning = [&](std::vector<NodeSlots> nodes) {
    std::string reason;
    const Examined examined = With(std::move(nodes)).Examine(spec);
    EXPECT_TRUE(examined.plan.accepted());
    for (const Violation& violation : examined.plan.violations) {
      if (violation.rule != "node_selector_meets_nodes") continue;
      EXPECT_EQ(violation.level, ViolationLevel::kWarn);
      EXPECT_EQ(violation.field, "resources.node_selector");
      reason = violation.reason;
    }
    return reason;
  };
  NodeSlots labelled = Node("b", kPlenty);
  v1::Label* label = labelled.labels.Add();
  label->set_key("gpu");
  label->set_value("h200");
  EXPECT_EQ(warning({Node("a", kPlenty)}),
            "matches 0 of 1 ready nodes of the job's device kind (want 1); the job waits for more nodes");
  EXPECT_EQ(warning({Node("a", kPlenty), labelled}), "");
  EXPECT_EQ(warning({}), "") << "no node is connected";
  labelled.device = v1::DEVICE_CUDA;
  EXPECT_NE(warning({Node("a", kPlenty), labelled}), "") << "that one runs other jobs";
}

}  // namespace
}  // namespace fsdpd
