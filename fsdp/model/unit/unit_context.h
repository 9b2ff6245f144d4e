// What a unit may use beside its parameters: the ranks that it shares a model with. It is the only way out of
// its rank, so that the plan knows what a unit sends: which groups it sums over, and how much, stands in its
// facts (UnitFacts::exchanges), and what does not stand there is refused. A plug-in's description cannot say
// that its units exchange anything. Here too is what a unit has to do with the step's loss, where it is not
// the last one: what it adds to it, and what it tells of its routers.
//
// Call order: within a call of the unit, the same on all ranks of the group. Thread safety: that of the unit.
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
  // This rank's number in it.
  virtual int64_t IndexIn(Group group) const = 0;

  // These run in the order of the lane that the call runs on, on contiguous tensors. An error stays with the
  // context and ends the step after the call; until then values are undefined.
  //
  // Sums `values`, fp32, over the group in place.
  virtual void AllReduce(Group group, at::Tensor values) = 0;
  // `parts`: [SizeOf(group), ...], of which this rank has filled in its own, gets everyone's.
  virtual void AllGather(Group group, at::Tensor parts) = 0;
  // `sent`: [SizeOf(group), ...], a part for each rank. `received`, of that shape, gets what others sent this
  // one, each in its place; the own part stays where it is, in `sent`. For sums over ranks, of which the
  // facts say that each gets a part (SumOfParts adds them up).
  virtual void SendParts(Group group, at::Tensor sent, at::Tensor received) = 0;

  // The same of what is not summed, and the own part is copied too.
  virtual void AllToAll(Group group, at::Tensor sent, at::Tensor received) = 0;

  // `exchanges`, calls of what sends, run beside what the unit gives the lane from now on, until Await: then
  // their results are there, and what they read may be written. They make no tensors.
  virtual void Start(std::function<void()> exchanges) = 0;
  virtual void Await() = 0;

  // The gradient of the loss, a sum over targets, by itself: a scalar fp32 on the device, which a unit
  // multiplies the gradient with of what it adds to the loss. Undefined: it adds nothing.
  virtual at::Tensor GradLoss() const = 0;
  // Where ranks have experts among them there is room for so many times the rows of even routing
  // (fsdp/plan/model/expert_capacity.h). What is lacking a unit adds to ExpertOverflow, an fp32 scalar: then
  // the step is run again with more, so what it gives is of no use.
  virtual double ExpertCapacity() const = 0;
  virtual at::Tensor ExpertOverflow() const = 0;

  // In forward, and not where a backward runs it again, of all of the rank's tokens at once: kRoutingSums
  // numbers, and how many choices fell on each expert, all fp32. Where ranks have the same tokens the first
  // of them calls it.
  virtual void AddRouting(const at::Tensor& sums, const at::Tensor& choices) = 0;
};

// Of a rank that shares its model with nobody.
class LoneContext : public UnitContext {
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
