// The compiler against the verifier: random models, meshes and strategies compile to programs that verify,
// and programs with a random fault do not. A failure prints the seed that brings it back.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "fsdp/plan/verify.h"

namespace fsdpd {
namespace {

class Dice {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}

  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool OneIn(int64_t times) { return Pick(1, times) == 1; }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Pick(0, static_cast<int64_t>(values.size()) - 1));
  }

 private:
  std::mt19937 random_;
};

UnitFacts RandomUnit(Dice* dice, int index) {
  UnitFacts unit;
  unit.name = "unit." + std::to_string(index);
  for (int64_t i = dice->Pick(1, 6); i > 0; --i) {
    ParamFacts param;
    param.name = "p" + std::to_string(i);
    for (int64_t d = dice->Pick(0, 3); d > 0; --d)
      param.shape.push_back(dice->Pick(1, dice->OneIn(8) ? 200 : 20));
    param.trainable = !dice->OneIn(6);
    unit.params.push_back(param);
  }
  if (dice->OneIn(10)) {
    for (ParamFacts& param : unit.params) param.trainable = false;
  }
  unit.output_bytes = 64;
  unit.kept_bytes = {256, 128, 64};
  return unit;
}

// At least one parameter is trained: a job without any is refused before it is compiled.
ModelFacts RandomModel(Dice* dice) {
  ModelFacts model;
  const auto units = static_cast<int>(dice->Pick(1, 12));
  for (int u = 0; u < units; ++u) model.units.push_back(RandomUnit(dice, u));
  model.units.front().kind = UnitKind::kEmbedding;
  model.units.back().kind = UnitKind::kHead;
  model.units[dice->Pick(0, units - 1)].params[0].trainable = true;
  if (units > 1 && dice->OneIn(3)) {
    UnitFacts& borrower = model.units[dice->Pick(1, units - 1)];
    borrower.borrows = 0;
    if (dice->OneIn(3)) borrower.params.clear();
  }
  return model;
}

Spec RandomSpec(Dice* dice) {
  Spec spec;
  spec.data.sequence_length = 8;
  spec.steps = 1;
  spec.strategy = dice->Of({Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                            Strategy::kOptimGradsParams, Strategy::kOptimGradsParams});
  const int64_t inner = dice->Pick(1, 9);
  if (spec.shards_optimizer() && dice->OneIn(3)) {
    spec.outer_size = dice->Pick(2, 4);
    spec.outer_strategy = dice->Of({Strategy::kNoShard, Strategy::kOptim});
  }
  spec.world = inner * spec.outer_size;
  spec.global_batch = spec.world * dice->Pick(1, 4);
  spec.compute = dice->Of({DType::kFp32, DType::kBf16, DType::kFp16});
  spec.grad_comm = dice->Of({DType::kFp32, spec.compute});
  spec.main_grads = dice->Of({DType::kFp32, DType::kBf16});
  spec.keep_gathered = spec.shards_params() && dice->OneIn(4);
  spec.prefetch_bytes = dice->OneIn(4) ? 0 : dice->Pick(0, int64_t{1} << dice->Pick(8, 20));
  spec.recompute = dice->Of({Recompute::kNone, Recompute::kSelective, Recompute::kFull});
  spec.recompute_layers = dice->Pick(0, 8);
  return spec;
}

struct Case {
  Spec spec;
  ModelFacts model;
  Layout layout;
  Program program;
};

Case RandomCase(uint32_t seed) {
  Dice dice(seed);
  Case random{RandomSpec(&dice), RandomModel(&dice), {}, {}};
  LayoutOptions options = LayoutOptionsOf(random.spec);
  options.quantum =
      dice.Of({Quantum::kElement, Quantum::kElement, Quantum::kRow, Quantum::kRows128, Quantum::kWhole});
  random.layout = MakeLayout(random.model, options);
  random.program = CompileProgram(random.spec, random.model, random.layout);
  return random;
}

TEST(VerifyProperty, EveryProgramOfTheCompilerVerifies) {
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    const Case random = RandomCase(seed);
    const absl::Status training = Verify(random.program, random.layout, random.spec);
    ASSERT_TRUE(training.ok()) << "seed " << seed << ": " << training;
    const Program evaluation = CompileEvaluation(random.spec, random.model, random.layout, random.program);
    const absl::Status evaluates = Verify(evaluation, random.layout, random.spec);
    ASSERT_TRUE(evaluates.ok()) << "seed " << seed << ", evaluation: " << evaluates;
  }
}

}  // namespace
}  // namespace fsdpd
