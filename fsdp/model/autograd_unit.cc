#include "fsdp/model/autograd_unit.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <xxhash.h>

#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// Where a leaf's gradient leaves the graph. Autograd gives it once per backward, already summed over all
// uses.
class GradientSink : public torch::autograd::Node {
 public:
  explicit GradientSink(const at::Tensor& leaf)
      : Node(/*sequence_nr=*/UINT64_MAX) {  // As soon as it is there.
    add_input_metadata(leaf);
  }

  // `into` gets the gradient; undefined: the gradient is kept for Take().
  void Arm(at::Tensor into, bool accumulate) {
    into_ = std::move(into);
    accumulate_ = accumulate;
    arrived_ = false;
  }

  at::Tensor Take() { return std::exchange(taken_, at::Tensor()); }

  // A leaf that the forward did not use has gradient zero.
  void Finish() {
    if (!arrived_ && !accumulate_ && into_.defined()) into_.zero_();
    into_ = at::Tensor();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const at::Tensor grad = std::move(grads[0]);
    if (!grad.defined()) return {};
    arrived_ = true;
    at::NoGradGuard no_grad;
    if (!into_.defined()) {
      taken_ = grad;
    } else if (accumulate_) {
      into_.add_(grad);
    } else {
      into_.copy_(grad);
    }
    return {};
  }

 private:
  at::Tensor into_;
  at::Tensor taken_;
  bool accumulate_ = false;
  bool arrived_ = false;
};

std::shared_ptr<GradientSink> AttachSink(const at::Tensor& leaf) {
  std::shared_ptr<GradientSink> sink(new GradientSink(leaf), torch::autograd::deleteNode);
  torch::autograd::impl::set_grad_accumulator(leaf, sink);
  return sink;
}

}  // namespace

// The parameters as autograd sees them, and the way out for their gradients. The hidden input has a leaf of
// its own for each forward, made with the graph.
struct AutogradUnit::Leaves {
  std::vector<at::Tensor> params;
  std::vector<std::shared_ptr<GradientSink>> sinks;
};

AutogradUnit::AutogradUnit(UnitFacts facts, std::vector<ParamInit> inits, UnitForward forward)
    : facts_(std::move(facts)), inits_(std::move(inits)), forward_(std::move(forward)) {
  FSDPD_CHECK(inits_.size() == facts_.params.size());
}

AutogradUnit::~AutogradUnit() = default;

void AutogradUnit::Bind(const std::vector<at::Tensor>& params) {
  FSDPD_CHECK(leaves_ == nullptr && params.size() == facts_.params.size());
  leaves_ = std::make_unique<Leaves>();
  for (size_t i = 0; i < params.size(); ++i) {
    FSDPD_CHECK(params[i].sizes() == at::IntArrayRef(facts_.params[i].shape));
    // With a version counter of its own: the gather writes through tensors that may share the view's.
    at::Tensor leaf = params[i].variable_data().set_requires_grad(true);
    leaves_->sinks.push_back(AttachSink(leaf));
    leaves_->params.push_back(std::move(leaf));
  }
}

// What one forward left for its backward.
struct AutogradUnit::Saved {
  UnitInput input;
  UnitOutput output;  // With its graph; undefined tensors when nothing but the input was kept.
  std::shared_ptr<GradientSink> hidden_sink;
};

void AutogradUnit::RunWithGraph(Saved* saved) const {
  at::AutoGradMode mode(true);
  if (saved->input.hidden.defined()) {
    saved->input.hidden = saved->input.hidden.detach().set_requires_grad(true);
    saved->hidden_sink = AttachSink(saved->input.hidden);  // Before the forward, whose graph ends in it.
  }
  saved->output = forward_(saved->input, leaves_->params);
}

UnitOutput AutogradUnit::Forward(int slot, const UnitInput& input, bool keep) {
  FSDPD_CHECK(leaves_ != nullptr && saved_.count(slot) == 0);
  auto saved = std::make_unique<Saved>();
  saved->input = input;
  UnitOutput output;
  if (keep) {
    RunWithGraph(saved.get());
    // Detached, so that no graph reaches across units.
    if (saved->output.hidden.defined()) output.hidden = saved->output.hidden.detach();
    if (saved->output.loss.defined()) output.loss = saved->output.loss.detach();
  } else {
    at::NoGradGuard no_grad;
    output = forward_(input, leaves_->params);
  }
  saved_[slot] = std::move(saved);
  return output;
}

at::Tensor AutogradUnit::Backward(int slot, const at::Tensor& grad_hidden, double loss_scale, bool accumulate,
                                  const std::vector<at::Tensor>& param_grads) {
  FSDPD_CHECK(saved_.count(slot) == 1 && param_grads.size() == leaves_->sinks.size());
  const std::unique_ptr<Saved> saved = std::move(saved_.extract(slot).mapped());
  if (!saved->output.hidden.defined() && !saved->output.loss.defined()) RunWithGraph(saved.get());
  for (size_t i = 0; i < param_grads.size(); ++i) leaves_->sinks[i]->Arm(param_grads[i], accumulate);
  if (saved->output.loss.defined()) {
    torch::autograd::backward({saved->output.loss}, {at::full_like(saved->output.loss, loss_scale)});
  } else {
    torch::autograd::backward({saved->output.hidden}, {grad_hidden});
  }
  for (const auto& sink : leaves_->sinks) sink->Finish();
  return saved->hidden_sink == nullptr ? at::Tensor() : saved->hidden_sink->Take();
}

at::Tensor AutogradUnit::InitialValue(int index, uint64_t seed) const {
  const ParamFacts& param = facts_.params[index];
  const double deviation = inits_[index].deviation;
  if (deviation == 0) return at::ones(param.shape, at::kFloat);
  const std::string key = facts_.name + "/" + param.name;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(XXH64(key.data(), key.size(), seed));
  at::NoGradGuard no_grad;
  return at::empty(param.shape, at::kFloat).normal_(0, deviation, generator);
}

}  // namespace fsdpd
