// What a unit's context is on a rank of a mesh: communicators of their own for what units exchange, on the
// lane that the unit's instruction runs on, or beside it.
//
// Call order: TakeStatus after each call of the unit. Thread safety: none.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <utility>

#include "fsdp/comm/mesh.h"
#include "fsdp/lane/aside.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

class MeshContext : public UnitContext {
 public:
  // Where a unit's routing is added up; `choices` is undefined where nobody reads them.
  struct RoutingPlaces {
    at::Tensor sums;
    at::Tensor choices;
    at::Tensor lacking;
    const double* room = nullptr;
  };

  // Mesh, unit, aside and room outlive the context. `grad_loss` is GradLoss().
  MeshContext(const ConnectedMesh* mesh, const UnitLayout* unit, Aside* aside, at::Tensor grad_loss,
              RoutingPlaces routing)
      : mesh_(mesh),
        unit_(unit),
        aside_(aside),
        grad_loss_(std::move(grad_loss)),
        routing_(std::move(routing)) {}

  int64_t SizeOf(Group group) const override { return mesh_->position().SizeOf(group); }
  int64_t IndexIn(Group group) const override { return mesh_->position().IndexIn(group); }
  void AllReduce(Group group, at::Tensor values) override;
  void AllGather(Group group, at::Tensor parts) override;
  void SendParts(Group group, at::Tensor sent, at::Tensor received) override;
  void AllToAll(Group group, at::Tensor sent, at::Tensor received) override;
  void Start(std::function<void()> exchanges) override;
  void Await() override;
  at::Tensor GradLoss() const override { return grad_loss_; }
  double ExpertCapacity() const override { return *routing_.room; }
  at::Tensor ExpertOverflow() const override { return routing_.lacking; }
  void AddRouting(const at::Tensor& sums, const at::Tensor& choices) override {
    routing_.sums.add_(sums);
    if (routing_.choices.defined()) routing_.choices.add_(choices);
  }

  // The first error since it was last asked: FAILED_PRECONDITION for what the unit's facts do not say, or
  // tensors of another kind; else the communicator's.
  absl::Status TakeStatus();

 private:
  // OK where the unit's facts say that it does so, and `tensor` is contiguous and of a type there.
  absl::Status Check(Exchange what, Group group, const at::Tensor& tensor) const;
  void Send(Exchange what, Group group, const at::Tensor& sent, const at::Tensor& received);
  Communicator* Between(Group group) const { return mesh_->Find(group, Role::kUnit); }

  const ConnectedMesh* const mesh_;
  const UnitLayout* const unit_;
  Aside* const aside_;
  const at::Tensor grad_loss_;
  const RoutingPlaces routing_;
  absl::Status status_;
};

}  // namespace fsdpd
