#include "fsdp/engine/checkpoint_choice.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/check.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/error_cause.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

template <typename Write>
DcpSmall Value(const std::string& name, const Write& write) {
  PickleWriter writer;
  write(&writer);
  return {name, TorchSaved(writer.Take())};
}

// Writes a checkpoint of `job` with one tensor.
std::string Save(const std::string& dir, int64_t step, const std::string& job) {
  const std::string path = CheckpointPath(dir, step);
  fs::create_directories(path);
  const std::string zeros(256, '\0');
  const DcpFile file =
      LayOut(DcpFileName(0), PiecesOfRun("model.module.unit.weight", FindTensorType("float32"), {64}, 0, 64),
             {Value("iteration", [&](PickleWriter* writer) { writer->Int(step); }),
              Value("fsdpd.job", [&](PickleWriter* writer) { writer->Text(job); })});
  const auto writer = DcpWriter::Create(path, file);
  FSDPD_CHECK_OK(writer.status());
  FSDPD_CHECK_OK((*writer)->Write(0, zeros.data()));
  const auto sum = (*writer)->Finish();
  FSDPD_CHECK_OK(sum.status());
  FSDPD_CHECK_OK(CommitDcp(path, {&file}, {*sum}));
  return path;
}

void FlipLastByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(byte);
}

Spec SpecOf(const std::string& dir, const std::string& load = "") {
  Spec spec;
  LlamaConfig llama;
  llama.vocab_size = 8, llama.hidden_size = 4, llama.intermediate_size = 4, llama.layers = 1;
  llama.heads = llama.kv_heads = 1, llama.head_size = 4;
  spec.model = llama;
  spec.steps = 100;
  spec.checkpoint.dir = dir;
  spec.checkpoint.every_steps = 1;
  spec.checkpoint.load = load;
  return spec;
}

absl::StatusOr<std::optional<ChosenCheckpoint>> ChooseAlone(const Spec& spec, int64_t known_step = 0) {
  LocalStore store;
  return ChooseCheckpoint(spec, "job-1", known_step, &store, /*rank=*/0);
}

TEST(CheckpointChoice, PicksTheJobsNewest) {
  const TempDir dir;
  Save(dir.path(), 1, "job-1");
  const std::string newest = Save(dir.path(), 2, "job-1");
  const auto chosen = ChooseAlone(SpecOf(dir.path()));
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ((*chosen)->path, newest);
  EXPECT_TRUE((*chosen)->own);
}

// It existed before, and is older than the start of the job.
TEST(CheckpointChoice, NeverFallsBackToAnotherRuns) {
  const TempDir dir, loaded;
  Save(dir.path(), 1, "job-0");
  Save(loaded.path(), 2, "job-0");
  FlipLastByte(Save(dir.path(), 3, "job-1") + "/__0_0.distcp");
  const auto chosen = ChooseAlone(SpecOf(dir.path(), loaded.path()));
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kDataLoss) << chosen.status();
  EXPECT_THAT(chosen.status().message(), HasSubstr("iter_0000003: "));
}

TEST(CheckpointChoice, FallsBackToTheStartInTheSameDirectory) {
  const TempDir dir;
  Save(dir.path(), 1, "job-0");
  const std::string begun = Save(dir.path(), 2, "job-0");
  FlipLastByte(Save(dir.path(), 3, "job-1") + "/__0_0.distcp");
  const auto chosen = ChooseAlone(SpecOf(dir.path(), dir.path()));
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ((*chosen)->path, begun);
  EXPECT_FALSE((*chosen)->own);
  EXPECT_THAT((*chosen)->skipped_checkpoints, ElementsAre(HasSubstr("iter_0000003: ")));
}

// Another run may hold the directory lock and be reading it.
TEST(CheckpointChoice, ReportsDamageWithoutRenaming) {
  const TempDir dir;
  Save(dir.path(), 1, "job-1");
  const std::string damaged = Save(dir.path(), 2, "job-1");
  FlipLastByte(damaged + "/__0_0.distcp");
  const auto chosen = ChooseAlone(SpecOf(dir.path()));
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT((*chosen)->set_aside, ElementsAre(damaged));
  EXPECT_TRUE(fs::exists(damaged));
  EXPECT_FALSE(fs::exists(damaged + ".damaged"));
}

