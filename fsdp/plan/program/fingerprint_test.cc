#include "fsdp/plan/program/fingerprint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace fsdpd {
namespace {

struct Job {
  Spec spec;
  Layout layout;
  Program program;

  std::vector<std::string> Lines() const { return Fingerprint(spec, layout, program); }
};

// Two units of one bucket each, the second borrowing from the first, and a few instructions by hand.
Job SmallJob() {
  Job job;
  job.spec.model = LlamaConfig{256, 64, 96, 2, 4, 2};
  job.spec.data.tokens = {{"/data/a.bin", 0.25, TokenType::kU16},
                          {"/data/b.bin", 0.75, TokenType::kMegatron}};
  job.spec.global_batch = 64;
  for (int u = 0; u < 2; ++u) {
    Bucket bucket;
    bucket.unit = u;
    bucket.params = {{0, "weight", {16, 8}, 0.1, 1, 0, 128}};
    bucket.groups = {Group::kShard, Group::kSelf, Group::kShard, Group::kSelf};
    bucket.shards = 2;
    bucket.elements = bucket.bucket_elements = 128;
    bucket.shard_elements = bucket.main_elements = 64;
    job.layout.buckets.push_back(bucket);
    job.layout.units.push_back({u == 0 ? "embedding" : "head", {u}, {{u, 0}}, u - 1});
  }
  const Instruction gather{
      Op::kGather,      0,     0,  -1,  LaneId::kGather,      Group::kShard, Role::kGather, false,
      Recompute::kNone, false, {}, {2}, {{0, Access::kWrite}}};
  const Instruction forward{
      Op::kForward,     0,     -1,  0,  LaneId::kCompute,    Group::kSelf, Role::kGather, false,
      Recompute::kNone, false, {0}, {}, {{0, Access::kRead}}};
  const Instruction update{
      Op::kUpdate, 0,  0,  -1, LaneId::kCompute, Group::kSelf, Role::kGather, false, Recompute::kNone,
      false,       {}, {}, {}};
  job.program.instructions = {gather, forward, update};
  job.program.buffers = {{BufferKind::kGathered, 0, 512, 256, {{0, 1}}}};
  job.program.arena_bytes = 768;
  return job;
}

bool Has(const std::vector<std::string>& lines, const std::string& line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST(Fingerprint, ListsSpecLayoutAndProgram) {
  const std::vector<std::string> lines = SmallJob().Lines();
  for (const char* line :
       {"spec.global_batch = 64", "model.llama.hidden_size = 64", "data.tokens[1] = megatron weight 0.75",
        "unit head: buckets 1, borrows embedding",
        "bucket 0 embedding trainable: 128 elements, shard 64, main 64",
        "  2 shards over shard, of 1 pieces over self; summed over shard, then self",
        "  main fp32, moments fp32, gathered fp32, wire fp32, gradients fp32",
        "  weight [16, 8] at 0, weight_decay 0.10000000000000001, lr_scale 1",
        "buffer 0 gathered of bucket 0: 512 bytes at 256, live #0-#1",
        "#0 Gather embedding bucket 0 on gather, gather over shard, after the last step's #2, writes 0",
        "#1 Forward embedding mb 0 on compute, after #0, reads 0"}) {
    EXPECT_TRUE(Has(lines, line)) << line;
  }
}

TEST(Fingerprint, IsEqualForSameJob) {
  EXPECT_EQ(SmallJob().Lines(), SmallJob().Lines());
  EXPECT_EQ(HashOf(SmallJob().Lines()), HashOf(SmallJob().Lines()));
  EXPECT_TRUE(FirstDifference(SmallJob().Lines(), SmallJob().Lines()).first.empty());
}

using Changes = std::vector<std::function<void(Job*)>>;

Changes ModelAndDataChanges() {
  return {
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).vocab_size++; },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).rope_theta += 1e-9; },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).tied_embeddings = true; },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).qk_norm = true; },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).attention_bias = true; },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).head_size = 8; },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).rope_scaling.factor = 8; },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).rope_scaling.yarn = true; },
      [](Job* j) {
        std::get<LlamaConfig>(j->spec.model).latent = {8, 8, 4, 2, 4};
      },
      [](Job* j) { std::get<LlamaConfig>(j->spec.model).latent = {8, 8, 4, 2, 4, /*interleaved=*/false}; },
      [](Job* j) { j->spec.model = Gpt2Config{256, 64, 96, 2, 4, 8}; },
      [](Job* j) { j->spec.data.tokens[0].weight = 0.3; },
      [](Job* j) { j->spec.data.tokens[0].type = TokenType::kU32; },
      [](Job* j) { j->spec.data.tokens.pop_back(); },
      [](Job* j) { j->spec.data.validation = {{"/data/c.bin"}}; },
      [](Job* j) { j->spec.data.synthetic_vocab = 7; },
      [](Job* j) { j->spec.data.sequence_length = 7; },
      [](Job* j) { j->spec.data.ignore_index = 0; },
      [](Job* j) { j->spec.data.document_end_token = 0; },
      [](Job* j) { j->spec.evaluation.every_steps = 7; },
      [](Job* j) { j->spec.evaluation.samples = 7; },
  };
}

