// Property tests of compiler and verifier: programs of random models, meshes and strategies verify, and
// randomly broken programs do not. A failure prints the seed that reproduces it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/seeds.h"
#include "fsdp/plan/program/testing/program_edits.h"
#include "fsdp/plan/verify/testing/rehearsal.h"
#include "fsdp/plan/verify/verify.h"

namespace fsdpd {
namespace {

constexpr int kSteps = 3;

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
  unit.backward_reads = !dice->OneIn(4);
  unit.output_bytes = 64;
  unit.saved_bytes = {256, 128, 64};
  return unit;
}

// At least one parameter is trained: the rules reject other jobs before they are compiled.
ModelFacts RandomModel(Dice* dice) {
  ModelFacts model;
  const auto units = static_cast<int>(dice->Pick(1, 12));
  for (int u = 0; u < units; ++u) model.units.push_back(RandomUnit(dice, u));
  model.units.front().kind = UnitKind::kEmbedding;
  model.units.back().kind = UnitKind::kHead;
  if (units > 1 && dice->OneIn(3)) {
    UnitFacts& borrower = model.units[dice->Pick(1, units - 1)];
    borrower.borrows = 0;
    if (dice->OneIn(3)) borrower.params.clear();
  }
  model.units[0].params[0].trainable |= dice->OneIn(2);
  const auto trains = [](const UnitFacts& unit) {
    return std::any_of(unit.params.begin(), unit.params.end(),
                       [](const ParamFacts& p) { return p.trainable; });
  };
  if (std::none_of(model.units.begin(), model.units.end(), trains)) model.units[0].params[0].trainable = true;
  return model;
}

Spec RandomSpec(Dice* dice) {
  Spec spec;
  spec.data.sequence_length = 8;
  spec.steps = 1;
  spec.strategy = dice->Of({Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                            Strategy::kOptimGradsParams, Strategy::kOptimGradsParams});
  const int64_t inner = dice->Pick(1, 9);
  int64_t replicas = 1;
  if (spec.shards_optimizer() && dice->OneIn(3)) {
    replicas = dice->Pick(2, 4);
    spec.outer_strategy = dice->Of({Strategy::kNoShard, Strategy::kOptim});
  }
  const int64_t context = dice->OneIn(3) ? dice->Pick(2, 3) : 1;
  const int64_t tensor = dice->OneIn(3) ? dice->Pick(2, 4) : 1;
  const int64_t expert = tensor == 1 && dice->OneIn(3) ? dice->Pick(2, 4) : 1;
  spec.mesh = Mesh::DataParallel(replicas, inner * expert * context * tensor)
                  .WithExpert(expert)
                  .WithContext(context)
                  .WithTensor(tensor);
  spec.global_batch = spec.mesh.data_ranks() * dice->Pick(1, 4);
  spec.precision.compute = dice->Of({DType::kFp32, DType::kBf16, DType::kFp16});
  spec.precision.grad_comm = dice->Of({DType::kFp32, spec.precision.compute});
  spec.precision.main_grads = dice->Of({DType::kFp32, DType::kBf16});
  spec.keep_gathered = spec.shards_params() && dice->OneIn(4);
  spec.offload_optimizer = dice->OneIn(4);
  spec.precision.moments = dice->Of({DType::kFp32, DType::kBf16, DType::kFp8});
  spec.prefetch_bytes = dice->OneIn(4) ? 0 : dice->Pick(0, int64_t{1} << dice->Pick(8, 20));
  spec.recompute = dice->Of({Recompute::kNone, Recompute::kSelective, Recompute::kFull});
  spec.recompute_layers = dice->Pick(0, 8);
  if (dice->OneIn(3)) spec.offloaded_layers = dice->Pick(1, 10);
  if (dice->OneIn(2)) {
    spec.checkpoint.dir = "/runs/1";
    spec.checkpoint.every_steps = dice->Pick(0, 2);
    spec.checkpoint.on_end = dice->OneIn(2);
  }
  return spec;
}

struct Case {
  Spec spec;
  ModelFacts model;
  Layout layout;
  Program program;
};

// Partitions some parameters, or experts; others are replicated.
void CutSome(const Spec& spec, Dice* dice, ModelFacts* model) {
  const Group over = spec.mesh.size(Axis::kExpert) > 1 ? Group::kExpert : Group::kTensor;
  const int64_t parts = spec.mesh.SizeOf(over);
  for (UnitFacts& unit : model->units) {
    for (ParamFacts& param : unit.params) {
      const auto dims = static_cast<int64_t>(param.shape.size());
      if (dims > 0 && dice->OneIn(2))
        param.partition = {static_cast<int>(dice->Pick(0, dims - 1)), parts, over};
    }
  }
}

// Gathers some matrices in FP8 if the compute type is bf16.
void RoundSome(const Spec& spec, Dice* dice, ModelFacts* model) {
  if (spec.precision.compute != DType::kBf16) return;
  for (UnitFacts& unit : model->units) {
    for (ParamFacts& param : unit.params) {
      const bool whole =
          param.shape.size() == 2 && param.elements() > 0 && param.tied_replica == TiedReplica::kNone;
      if (whole && dice->OneIn(3)) param.fp8 = true;
    }
  }
}

// Selection biases of some units, updated without a gradient.
void BalanceSome(Dice* dice, ModelFacts* model) {
  for (UnitFacts& unit : model->units) {
    if (!dice->OneIn(4)) continue;
    ParamFacts bias;
    bias.name = "bias";
    bias.shape = {dice->Pick(1, 20)};
    bias.trainable = false;
    bias.choices_begin = model->choices;
    model->choices += bias.elements();
    unit.params.push_back(bias);
  }
}

Case RandomCase(uint32_t seed) {
  Dice dice(seed);
  Case random{RandomSpec(&dice), RandomModel(&dice), {}, {}};
  CutSome(random.spec, &dice, &random.model);
  RoundSome(random.spec, &dice, &random.model);
  BalanceSome(&dice, &random.model);
  random.layout = MakeLayout(random.model, LayoutOptionsOf(random.spec));
  random.program = CompileProgram(random.spec, random.model, random.layout);
  return random;
}

TEST(VerifyProperty, EveryCompiledProgramVerifies) {
  for (int seed = 0; seed < Seeds(3000); ++seed) {
    const Case random = RandomCase(seed);
    const absl::Status training = Verify(random.program, random.layout, random.spec);
    ASSERT_TRUE(training.ok()) << "seed " << seed << ": " << training;
    const Program evaluation = CompileEvaluation(random.spec, random.model, random.layout, random.program);
    const absl::Status evaluates = Verify(evaluation, random.layout, random.spec);
    ASSERT_TRUE(evaluates.ok()) << "seed " << seed << ", evaluation: " << evaluates;
  }
}

// Compiled programs give the results of the reference at any lane speed. The comparisons below rely on this.
TEST(VerifyProperty, VerifiedProgramsMatchReferenceAtAnyLaneSpeed) {
  for (int seed = 0; seed < Seeds(300); ++seed) {
    const Case random = RandomCase(seed);
    const Outcome wanted = RunReference(random.layout, random.spec, ProgramKind::kTraining, kSteps);
    for (uint32_t run = 0; run < 4; ++run) {
      ASSERT_TRUE(Rehearse(random.program, random.layout, random.spec, kSteps, run) == wanted)
          << "seed " << seed;
    }
    const Program evaluation = CompileEvaluation(random.spec, random.model, random.layout, random.program);
    const Outcome evaluated = RunReference(random.layout, random.spec, ProgramKind::kEvaluation, kSteps);
    ASSERT_TRUE(Rehearse(evaluation, random.layout, random.spec, kSteps, seed) == evaluated)
        << "seed " << seed;
  }
}

// Swaps the operations of two instructions; lanes and dependencies stay.
void Swap(Instruction* a, Instruction* b) {
  std::swap(*a, *b);
  std::swap(a->after, b->after);
  std::swap(a->after_previous, b->after_previous);
}

int RandomInstruction(Dice* dice, const Program& program,
                      const std::function<bool(const Instruction&)>& wanted) {
  std::vector<int> all;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (wanted(program.instructions[i])) all.push_back(static_cast<int>(i));
  }
  return all.empty() ? -1 : all[dice->Pick(0, static_cast<int64_t>(all.size()) - 1)];
}