// The volume is not mounted, the directory was renamed, or its files were deleted: the job must not start
// fresh, but resume when they are back.
TEST(CheckpointChoice, RefusesFreshStartAfterACommit) {
  const TempDir dir, loaded;
  Save(loaded.path(), 1, "job-0");
  for (const std::string& load : {std::string(), loaded.path(), dir.File("run")}) {
    SCOPED_TRACE(load);
    const Spec spec = SpecOf(dir.File("run"), load);
    const auto gone = ChooseAlone(spec, 60);
    EXPECT_EQ(gone.status().code(), absl::StatusCode::kNotFound) << gone.status();
    EXPECT_EQ(gone.status().message(),
              "checkpoint.dir: " + dir.File("run") +
                  " does not exist, but the job has committed step 60; mount or restore the directory, "
                  "or submit a new job to start at step 1");
    fs::create_directories(dir.File("run") + "/iter_0000060");
    EXPECT_THAT(ChooseAlone(spec, 60).status().message(),
                HasSubstr(dir.File("run") +
                          " has no checkpoint of this job (iter_0000060 has no .metadata and is ignored), "
                          "but the job has committed "));
    fs::create_directories(dir.File("run") + "/iter_0000020");
    EXPECT_THAT(ChooseAlone(spec, 60).status().message(),
                HasSubstr("(iter_0000060 and 1 more have no .metadata and are ignored), but "));
    const std::string older = Save(dir.File("run"), 40, "job-1");
    const auto back = ChooseAlone(spec, 60);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ((*back)->path, older);
    fs::remove_all(dir.File("run"));
  }
}

TEST(CheckpointChoice, RefusesAnotherRunsAfterACommit) {
  const TempDir dir;
  Save(dir.path(), 1, "job-0");
  for (const std::string& load : {std::string(), dir.path()}) {
    const auto chosen = ChooseAlone(SpecOf(dir.path(), load), 2);
    EXPECT_EQ(chosen.status().code(), absl::StatusCode::kNotFound) << chosen.status();
  }
}

TEST(CheckpointChoice, ReportsALostNewest) {
  const TempDir dir;
  const std::string older = Save(dir.path(), 1, "job-1");
  const std::string newest = Save(dir.path(), 2, "job-1");
  fs::remove(newest + "/.metadata");
  const auto chosen = ChooseAlone(SpecOf(dir.path()), 2);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ((*chosen)->path, older);
  EXPECT_THAT((*chosen)->skipped_checkpoints, ElementsAre("iter_0000002: no longer has .metadata"));
  EXPECT_THAT((*chosen)->set_aside, ElementsAre(newest));
  fs::remove_all(newest);
  const auto without = ChooseAlone(SpecOf(dir.path()), 2);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_THAT((*without)->skipped_checkpoints, ElementsAre("iter_0000002: no longer exists"));
  EXPECT_THAT((*without)->set_aside, IsEmpty());
  // A newer step than the known one, whose commit was not reported.
  Save(dir.path(), 3, "job-1");
  EXPECT_THAT((*ChooseAlone(SpecOf(dir.path()), 2))->skipped_checkpoints, IsEmpty());
}

// The job has committed here, so the directory cannot be another run's.
TEST(CheckpointChoice, ReportsEachUnreadableCheckpoint) {
  const TempDir dir;
  fs::remove(Save(dir.path(), 1, "job-1") + "/__0_0.distcp");
  FlipLastByte(Save(dir.path(), 2, "job-1") + "/.metadata");
  const auto chosen = ChooseAlone(SpecOf(dir.path()), 2);
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kDataLoss) << chosen.status();
  EXPECT_THAT(std::string(chosen.status().message()),
              AllOf(StartsWith("no intact checkpoint: iter_0000002: "), HasSubstr("; iter_0000001: "),
                    HasSubstr("__0_0.distcp")));
}

TEST(CheckpointChoice, RefusesAnotherJobsDirectory) {
  const TempDir dir;
  Save(dir.path(), 1, "job-1");
  const std::string other = Save(dir.path(), 2, "job-2");
  const auto chosen = ChooseAlone(SpecOf(dir.path()));
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kFailedPrecondition) << chosen.status();
  EXPECT_THAT(chosen.status().message(), HasSubstr("iter_0000002 belongs to another run"));
  EXPECT_THAT(chosen.status().message(),
              HasSubstr("move checkpoints later than step 1 out of the directory and `fsdpctl retry job-1`"))
      << "a job that goes on has the directory that it has";
  EXPECT_TRUE(IsCheckpoint(other));
}

