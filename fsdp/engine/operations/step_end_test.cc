#include "fsdp/engine/operations/step_end.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>

#include "fsdp/comm/local_communicator.h"
#include "fsdp/engine/testing/test_job.h"

namespace fsdpd {
namespace {

class CountedSteps : public Optimizer {
 public:
  void Restore(int64_t) override {}
  void BeginStep(int64_t) override {}
  void Count(const StepScalars& scalars) override { applied += scalars.found_nonfinite.item<float>() == 0; }
  void Update(int, const BucketShard&, const StepScalars&) override {}

  int applied = 0;
};

// One rank, whose targets all count.
class StepEnds : public ::testing::Test {
 protected:
  void Make(const v1::JobSpec& job) {
    plan_ = *AcceptedPlan(job);
    plan_.spec.optimizer.clip_norm = 0;
    end_ = std::make_unique<StepEnd>(&plan_, MeshPosition{plan_.spec.mesh, 0}, TrainingState(), at::kCPU);
  }

  // A step in which all targets count, whose gradient has this norm, and whose loss is the mean `loss`.
  StepResult Step(double norm, double loss = 1) {
    StepInputs inputs;
    inputs.step = ++step_;
    inputs.learning_rate = 0.5;
    const int64_t tokens = plan_.spec.tokens_per_step();
    end_->BeginStep(inputs, tokens);
    end_->Sum(StepEnd::kLossSum).fill_(loss * static_cast<double>(tokens));
    return Finish(norm);
  }
  StepResult Finish(double norm) {
    EXPECT_TRUE(end_->Norm(at::full({}, norm * norm), group_[0].get(), &optimizer_, 0).ok());
    return end_->Result(0);
  }

  std::vector<std::unique_ptr<Communicator>> group_ = MakeLocalGroup(1);
  CountedSteps optimizer_;
  Plan plan_;
  std::unique_ptr<StepEnd> end_;
  int64_t step_ = 0;
};

TEST_F(StepEnds, DivideByTheShareOfTargetsThatCount) {
  Make(TestJob());
  EXPECT_EQ(Step(3).grad_norm, 3);
  EXPECT_EQ(end_->scalars().grad_divisor.item<float>(), 1);
  StepInputs inputs;
  inputs.step = ++step_;
  end_->BeginStep(inputs, plan_.spec.tokens_per_step() / 2);
  const StepResult half = Finish(3);
  EXPECT_EQ(half.grad_norm, 6);
  EXPECT_EQ(half.counted, plan_.spec.tokens_per_step() / 2);
  EXPECT_EQ(end_->scalars().grad_divisor.item<float>(), 0.5);
  EXPECT_EQ(optimizer_.applied, 2);
}

TEST_F(StepEnds, SkipEveryStepAfterOneThatEndsTheRun) {
  Make(TestJob());
  EXPECT_TRUE(Step(std::numeric_limits<double>::infinity()).not_finite);
  EXPECT_FALSE(Step(1).not_finite);
  EXPECT_EQ(optimizer_.applied, 0);
}

TEST_F(StepEnds, SkipASpikeOnceHalfOfTheWindowIsKnown) {
  v1::JobSpec job = TestJob();
  v1::OnSpike* spike = job.mutable_train()->mutable_on_spike();
  spike->set_action(v1::STEP_ACTION_SKIP);
  spike->set_grad_norm_factor(2);
  spike->set_window(4);
  Make(job);
  EXPECT_FALSE(Step(1).spike);
  EXPECT_FALSE(Step(9).spike);  // One known norm, two are required.
  const StepResult spiked = Step(5);
  EXPECT_TRUE(spiked.spike);
  EXPECT_EQ(spiked.spike_threshold, 2);  // The lower median of 1 and 9.
  EXPECT_FALSE(Step(1).spike);
  EXPECT_EQ(optimizer_.applied, 3);
}

TEST_F(StepEnds, EvaluationHasTheMeanLoss) {
  Make(TestJob());
  end_->BeginEvaluation(4);
  end_->Sum(StepEnd::kLossSum).fill_(10);
  EXPECT_TRUE(end_->Loss(group_[0].get(), 1).ok());
  EXPECT_EQ(end_->Result(1).loss(), 2.5);
  EXPECT_EQ(optimizer_.applied, 0);
}

}  // namespace
}  // namespace fsdpd