bool Trains(const Case& random, int unit) {
  const auto trains = [&](int u) {
    const std::vector<int>& buckets = random.layout.units[u].buckets;
    return std::any_of(buckets.begin(), buckets.end(),
                       [&](int b) { return random.layout.buckets[b].trainable; });
  };
  const int lender = random.layout.units[unit].borrows;
  return trains(unit) || (lender >= 0 && trains(lender));
}

// A mutation: breaks the case's program, or returns false if it does not apply.
struct Fault {
  const char* name;
  bool always_wrong;  // Always wrong, so the verifier must reject it every time.
  std::function<bool(Case*, Dice*)> apply;
};

bool LoseAnEdge(std::vector<int> Instruction::*edges, Case* random, Dice* dice) {
  Program& program = random->program;
  const int i = RandomInstruction(dice, program, [&](const Instruction& at) { return !(at.*edges).empty(); });
  if (i < 0) return false;
  std::vector<int>& list = program.instructions[i].*edges;
  list.erase(list.begin() + dice->Pick(0, static_cast<int64_t>(list.size()) - 1));
  return true;
}

bool MoveABuffer(Case* random, Dice* dice) {
  std::vector<Buffer>& buffers = random->program.buffers;
  Buffer& buffer = buffers[dice->Pick(0, static_cast<int64_t>(buffers.size()) - 1)];
  const int64_t room = (random->program.arena_bytes - buffer.bytes) / 256;
  const int64_t offset = dice->Pick(0, room) * 256;
  const bool moved = offset != buffer.offset;
  buffer.offset = offset;
  return moved;
}