TEST(CheckpointChoice, ReportsAnUnreadableOnlyCheckpoint) {
  const TempDir dir;
  FlipLastByte(Save(dir.path(), 1, "job-1") + "/.metadata");
  const auto chosen = ChooseAlone(SpecOf(dir.path()));
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kDataLoss) << chosen.status();
  EXPECT_THAT(chosen.status().message(), HasSubstr("iter_0000001 cannot be read"));
}

// One file, whose tensor data is never read.
void SaveHf(const std::string& directory) {
  fs::create_directories(directory);
  const auto writer = MakeHfWriter(
      directory, {{"model.embed_tokens.weight", FindTensorType("float32"), {8, 4}, 128}}, 1 << 20, "{}");
  FSDPD_CHECK_OK(writer.status());
  FSDPD_CHECK_OK((*writer)->Write(0, std::string(128, '\1').data()));
  FSDPD_CHECK_OK((*writer)->Finish());
}

TEST(CheckpointChoice, AcceptsAHuggingFaceDirectory) {
  const TempDir dir, loaded;
  SaveHf(loaded.path());
  const auto chosen = ChooseAlone(SpecOf(dir.path(), loaded.path() + "/"));
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ((*chosen)->path, loaded.path());
  EXPECT_FALSE((*chosen)->own);
  // The job's own comes first, even if both are in one directory.
  SaveHf(dir.path());
  EXPECT_EQ((*ChooseAlone(SpecOf(dir.path(), dir.path())))->path, dir.path());
  const std::string own = Save(dir.path(), 3, "job-1");
  EXPECT_EQ((*ChooseAlone(SpecOf(dir.path(), dir.path())))->path, own);
  EXPECT_EQ((*ChooseAlone(SpecOf(dir.path(), loaded.path())))->path, own);
}

TEST(CheckpointChoice, ReportsMissingHuggingFaceFiles) {
  const TempDir dir, loaded;
  SaveHf(loaded.path());
  fs::resize_file(loaded.File("model.safetensors"), fs::file_size(loaded.File("model.safetensors")) - 1);
  const auto cut = ChooseAlone(SpecOf(dir.path(), loaded.path()));
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kDataLoss) << cut.status();
  EXPECT_THAT(cut.status().message(), HasSubstr("model.safetensors"));
  fs::remove(loaded.File("model.safetensors"));
  std::ofstream(loaded.File("model.safetensors.index.json"))
      << R"({"weight_map": {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"}})";
  const auto lost = ChooseAlone(SpecOf(dir.path(), loaded.path()));
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kDataLoss) << lost.status();
  EXPECT_THAT(lost.status().message(), HasSubstr("model-00001-of-00001.safetensors"));
  fs::remove(loaded.File("model.safetensors.index.json"));
  std::ofstream(loaded.File("pytorch_model.bin")) << "x";
  EXPECT_THAT(ChooseAlone(SpecOf(dir.path(), loaded.path())).status().message(),
              HasSubstr("save_pretrained()"));
}

TEST(CheckpointChoice, ExplainsPeftDirectoriesThatCannotBeRead) {
  const TempDir dir, loaded;
  const auto error = [&] {
    return std::string(ChooseAlone(SpecOf(dir.path(), loaded.path())).status().message());
  };
  fs::create_directory(loaded.File("first"));
  std::ofstream(loaded.File("first/adapter_config.json")) << "{}";
  EXPECT_THAT(error(), HasSubstr("adapters are in subdirectories (first); name one of them, "));
  std::ofstream(loaded.File("adapter_model.bin")) << "x";
  EXPECT_THAT(error(), HasSubstr("adapters are in adapter_model.bin; save them with safe_serialization"));
}

TEST(CheckpointChoice, ReportsAnUnsharedHuggingFaceDirectory) {
  const TempDir loaded;
  LocalStore store;
  ASSERT_TRUE(store.Set("restore/0", "loaded " + loaded.File("elsewhere")).ok());
  ASSERT_TRUE(store.Set("restore/0/verdict", "error 14 over").ok());
  EXPECT_FALSE(ChooseCheckpoint(SpecOf("", loaded.path()), "job-1", 0, &store, 1).ok());
  EXPECT_EQ(*store.Get("restore/0/1", absl::ZeroDuration()),
            absl::StrCat("error 5 rank 1: ", loaded.File("elsewhere"),
                         ": the directory does not exist on this node, and does on that of rank 0; mount it "
                         "on every node"));
}