Changes TrainingChanges() {
  return {
      [](Job* j) { j->spec.steps++; },
      [](Job* j) { j->spec.micro_batch++; },
      [](Job* j) { j->spec.global_batch++; },
      [](Job* j) { j->spec.seed = ~j->spec.seed; },
      [](Job* j) { j->spec.initial.deviation = 0.0134; },
      [](Job* j) { j->spec.initial.embedding_deviation = 1; },
      [](Job* j) { j->spec.initial.scale_outputs = true; },
      [](Job* j) {
        j->spec.on_nonfinite = {StepAction::kSkip, 10};
      },
      [](Job* j) {
        j->spec.on_nonfinite = {StepAction::kSkip, 11};
      },
      [](Job* j) {
        j->spec.on_nonfinite = {StepAction::kRewind, 10};
      },
      [](Job* j) {
        j->spec.on_spike = {StepAction::kStop, 0, 10, 128};
      },
      [](Job* j) {
        j->spec.on_spike = {StepAction::kSkip, 5, 10, 128};
      },
      [](Job* j) {
        j->spec.on_spike = {StepAction::kSkip, 5, 11, 128};
      },
      [](Job* j) {
        j->spec.on_spike = {StepAction::kSkip, 5, 10, 64};
      },
      [](Job* j) { j->spec.optimizer.kind = OptimizerKind::kSgd; },
      [](Job* j) { j->spec.optimizer.lr *= 1.0000000000000002; },
      [](Job* j) { j->spec.optimizer.weight_decay = 0; },
      [](Job* j) { j->spec.optimizer.beta1 = 0.8; },
      [](Job* j) { j->spec.optimizer.beta2 = 0.8; },
      [](Job* j) { j->spec.optimizer.eps = 1e-9; },
      [](Job* j) { j->spec.optimizer.momentum = 0.5; },
      [](Job* j) { j->spec.optimizer.nesterov = true; },
      [](Job* j) { j->spec.optimizer.clip_norm = 1; },
      [](Job* j) { j->spec.schedule.shape = ScheduleShape::kWsd; },
      [](Job* j) { j->spec.schedule.warmup_steps = 7; },
      [](Job* j) { j->spec.schedule.decay_steps = 7; },
      [](Job* j) { j->spec.schedule.min_lr_ratio = 0.1; },
      [](Job* j) { j->spec.precision.compute = DType::kFp16; },
      [](Job* j) { j->spec.precision.main_grads = DType::kBf16; },
      [](Job* j) { j->spec.precision.grad_comm = DType::kBf16; },
      [](Job* j) { j->spec.precision.moments = DType::kBf16; },
      [](Job* j) { j->spec.loss_scale.initial = 2; },
      [](Job* j) { j->spec.loss_scale.growth_interval = 2; },
      [](Job* j) { j->spec.strategy = Strategy::kOptim; },
      [](Job* j) { j->spec.prefetch_bytes = 7; },
      [](Job* j) { j->spec.keep_gathered = true; },
      [](Job* j) { j->spec.offload_optimizer = true; },
      [](Job* j) { j->spec.offloaded_layers = 1; },
      [](Job* j) { j->spec.recompute = Recompute::kFull; },
      [](Job* j) { j->spec.recompute_layers = 1; },
      [](Job* j) { j->spec.device = DeviceKind::kCuda; },
      [](Job* j) { j->spec.mesh = Mesh::DataParallel(1, 2); },
      [](Job* j) { j->spec.mesh = Mesh::DataParallel(2, 1); },
      [](Job* j) { j->spec.outer_strategy = Strategy::kOptim; },
  };
}

