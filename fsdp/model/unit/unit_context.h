// A unit's access to the other ranks of its model, and to the loss. It is a unit's only way to communicate,
// so the plan knows what a unit sends: UnitFacts::exchanges lists the groups and sizes, and the context
// rejects anything that is not listed. A plug-in's description cannot declare exchanges. The context also
// lets units other than the last one add to the loss and report routing statistics.
//
// Call order: within a call of the unit, in the same order on all ranks of the group. Thread safety: that of
// the unit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "fsdp/plan/mesh/mesh.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {

class UnitContext {
 public:
  virtual ~UnitContext() = default;

  virtual int64_t SizeOf(Group group) const = 0;
  // This rank's index in the group.
  virtual int64_t IndexIn(Group group) const = 0;

  // Collectives are ordered with the lane that the unit's call runs on and take contiguous tensors. An error
  // is recorded in the context and fails the step after the call; results are undefined until then.
  //
  // Sums `values`, fp32, over the group in place.
  virtual void AllReduce(Group group, at::Tensor values) = 0;
  // `parts`: [SizeOf(group), ...], where this rank has filled in its own part; receives all other parts.
  virtual void AllGather(Group group, at::Tensor parts) = 0;
  // All-to-all for reductions, for exchanges whose facts declare a sum over ranks: `sent` is [SizeOf(group),
  // ...], one part per destination rank. `received`, of the same shape, receives the other ranks' parts by
  // source rank; the rank's own part is not copied and stays in `sent`. SumOfParts adds them.
  virtual void SendParts(Group group, at::Tensor sent, at::Tensor received) = 0;

  // Plain all-to-all: like SendParts, but the rank's own part is copied too.
  virtual void AllToAll(Group group, at::Tensor sent, at::Tensor received) = 0;

  // Runs `exchanges` (calls of the collectives above) concurrently with what the unit enqueues from now on,
  // until Await. After Await, their results are available and their inputs may be overwritten. They must not
  // allocate tensors.
  virtual void Start(std::function<void()> exchanges) = 0;
  virtual void Await() = 0;

  // The gradient of the loss (a sum over targets) as an fp32 scalar on the device. A unit that adds to the
  // loss multiplies its own gradients by it. Undefined: the unit adds nothing.
  virtual at::Tensor GradLoss() const = 0;
  // With expert parallelism, the capacity for rows as a multiple of even routing
  // (fsdp/plan/model/expert_capacity.h). A unit adds the number of rows beyond that to ExpertOverflow, an
  // fp32 scalar; the step is then replayed with a higher capacity, and its results are discarded.
  virtual double ExpertCapacity() const = 0;
  virtual at::Tensor ExpertOverflow() const = 0;

  // Reports routing statistics of all of the rank's tokens: kRoutingSums numbers, and the number of choices
  // per expert, all fp32. Called in forward, but not when a backward reruns it; if several ranks have the
  // same tokens, only by the first of them.
  virtual void AddRouting(const at::Tensor& sums, const at::Tensor& choices) = 0;
};

// Context of a rank that shares its model with no other rank.
class SingleRankContext : public UnitContext {
 public:
  int64_t SizeOf(Group /*group*/) const override { return 1; }
  int64_t IndexIn(Group /*group*/) const override { return 0; }
  void AllReduce(Group /*group*/, at::Tensor /*values*/) override {}
  void AllGather(Group /*group*/, at::Tensor /*parts*/) override {}
  void SendParts(Group /*group*/, at::Tensor /*sent*/, at::Tensor /*received*/) override {}
  void AllToAll(Group /*group*/, at::Tensor sent, at::Tensor received) override { received.copy_(sent); }
  void Start(std::function<void()> exchanges) override { exchanges(); }
  void Await() override {}
  at::Tensor GradLoss() const override { return {}; }
  double ExpertCapacity() const override { return 1; }
  at::Tensor ExpertOverflow() const override { return {}; }
  void AddRouting(const at::Tensor& /*sums*/, const at::Tensor& /*choices*/) override {}
};

}  // namespace fsdpd