// Each rank has its own copy.
TEST(CheckpointChoice, BlamesTheNodeWithADamagedCopy) {
  for (const int damaged : {0, 1}) {
    const TempDir copies[2];
    for (const TempDir& copy : copies) SaveHf(copy.path());
    const std::string file = copies[damaged].File("model.safetensors");
    fs::resize_file(file, fs::file_size(file) - 1);
    Spec spec = SpecOf("", copies[0].path());
    spec.mesh = Mesh::DataParallel(1, 2);
    LocalStore stores[2];  // Messages are copied, so that rank 1 gets the path of its copy.
    ASSERT_TRUE(stores[1].Set("restore/0", "loaded " + copies[1].path()).ok());
    absl::Status errors[2];
    std::vector<std::thread> ranks;
    for (const int rank : {0, 1}) {
      ranks.emplace_back(
          [&, rank] { errors[rank] = ChooseCheckpoint(spec, "job-1", 0, &stores[rank], rank).status(); });
    }
    const auto copy = [&](int from, const std::string& key) {
      const auto value = stores[from].Get(key, absl::Seconds(60));
      ASSERT_TRUE(value.ok()) << value.status();
      ASSERT_TRUE(stores[1 - from].Set(key, *value).ok());
    };
    copy(1, "restore/0/1");
    copy(0, "restore/0/verdict");
    for (std::thread& rank : ranks) rank.join();
    for (const absl::Status& error : errors) {
      EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss) << error;
      EXPECT_THAT(error.message(), StartsWith(absl::StrCat("rank ", damaged, ": ", file)));
    }
    EXPECT_TRUE(IsPeerLost(errors[1 - damaged]));
    EXPECT_FALSE(IsPeerLost(errors[damaged]));
    EXPECT_EQ(CauseOf(errors[damaged])->kind(), v1::ErrorClass::KIND_CONFIGURATION);
    EXPECT_TRUE(CauseOf(errors[damaged])->node_only());
  }
}

TEST(CheckpointChoice, MissingDirectoryErrorExplainsDownload) {
  const TempDir dir;
  const auto absent = ChooseAlone(SpecOf(dir.path(), dir.File("meta-llama/Llama-3.1-8B")));
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound) << absent.status();
  EXPECT_THAT(
      absent.status().message(),
      AllOf(HasSubstr("no checkpoint at " + dir.File("meta-llama/Llama-3.1-8B")),
            HasSubstr("the directory does not exist"), HasSubstr("`hf download NAME --local-dir DIR`")));
  const TempDir empty;
  EXPECT_THAT(ChooseAlone(SpecOf(dir.path(), empty.path())).status().message(),
              HasSubstr(": it has no .metadata, "));
}

// The requested load is impossible: nothing in the directory is set aside for it.
TEST(CheckpointChoice, RefusesAMissingOptimizer) {
  const TempDir dir, loaded;
  SaveHf(loaded.path());
  Spec spec = SpecOf(dir.path(), loaded.path());
  spec.checkpoint.load_optimizer = true;
  const auto chosen = ChooseAlone(spec);
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kFailedPrecondition) << chosen.status();
  EXPECT_THAT(chosen.status().message(), HasSubstr("checkpoint.load_optimizer: true is not supported"));
}

// A stale answer of a file server, or an unshared directory, on one node.
TEST(CheckpointChoice, FilesSeenOnlyByRank0AreNotDamaged) {
  const TempDir dir;
  Save(dir.path(), 1, "job-1");
  const std::string newest = Save(dir.path(), 2, "job-1");
  Spec spec = SpecOf(dir.path());
  spec.mesh = Mesh::DataParallel(1, 2);
  LocalStore store;
  absl::Status first;
  std::thread rank_0([&] { first = ChooseCheckpoint(spec, "job-1", 0, &store, 0).status(); });
  // Plays rank 1: what it answers if the checkpoint does not exist on its node.
  LocalStore elsewhere;
  ASSERT_TRUE(elsewhere.Set("restore/0", "own " + dir.File("iter_0000009")).ok());
  ASSERT_TRUE(elsewhere.Set("restore/0/verdict", "error 14 over").ok());
  EXPECT_FALSE(ChooseCheckpoint(spec, "job-1", 0, &elsewhere, 1).ok());
  const auto said = elsewhere.Get("restore/0/1", absl::ZeroDuration());
  ASSERT_TRUE(said.ok()) << said.status();
  ASSERT_TRUE(store.Set("restore/0/1", *said).ok());
  rank_0.join();
  EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable) << first;
  EXPECT_THAT(first.message(), HasSubstr("rank 1: "));
  EXPECT_TRUE(IsCheckpoint(newest));
}

}  // namespace
}  // namespace fsdpd