// Onto the bytes of another buffer that is live at the same time.
bool StackTwoBuffers(Case* random, Dice* dice) {
  std::vector<Buffer>& buffers = random->program.buffers;
  const auto count = static_cast<int64_t>(buffers.size());
  Buffer& a = buffers[dice->Pick(0, count - 1)];
  const Buffer& b = buffers[dice->Pick(0, count - 1)];
  if (&a == &b || a.bytes == 0 || b.bytes == 0) return false;
  for (const Buffer::Interval& x : a.live) {
    for (const Buffer::Interval& y : b.live) {
      if (x.born > y.dies || y.born > x.dies) continue;
      a.offset = b.offset;
      return true;
    }
  }
  return false;
}

bool FlipAccumulate(Op op, Case* random, Dice* dice) {
  const int i = RandomInstruction(dice, random->program, [&](const Instruction& at) {
    return at.op == op && (op == Op::kReduce || Trains(*random, at.unit));
  });
  if (i < 0) return false;
  random->program.instructions[i].accumulate ^= true;
  return true;
}

bool DropOne(Op op, Case* random, Dice* dice) {
  const int i = RandomInstruction(dice, random->program, [op](const Instruction& at) { return at.op == op; });
  if (i < 0) return false;
  RemoveInstruction(&random->program, i);
  return true;
}

bool SwapTwo(bool same_op, Case* random, Dice* dice) {
  std::vector<Instruction>& list = random->program.instructions;
  const int i = RandomInstruction(dice, random->program, [](const Instruction&) { return true; });
  const int j = RandomInstruction(dice, random->program, [&](const Instruction& at) {
    return &at != &list[i] && at.lane == list[i].lane && (!same_op || at.op == list[i].op);
  });
  if (j < 0) return false;
  Swap(&list[i], &list[j]);
  return true;
}