Changes PlanChanges() {
  return {
      [](Job* j) { j->layout.buckets[0].shards = 4; },
      [](Job* j) { j->layout.buckets[0].pieces = 2; },
      [](Job* j) { j->layout.buckets[0].groups.shard = Group::kWorld; },
      [](Job* j) { j->layout.buckets[0].groups.pieces = Group::kReplicate; },
      [](Job* j) { j->layout.buckets[0].groups.reduce = Group::kWorld; },
      [](Job* j) { j->layout.buckets[0].groups.replicate = Group::kReplicate; },
      [](Job* j) {
        j->layout.buckets[0].groups.slices = Group::kTensor;
        j->layout.buckets[0].slices = 2;
      },
      [](Job* j) {
        j->layout.buckets[0].params[0].partition = {1, 2};
      },
      [](Job* j) { j->spec.mesh = Mesh::DataParallel(1, 2).WithTensor(2); },
      [](Job* j) { j->layout.buckets[0].types.main = DType::kBf16; },
      [](Job* j) { j->layout.buckets[0].types.moment = DType::kBf16; },
      [](Job* j) { j->layout.buckets[0].types.gathered = DType::kBf16; },
      [](Job* j) {
        j->layout.buckets[0].types.gathered = DType::kFp8;
        j->layout.buckets[0].row = 16;
      },
      [](Job* j) {
        j->layout.buckets[0].types.gathered = DType::kFp8;
        j->layout.buckets[0].row = 32;
      },
      [](Job* j) { j->layout.buckets[0].types.grad_comm = DType::kBf16; },
      [](Job* j) { j->layout.buckets[0].types.gradient = DType::kBf16; },
      [](Job* j) { j->layout.buckets[0].types.split_fp32 = true; },
      [](Job* j) { j->layout.units[1].borrows = -1; },
      [](Job* j) { j->layout.buckets[0].trainable = false; },
      [](Job* j) {
        j->layout.buckets[0].trainable = false;
        j->layout.buckets[0].choices_begin = 8;
      },
      [](Job* j) { j->layout.buckets[0].main_elements = 32; },
      [](Job* j) { j->layout.buckets[0].shard_elements = 32; },
      [](Job* j) { j->layout.buckets[0].bucket_elements = 256; },
      [](Job* j) { j->layout.buckets[0].params[0].name = "wait"; },
      [](Job* j) {
        j->layout.buckets[0].params[0].shape = {8, 16};
      },
      [](Job* j) { j->layout.buckets[0].params[0].offset = 64; },
      [](Job* j) { j->layout.buckets[0].params[0].weight_decay = 0; },
      [](Job* j) { j->layout.buckets[0].params[0].lr_scale = 2; },
      [](Job* j) { j->program.kind = ProgramKind::kEvaluation; },
      [](Job* j) { j->program.arena_bytes = 1024; },
      [](Job* j) { j->program.buffers[0].kind = BufferKind::kWire; },
      [](Job* j) { j->program.buffers[0].bucket = 1; },
      [](Job* j) { j->program.buffers[0].bytes = 511; },
      [](Job* j) { j->program.buffers[0].offset = 0; },
      [](Job* j) { j->program.buffers[0].live[0].dies = 2; },
      [](Job* j) { j->program.instructions[1].op = Op::kBackward; },
      [](Job* j) { j->program.instructions[1].unit = 1; },
      [](Job* j) { j->program.instructions[0].bucket = 1; },
      [](Job* j) { j->program.instructions[1].micro_batch = 1; },
      [](Job* j) { j->program.instructions[1].lane = LaneId::kOuter; },
      [](Job* j) { j->program.instructions[0].group = Group::kWorld; },
      [](Job* j) { j->program.instructions[0].role = Role::kReduce; },
      [](Job* j) { j->program.instructions[1].accumulate = true; },
      [](Job* j) { j->program.instructions[1].defers_grads = true; },
      [](Job* j) { j->program.instructions[1].recompute = Recompute::kSelective; },
      [](Job* j) { j->program.instructions[1].after.clear(); },
      [](Job* j) { j->program.instructions[0].after_previous.clear(); },
      [](Job* j) { j->program.instructions[1].uses[0].access = Access::kWrite; },
      [](Job* j) { j->program.instructions[1].uses[0].buffer = 1; },
      [](Job* j) { j->program.instructions.pop_back(); },
  };
}

