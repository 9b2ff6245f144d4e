#include "fsdp/checkpoint/job/start_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

ModelConfig Model() {
  LlamaConfig llama;
  llama.vocab_size = 16, llama.hidden_size = 8, llama.intermediate_size = 12, llama.layers = 1;
  llama.heads = llama.kv_heads = 2, llama.head_size = 4;
  return llama;
}

// A checkpoint with one tensor; a job's also has a step.
std::string Made(const TempDir& dir, const std::string& name, bool with_step) {
  const std::vector<TestTensor> tensors = {MakeTestTensor(name, "float32", {4})};
  if (with_step) {
    EXPECT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), tensors, 1)).ok());
    return dir.path();
  }
  const DcpFile file = LayOut(DcpFileName(0), PiecesOfRun(name, tensors[0].type, {4}, 0, 4));
  const auto writer = DcpWriter::Create(dir.path(), file);
  EXPECT_TRUE(writer.ok() && (*writer)->Write(0, tensors[0].numbers.data()).ok());
  EXPECT_TRUE(CommitDcp(dir.path(), {&file}, {*(*writer)->Finish()}).ok());
  return dir.path();
}

TEST(StartKind, IsDecidedByNames) {
  const TempDir job, made, fsdp2, titan, other, hf;
  EXPECT_EQ(*KindOfStart(Made(job, "model.module.embedding.weight", true), Model()), StartKind::kTraining);
  EXPECT_EQ(*KindOfStart(Made(made, "model.module.embedding.weight", false), Model()), StartKind::kNative);
  EXPECT_EQ(*KindOfStart(Made(fsdp2, "app.model.embed_tokens.weight", true), Model()), StartKind::kForeign);
  EXPECT_EQ(*KindOfStart(Made(titan, "tok_embeddings.weight", false), Model()), StartKind::kForeign);
  EXPECT_EQ(*KindOfStart(Made(other, "something.weight", true), Model()), StartKind::kTraining);
  EXPECT_EQ(*KindOfStart(hf.path(), Model()), StartKind::kForeign);
}

TEST(StartKind, RejectsRequestForMissingState) {
  CheckpointConfig checkpoint;
  const auto only = [&](StartKind kind) { return TakesParametersOnly(checkpoint, "/x", kind); };
  EXPECT_FALSE(*only(StartKind::kTraining));
  EXPECT_TRUE(*only(StartKind::kNative));
  EXPECT_TRUE(*only(StartKind::kForeign));
  checkpoint.load_optimizer = false;
  for (const StartKind kind : {StartKind::kTraining, StartKind::kNative, StartKind::kForeign})
    EXPECT_TRUE(*only(kind));
  checkpoint.load_optimizer = true;
  EXPECT_FALSE(*only(StartKind::kTraining));
  EXPECT_THAT(only(StartKind::kForeign).status().message(), HasSubstr("only its parameters"));
  EXPECT_THAT(only(StartKind::kNative).status().message(), HasSubstr("no step number"));
  EXPECT_EQ(only(StartKind::kNative).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace fsdpd