// To any earlier instruction of another lane.
bool RedirectAnEdge(Case* random, Dice* dice) {
  Program& program = random->program;
  const int i = RandomInstruction(dice, program, [](const Instruction& at) { return !at.after.empty(); });
  if (i < 0) return false;
  Instruction& at = program.instructions[i];
  int& edge = at.after[dice->Pick(0, static_cast<int64_t>(at.after.size()) - 1)];
  const int other = static_cast<int>(dice->Pick(0, i - 1));
  if (other == edge || program.instructions[other].lane == at.lane) return false;
  edge = other;
  return true;
}

bool RepeatASnapshot(Case* random, Dice* dice) {
  const int i =
      RandomInstruction(dice, random->program, [](const Instruction& at) { return at.op == Op::kSnapshot; });
  if (i < 0) return false;
  InsertInstruction(&random->program, i + 1, Instruction(random->program.instructions[i]));
  return true;
}

bool TakeASnapshotThatNobodyAskedFor(Case* random, Dice* dice) {
  if (random->spec.checkpoint.saves()) return false;
  Instruction snapshot;
  snapshot.op = Op::kSnapshot;
  snapshot.lane = LaneId::kCopy;
  snapshot.bucket = static_cast<int>(dice->Pick(0, static_cast<int64_t>(random->layout.buckets.size()) - 1));
  snapshot.unit = random->layout.buckets[snapshot.bucket].unit;
  const auto count = static_cast<int>(random->program.instructions.size());
  snapshot.after = {count - 1};
  InsertInstruction(&random->program, count, snapshot);
  return true;
}

// Removes an Update's dependency on the previous snapshot, or a snapshot's on its Update. Nothing else orders
// them, except with activation offload, whose copies follow the previous step's snapshots.
bool LoseTheOrderOfACopy(bool of_update, Case* random, Dice* dice) {
  if (of_update && random->spec.offloaded_layers > 0) return false;
  const int i = RandomInstruction(dice, random->program, [&](const Instruction& at) {
    return of_update ? at.op == Op::kUpdate && !at.after_previous.empty()
                     : at.op == Op::kSnapshot && !at.after.empty();
  });
  if (i < 0) return false;
  Instruction& at = random->program.instructions[i];
  (of_update ? at.after_previous : at.after).clear();
  return true;
}

bool RenumberMicroBatch(Case* random, Dice* dice) {
  const int64_t count = random->spec.micro_batches_per_step();
  const int i = RandomInstruction(dice, random->program, [](const Instruction& at) {
    return at.op == Op::kForward || at.op == Op::kBackward || at.op == Op::kForwardBackward;
  });
  if (count == 1) return false;
  int& micro_batch = random->program.instructions[i].micro_batch;
  micro_batch = static_cast<int>((micro_batch + dice->Pick(1, count - 1)) % count);
  return true;
}