void ExpectEachShows(const Changes& changes) {
  const std::vector<std::string> lines = SmallJob().Lines();
  for (size_t i = 0; i < changes.size(); ++i) {
    Job job = SmallJob();
    changes[i](&job);
    EXPECT_NE(HashOf(job.Lines()), HashOf(lines)) << "change " << i;
    const LineDifference difference = FirstDifference(lines, job.Lines());
    EXPECT_NE(difference.first, difference.second) << "change " << i;
    EXPECT_FALSE(difference.first.empty() || difference.second.empty()) << "change " << i;
  }
}

TEST(Fingerprint, CoversEverythingRanksMustAgreeOn) {
  ExpectEachShows(ModelAndDataChanges());
  ExpectEachShows(TrainingChanges());
  ExpectEachShows(PlanChanges());
}

TEST(Fingerprint, OmitsSettingsThatMayDiffer) {
  Job job = SmallJob();
  job.spec.name = "other";
  job.spec.data.tokens[0].path = "/mnt/elsewhere/a.bin";
  job.spec.memory_budget_bytes = 7;
  EXPECT_EQ(job.Lines(), SmallJob().Lines());
}

TEST(Fingerprint, CoversCheckpointSettingsIfUsed) {
  const auto differs = [](const CheckpointConfig& a, const CheckpointConfig& b) {
    Job first = SmallJob(), second = SmallJob();
    first.spec.checkpoint = a;
    second.spec.checkpoint = b;
    return first.Lines() != second.Lines();
  };
  CheckpointConfig saves, loads;
  saves.dir = "/runs/1";
  saves.every_steps = 10;
  loads.load = "/runs/0";
  EXPECT_TRUE(differs({}, saves));
  EXPECT_TRUE(differs({}, loads));
  CheckpointConfig other = saves;
  other.dir = "/runs/2";
  EXPECT_TRUE(differs(saves, other));
  other = saves;
  other.every_steps = 20;
  EXPECT_TRUE(differs(saves, other));
  other = saves;
  other.on_end = true;
  EXPECT_TRUE(differs(saves, other));
  other = saves;
  other.keep_last = 7;
  other.keep_every = 20;
  EXPECT_FALSE(differs(saves, other)) << "what one rank does alone";
  other = loads;
  other.load = "/runs/2";
  EXPECT_TRUE(differs(loads, other));
  other = loads;
  other.load_optimizer = false;
  EXPECT_TRUE(differs(loads, other));
  other.load_optimizer = true;
  EXPECT_TRUE(differs(loads, other)) << "which is more than what there is";
  other = {};
  other.every_steps = 10;
  other.load_optimizer = false;
  EXPECT_FALSE(differs({}, other)) << "nothing is saved or loaded";
}

TEST(Fingerprint, ReportsFirstDifference) {
  Job job = SmallJob();
  job.spec.global_batch = 32;
  job.program.arena_bytes = 0;
  const LineDifference difference = FirstDifference(SmallJob().Lines(), job.Lines());
  EXPECT_EQ(difference.first, "spec.global_batch = 64");
  EXPECT_EQ(difference.second, "spec.global_batch = 32");
}

TEST(Fingerprint, ShorterListDiffersByLine) {
  EXPECT_EQ(FirstDifference({"a", "b"}, {"a"}).first, "b");
  EXPECT_EQ(FirstDifference({"a", "b"}, {"a"}).second, "nothing");
  EXPECT_EQ(FirstDifference({}, {"a"}).second, "a");
  EXPECT_TRUE(FirstDifference({}, {}).first.empty());
}

TEST(Fingerprint, HashSeparatesLines) {
  EXPECT_NE(HashOf({"ab", "c"}), HashOf({"a", "bc"}));
  EXPECT_NE(HashOf({"ab"}), HashOf({"ab", ""}));
  EXPECT_EQ(HashOf({}), "ef46db3751d8e999");  // XXH64 of the empty input; platform-independent.
}

}  // namespace
}  // namespace fsdpd
