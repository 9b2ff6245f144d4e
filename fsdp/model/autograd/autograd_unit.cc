#include "fsdp/model/autograd/autograd_unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// Sink that takes a leaf's gradient out of the graph. Autograd calls it once per backward, with the sum over
// all uses.
class GradientSink : public torch::autograd::Node {
 public:
  explicit GradientSink(const at::Tensor& leaf)
      : Node(/*sequence_nr=*/UINT64_MAX) {  // Highest priority: runs as soon as the gradient is ready.
    add_input_metadata(leaf);
  }

  // Writes the next gradient to `into`; undefined: drops it.
  void Arm(at::Tensor into, bool accumulate) {
    into_ = std::move(into);
    accumulate_ = accumulate;
    arrived_ = false;
  }

  // Holds the next gradient for Take().
  void ArmToTake() { take_ = true; }
  at::Tensor Take() { return std::exchange(taken_, at::Tensor()); }

  // A leaf that the forward did not use has a gradient of zero.
  void Finish() {
    if (!arrived_ && !accumulate_ && into_.defined()) into_.zero_();
    into_ = at::Tensor();
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    const at::Tensor grad = std::move(grads[0]);
    if (!grad.defined()) return {};
    arrived_ = true;
    at::NoGradGuard no_grad;
    if (take_) {
      taken_ = grad;
    } else if (into_.defined() && accumulate_) {
      into_.add_(grad);
    } else if (into_.defined()) {
      into_.copy_(grad);
    }
    return {};
  }

 private:
  at::Tensor into_;
  at::Tensor taken_;
  bool accumulate_ = false;
  bool arrived_ = false;
  bool take_ = false;
};

std::shared_ptr<GradientSink> AttachSink(const at::Tensor& leaf) {
  std::shared_ptr<GradientSink> sink(new GradientSink(leaf), torch::autograd::deleteNode);
  torch::autograd::impl::set_grad_accumulator(leaf, sink);
  return sink;
}

}  // namespace

// Parameters as autograd leaves, and the sinks of their gradients (null if frozen). The hidden input gets a
// new leaf for each forward, made together with the graph.
struct AutogradUnit::Leaves {
  std::vector<at::Tensor> params;
  std::vector<std::shared_ptr<GradientSink>> sinks;
};

AutogradUnit::AutogradUnit(UnitFacts facts, std::vector<ParamInit> inits, UnitForward forward)
    : facts_(std::move(facts)), inits_(std::move(inits)), forward_(std::move(forward)) {
  FSDPD_CHECK(inits_.size() == facts_.params.size());
}

AutogradUnit::~AutogradUnit() = default;

at::Tensor AutogradUnit::MakeLeaf(int /*index*/, const at::Tensor& bound) { return bound.variable_data(); }

void AutogradUnit::Bind(const std::vector<BoundParam>& params, UnitContext* /*context*/) {
  FSDPD_CHECK(leaves_ == nullptr && params.size() >= facts_.params.size());
  FSDPD_CHECK(facts_.borrows >= 0 || params.size() == facts_.params.size());
  leaves_ = std::make_unique<Leaves>();
  for (size_t i = 0; i < params.size(); ++i) {
    const bool own = i < facts_.params.size();
    FSDPD_CHECK(!own || params[i].data.sizes() == at::IntArrayRef(facts_.params[i].shape));
    FSDPD_CHECK(!params[i].scales.defined());
    at::Tensor leaf = MakeLeaf(static_cast<int>(i), params[i].data);
    const bool trainable = !own || facts_.params[i].trainable;  // Borrowed: decided by its lender.
    leaf.set_requires_grad(trainable);
    leaves_->sinks.push_back(trainable ? AttachSink(leaf) : nullptr);
    leaves_->params.push_back(std::move(leaf));
  }
}

// Saved activations of one forward.
struct AutogradUnit::Saved {
  UnitInput input;
  bool has_graph = false;  // False: only the input was saved.
  torch::autograd::Edge
      root;  // Root of the graph, which does not hold the output itself; none if nothing is trained.
  std::shared_ptr<GradientSink> hidden_sink;
};

UnitOutput AutogradUnit::RunWithGraph(Saved* saved) const {
  at::AutoGradMode mode(true);
  if (saved->input.hidden.defined()) {
    saved->input.hidden = saved->input.hidden.detach().set_requires_grad(true);
    saved->hidden_sink = AttachSink(saved->input.hidden);  // Before the forward.
    saved->hidden_sink->ArmToTake();
  }
  const UnitOutput output = forward_(saved->input, leaves_->params);
  const at::Tensor& end = output.loss.defined() ? output.loss : output.hidden;
  if (end.requires_grad()) saved->root = torch::autograd::impl::gradient_edge(end);
  saved->has_graph = true;
  // Detaches tensors so that no graph spans units.
  const auto detached = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.detach() : tensor; };
  return {detached(output.hidden), detached(output.loss)};
}

UnitOutput AutogradUnit::Forward(int slot, const UnitInput& input, ActivationSaving saving) {
  FSDPD_CHECK(leaves_ != nullptr && saved_.count(slot) == 0);
  auto saved = std::make_unique<Saved>();
  saved->input = input;
  UnitOutput output;
  if (saving == ActivationSaving::kAll || saving == ActivationSaving::kSelective) {
    output = RunWithGraph(saved.get());
  } else {
    at::NoGradGuard no_grad;
    output = forward_(input, leaves_->params);
  }
  if (saving != ActivationSaving::kNothing) saved_[slot] = std::move(saved);
  return output;
}

at::Tensor AutogradUnit::Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                                  WeightGrads /*when*/) {
  FSDPD_CHECK(saved_.count(slot) == 1 && grads.into.size() == leaves_->sinks.size());
  const std::unique_ptr<Saved> saved = std::move(saved_.extract(slot).mapped());
  if (!saved->has_graph) RunWithGraph(saved.get());
  for (size_t i = 0; i < grads.into.size(); ++i) {
    FSDPD_CHECK(leaves_->sinks[i] != nullptr || !grads.into[i].defined());
    if (leaves_->sinks[i] != nullptr) leaves_->sinks[i]->Arm(grads.into[i], grads.accumulate);
  }
  if (saved->root.is_valid()) {
    torch::autograd::Engine::get_default_engine().execute({saved->root}, {grad_out}, /*keep_graph=*/false,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true);
  }
  for (const auto& sink : leaves_->sinks) {
    if (sink != nullptr) sink->Finish();
  }
  if (saved->hidden_sink == nullptr) return at::Tensor();
  const at::Tensor grad = saved->hidden_sink->Take();
  return grad.defined() ? grad
                        : at::zeros_like(saved->input.hidden);  // If the output is independent of the input.
}

void AutogradUnit::VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) {
  FSDPD_CHECK(saved_.count(slot) == 1);
  Saved* saved = saved_[slot].get();
  if (!saved->has_graph && saved->input.hidden.defined()) visit(&saved->input.hidden);
}

at::Tensor AutogradUnit::InitialValue(int index, uint64_t seed, int64_t begin, int64_t elements) const {
  const ParamFacts& param = facts_.params[index];
  FSDPD_CHECK(begin >= 0 && elements >= 0 && begin + elements <= param.elements());
  return DrawInitialValue(*InitialNumbers(index, seed), begin, elements);
}

std::optional<kernels::NormalNumbers> AutogradUnit::InitialNumbers(int index, uint64_t seed) const {
  const ParamFacts& param = facts_.params[index];
  return NumbersOf(OwnerOf(facts_.name, param.owner), param.name, inits_[index], seed);
}

}  // namespace fsdpd
