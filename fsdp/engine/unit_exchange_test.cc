// Units that communicate: a unit subtracts the mean over all ranks' tokens, so the loss of a sample depends
// on samples of other ranks. Two ranks with half of the samples each match one rank with all of them only if
// the unit's sums are communicated.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/check.h"
#include "fsdp/engine/testing/test_job.h"
#include "fsdp/fsdp.h"
#include "fsdp/model/autograd/autograd_unit.h"
#include "fsdp/model/testing/plain_ends.h"
#include "fsdp/plan/program/fingerprint.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

// y = x w, minus its mean over the world's tokens.
class Centre : public Unit {
 public:
  void Bind(const std::vector<BoundParam>& params, UnitContext* context) override {
    w_ = params[0].data;
    context_ = context;
  }

  UnitOutput Forward(int slot, const UnitInput& input, ActivationSaving /*keep*/) override {
    x_[slot] = input.hidden;
    return {Centred(input.hidden * w_), at::Tensor()};
  }

  at::Tensor Backward(int slot, const at::Tensor& grad_out, const ParamGrads& grads,
                      WeightGrads /*when*/) override {
    const at::Tensor grad = Centred(grad_out);
    grads.into[0].copy_((grad * x_[slot]).sum(at::IntArrayRef({0, 1})));
    return grad * w_;
  }

  void VisitSavedActivations(int slot, const std::function<void(at::Tensor*)>& visit) override {
    visit(&x_[slot]);
  }

  at::Tensor InitialValue(int /*index*/, uint64_t /*seed*/, int64_t begin, int64_t elements) const override {
    return (at::arange(elements) + begin) * 0.1 + 0.5;
  }

 private:
  at::Tensor Centred(const at::Tensor& x) const {
    const at::Tensor sum = x.sum(at::IntArrayRef({0, 1}));
    context_->AllReduce(Group::kWorld, sum);
    return x - sum / static_cast<double>(x.size(0) * x.size(1) * context_->SizeOf(Group::kWorld));
  }

  at::Tensor w_;
  UnitContext* context_ = nullptr;
  std::map<int, at::Tensor> x_;
};

class Centred : public UserModel {
 public:
  ModelDescription Describe() const override {
    ModelDescription model;
    model.vocab_size = kPlainVocab;
    model.units = {{"embedding", {{"weight", {kPlainVocab, kPlainWidth}}}, "", 0, 0, 0, kPlainWidth},
                   {"centre", {{"w", {kPlainWidth}}}, "", kPlainWidth, 0, 0, kPlainWidth},
                   {"head", {{"output", {kPlainVocab, kPlainWidth}}}, "", kPlainWidth + kPlainVocab}};
    return model;
  }

  std::vector<std::unique_ptr<Unit>> MakeUnits(const ModelFacts& facts,
                                               at::Device /*device*/) const override {
    const auto loss = [](const UnitInput& in, const std::vector<at::Tensor>& p) {
      return PlainLoss(in, at::linear(in.hidden, p[0]));
    };
    std::vector<std::unique_ptr<Unit>> units;
    units.push_back(
        std::make_unique<AutogradUnit>(facts.units[0], DefaultInits(facts.units[0]), PlainEmbedding));
    units.push_back(std::make_unique<Centre>());
    units.push_back(std::make_unique<AutogradUnit>(facts.units[2], DefaultInits(facts.units[2]), loss));
    return units;
  }
};

// A job on `ranks` ranks, whose unit declares communication over `groups`.
Plan PlanOf(int ranks, const std::vector<Group>& groups) {
  auto plan = PlanJson(R"({"name": "centred", "data": {"synthetic": {"vocab": 7}, "sequence_length": 8},
      "train": {"steps": 5, "global_batch": 4, "micro_batch": )" +
                           std::to_string(4 / ranks) + R"(},
      "optimizer": {"adamw": {"lr": 0.01}}, "resources": {"device": "DEVICE_CPU", "ranks_per_node": )" +
                           std::to_string(ranks) + "}}",
                       Centred());
  FSDPD_CHECK_OK(plan.status());
  for (const Group group : groups)
    plan->layout.units[1].exchanges.push_back({group, kPlainWidth, kPlainWidth});
  return *std::move(plan);
}

TEST(UnitExchange, MatchesOneRank) {
  const Centred model;
  LocalJobOptions options;
  options.model = &model;
  const auto one_rank = RunLocalJob(PlanOf(1, {Group::kWorld}), options);
  ASSERT_TRUE(one_rank.ok()) << one_rank.status();
  for (const int ranks : {2, 4}) {
    const auto shared = RunLocalJob(PlanOf(ranks, {Group::kWorld}), options);
    ASSERT_TRUE(shared.ok()) << shared.status();
    ExpectSame(*one_rank, *shared, 1e-5);
  }
}

TEST(UnitExchange, RefusesAnUndeclaredGroup) {
  const Centred model;
  LocalJobOptions options;
  options.model = &model;
  const absl::Status status = RunLocalJob(PlanOf(2, {Group::kReplicate}), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("unit centre sums over world, which its facts do not declare"));
}

TEST(UnitExchange, IsInTheFingerprint) {
  const Plan without = PlanOf(2, {}), with = PlanOf(2, {Group::kWorld});
  const auto difference = FirstDifference(Fingerprint(without.spec, without.layout, without.program),
                                          Fingerprint(with.spec, with.layout, with.program));
  EXPECT_THAT(difference.second, HasSubstr("unit centre: buckets 1, sums 6 and 6 fp32 over world"));
}

}  // namespace
}  // namespace fsdpd
