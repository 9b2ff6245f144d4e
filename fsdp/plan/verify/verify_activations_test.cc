// Tests of rule 12 (activation offload), and that compiled programs satisfy it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/program/testing/program_edits.h"
#include "fsdp/plan/verify/verify.h"

namespace fsdpd {
namespace {

struct Compiled {
  Spec spec;
  ModelFacts model;
  Layout layout;
  Program program;

  int Find(Op op, int unit, int micro_batch = 0) const {
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& at = program.instructions[i];
      if (at.op == op && at.unit == unit && at.micro_batch == micro_batch) return static_cast<int>(i);
    }
    ADD_FAILURE() << "no " << NameOf(op) << " of unit " << unit;
    return 0;
  }
  Instruction& At(Op op, int unit, int micro_batch = 0) {
    return program.instructions[Find(op, unit, micro_batch)];
  }
};

// Embedding (unit 0), six layers (the first, third and fifth offloaded), head (unit 7); two micro-batches on
// two ranks.
Compiled Compile(int64_t offloaded = 3) {
  Compiled c;
  LlamaConfig llama;
  llama.vocab_size = 64;
  llama.hidden_size = 32;
  llama.intermediate_size = 48;
  llama.layers = 6;
  llama.heads = 4;
  llama.kv_heads = 2;
  llama.head_size = 8;
  c.spec.model = llama;
  c.spec.data.sequence_length = 8;
  c.spec.data.synthetic_vocab = 64;
  c.spec.steps = 1;
  c.spec.mesh = Mesh::DataParallel(1, 2);
  c.spec.global_batch = 4;
  c.spec.prefetch_bytes = 1 << 14;
  c.spec.offloaded_layers = offloaded;
  c.model = DescribeSpec(c.spec);
  c.layout = MakeLayout(c.model, LayoutOptionsOf(c.spec));
  c.program = CompileProgram(c.spec, c.model, c.layout);
  return c;
}

void ExpectCaught(const std::string& names, const std::function<void(Compiled*)>& hurt) {
  Compiled c = Compile();
  ASSERT_TRUE(Verify(c.program, c.layout, c.spec).ok()) << Verify(c.program, c.layout, c.spec);
  hurt(&c);
  const absl::Status status = Verify(c.program, c.layout, c.spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string(status.message()).find("rule 12: "), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find(names), std::string::npos) << status;
}

TEST(VerifyActivations, AcceptsAnyNumberOfOffloadedLayers) {
  for (int64_t offloaded = 0; offloaded <= 6; ++offloaded) {
    const Compiled c = Compile(offloaded);
    EXPECT_TRUE(Verify(c.program, c.layout, c.spec).ok()) << Verify(c.program, c.layout, c.spec);
    const auto& all = c.program.instructions;
    for (const Op op : {Op::kOffloadActivations, Op::kDropActivations, Op::kFetchActivations})
      EXPECT_EQ(std::count_if(all.begin(), all.end(), [op](const Instruction& i) { return i.op == op; }),
                2 * offloaded);
  }
}

TEST(VerifyActivations, RejectsMissingOffloadDropOrFetch) {
  for (const Op op : {Op::kOffloadActivations, Op::kDropActivations, Op::kFetchActivations}) {
    ExpectCaught("layer.2", [op](Compiled* c) { RemoveInstruction(&c->program, c->Find(op, 3)); });
    ExpectCaught("layer.2", [op](Compiled* c) {
      const int at = c->Find(op, 3);
      InsertInstruction(&c->program, at + 1, Instruction(c->program.instructions[at]));
    });
  }
  ExpectCaught("the saved activations of layer.3",
               [](Compiled* c) { c->At(Op::kOffloadActivations, 3).unit = 4; });
}

TEST(VerifyActivations, RejectsUseBeforeCopyCompletes) {
  ExpectCaught("the saved activations of layer.2",
               [](Compiled* c) { c->At(Op::kOffloadActivations, 3).after.clear(); });
  ExpectCaught("the saved activations of layer.2",
               [](Compiled* c) { c->At(Op::kDropActivations, 3).after.clear(); });
  ExpectCaught("the saved activations of layer.4",
               [](Compiled* c) { c->At(Op::kFetchActivations, 5).after.clear(); });
  ExpectCaught("the saved activations of layer.2", [](Compiled* c) {
    std::vector<int>& after = c->At(Op::kBackward, 3).after;
    const auto fetch = std::find(after.begin(), after.end(), c->Find(Op::kFetchActivations, 3));
    ASSERT_NE(fetch, after.end());
    after.erase(fetch);
  });
}

// Bytes may still be in use by earlier compute, except those that the first fetched layer freed with its own
// DropKept.
TEST(VerifyActivations, FetchWaitsForEarlierCompute) {
  ExpectCaught("does not wait for #", [](Compiled* c) {
    c->At(Op::kFetchActivations, 1).after = {c->Find(Op::kDropActivations, 1)};
  });
}

TEST(VerifyActivations, RejectsTooManyInFlight) {
  ExpectCaught("exceeds the layers in flight", [](Compiled* c) {
    // The first layer's bytes stay until the third has run.
    const int drop = c->Find(Op::kDropActivations, 1), forward = c->Find(Op::kForward, 5);
    ASSERT_LT(drop, forward);
    const Instruction dropped = c->program.instructions[drop];
    InsertInstruction(&c->program, forward + 1, dropped);
    RemoveInstruction(&c->program, drop);
  });
}

}  // namespace
}  // namespace fsdpd