std::vector<Fault> Faults() {
  std::vector<Fault> violations = {
      {"lose an edge", false, [](Case* c, Dice* d) { return LoseAnEdge(&Instruction::after, c, d); }},
      {"lose an edge to the last step", false,
       [](Case* c, Dice* d) { return LoseAnEdge(&Instruction::after_previous, c, d); }},
      {"redirect an edge", false, RedirectAnEdge},
      {"move a buffer", false, MoveABuffer},
      {"swap two of a lane", false, [](Case* c, Dice* d) { return SwapTwo(false, c, d); }},
      {"swap two of an operation", false, [](Case* c, Dice* d) { return SwapTwo(true, c, d); }},
      {"drop a Release", false, [](Case* c, Dice* d) { return DropOne(Op::kRelease, c, d); }},
      {"stack two live buffers", true, StackTwoBuffers},
      {"renumber a micro-batch", true, RenumberMicroBatch},
      {"flip a Backward's accumulate", true,
       [](Case* c, Dice* d) { return FlipAccumulate(Op::kBackward, c, d); }},
      {"flip a ForwardBackward's accumulate", true,
       [](Case* c, Dice* d) { return FlipAccumulate(Op::kForwardBackward, c, d); }},
      {"flip a Reduce's accumulate", true,
       [](Case* c, Dice* d) { return FlipAccumulate(Op::kReduce, c, d); }},
      {"repeat a Snapshot", true, RepeatASnapshot},
      {"take a Snapshot unasked", true, TakeASnapshotThatNobodyAskedFor},
      {"lose an Update's wait for a copy", true,
       [](Case* c, Dice* d) { return LoseTheOrderOfACopy(true, c, d); }},
      {"lose a copy's wait for its Update", true,
       [](Case* c, Dice* d) { return LoseTheOrderOfACopy(false, c, d); }},
  };
  const std::pair<Op, const char*> dropped[] = {{Op::kGatherReplica, "drop a Publish"},
                                                {Op::kGather, "drop a Gather"},
                                                {Op::kForward, "drop a Forward"},
                                                {Op::kBackward, "drop a Backward"},
                                                {Op::kForwardBackward, "drop a ForwardBackward"},
                                                {Op::kReduce, "drop a Reduce"},
                                                {Op::kReduceOuter, "drop a ReduceOuter"},
                                                {Op::kNorm, "drop the Norm"},
                                                {Op::kUpdate, "drop an Update"},
                                                {Op::kSnapshot, "drop a Snapshot"},
                                                {Op::kFetch, "drop a Fetch"},
                                                {Op::kOffload, "drop an Offload"},
                                                {Op::kOffloadActivations, "drop an OffloadKept"},
                                                {Op::kDropActivations, "drop a DropKept"},
                                                {Op::kFetchActivations, "drop a FetchKept"}};
  for (const auto& [op, name] : dropped) {
    violations.push_back({name, true, [op = op](Case* c, Dice* d) { return DropOne(op, c, d); }});
  }
  return violations;
}

// Whether some interleaving of lanes gives a wrong result.
bool GoesWrong(const Case& random, int runs) {
  const Outcome wanted = RunReference(random.layout, random.spec, ProgramKind::kTraining, kSteps);
  for (int run = 0; run < runs; ++run) {
    const auto seed = static_cast<uint32_t>(run);
    if (!(Rehearse(random.program, random.layout, random.spec, kSteps, seed) == wanted)) return true;
  }
  return false;
}

// The verifier rejects every mutation that gives a wrong result in a run, and every one that is always wrong.
// A rejected mutation without a wrong result needs a rarer interleaving, or breaks a rule that does not
// affect results: a lifetime, or a redundant gather.
TEST(VerifyProperty, RejectsEveryMutationThatChangesResult) {
  std::printf("%-32s %8s %8s %12s %8s\n", "fault", "broken", "caught", "seen wrong", "passed");
  for (const Fault& fault : Faults()) {
    int broken = 0, caught = 0, wrong = 0;
    for (int seed = 0; seed < Seeds(300); ++seed) {
      Case random = RandomCase(seed);
      Dice dice(seed + 1);
      if (!fault.apply(&random, &dice)) continue;
      ++broken;
      const absl::Status status = Verify(random.program, random.layout, random.spec);
      caught += !status.ok();
      const bool goes_wrong = GoesWrong(random, status.ok() ? 24 : 4);
      wrong += goes_wrong;
      ASSERT_FALSE(status.ok() && (goes_wrong || fault.always_wrong))
          << "gets past: " << fault.name << ", seed " << seed;
    }
    std::printf("%-32s %8d %8d %12d %8d\n", fault.name, broken, caught, wrong, broken - caught);
    EXPECT_GT(caught, 0) << fault.name;
  }
}

}  // namespace
}  // namespace fsdpd
