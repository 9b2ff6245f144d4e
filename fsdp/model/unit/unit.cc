#include "fsdp/model/unit/unit.h"

namespace fsdpd {

Unit::LossAndGrad Unit::ForwardBackward(int slot, const UnitInput& input, const at::Tensor& grad_loss,
                                        const ParamGrads& grads) {
  UnitOutput output = Forward(slot, input, ActivationSaving::kAll);
  return {std::move(output.loss), Backward(slot, grad_loss, grads, WeightGrads::kNow)};
}

}  // namespace fsdpd
