// Tests of `ckpt inspect` and `ckpt verify` with intact and corrupt checkpoints. tests/parity uses
// checkpoints of PyTorch.
#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CkptCommandTest : public CommandCase {
 protected:
  CkptCommandTest() {
    EXPECT_TRUE(CommitTestFiles(dir_.path(), WriteTestFiles(dir_.path(), SmallTensors(), 2)).ok());
  }

  int Run(const std::vector<std::string>& arguments) { return RunCommand(arguments); }

  TempDir dir_;
};

TEST_F(CkptCommandTest, InspectPrintsContents) {
  EXPECT_EQ(Run({"ckpt", "inspect", dir_.path()}), kExitOk);
  EXPECT_EQ(err_, "");
  EXPECT_THAT(out_, HasSubstr("5 tensors and 1 other entry, "));
  EXPECT_THAT(out_, HasSubstr("TENSOR   TYPE      SHAPE      CHUNKS  BYTES\n"
                              "model.b  bfloat16  [11]       2       22 B\n"
                              "model.c  int64     [2, 3, 4]  2       192 B\n"
                              "model.w  float32   [5, 7]     4       140 B\n"
                              "none     float32   [0, 4]     1       0 B\n"
                              "step     float32   []         1       4 B\n"));
  EXPECT_THAT(out_, HasSubstr("ENTRY      CONTENT  BYTES\niteration  7"));
}

TEST_F(CkptCommandTest, JsonHasAllFields) {
  EXPECT_EQ(Run({"ckpt", "inspect", dir_.path(), "-o", "json"}), kExitOk);
  EXPECT_THAT(out_, HasSubstr(R"("name": "model.w")"));
  EXPECT_THAT(out_, HasSubstr(R"("file": "__1_0.distcp")"));
  EXPECT_THAT(out_, HasSubstr(R"("verified": false)"));
  EXPECT_EQ(Run({"ckpt", "verify", dir_.path(), "-o", "yaml"}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("verified: true"));
  EXPECT_THAT(out_, HasSubstr("errors: []"));
}

TEST_F(CkptCommandTest, VerifyAcceptsIntactCheckpoint) {
  EXPECT_EQ(Run({"ckpt", "verify", dir_.path()}), kExitOk);
  EXPECT_THAT(out_, HasSubstr(" in 2 files: intact\n"));
  EXPECT_EQ(err_, "");
}

TEST_F(CkptCommandTest, PrintsOneLinePerDefectAndExitsWith9) {
  std::string bytes = ReadFileOf(dir_.File("__1_0.distcp"));
  bytes[bytes.size() / 2] ^= 1;
  WriteFileOf(dir_.File("__1_0.distcp"), bytes);
  EXPECT_EQ(Run({"ckpt", "verify", dir_.path()}), kExitDamaged);
  EXPECT_THAT(err_, HasSubstr(dir_.path() + ": error: __1_0.distcp: checksum does not match"));
  EXPECT_EQ(out_, "");
  EXPECT_EQ(Run({"ckpt", "inspect", dir_.path()}), kExitOk) << "inspect does not read tensor data";
  std::filesystem::remove(dir_.File("__0_0.distcp"));
  for (const char* action : {"inspect", "verify"}) {
    EXPECT_EQ(Run({"ckpt", action, dir_.path(), "-o", "json"}), kExitDamaged);
    EXPECT_THAT(err_, HasSubstr("error: __0_0.distcp: "));
    EXPECT_THAT(out_, HasSubstr(R"("where": "__0_0.distcp")"));
  }
  EXPECT_EQ(Run({"ckpt", "inspect", dir_.path()}), kExitDamaged);
  EXPECT_THAT(out_, HasSubstr("model.w")) << "intact tensors are listed";
  EXPECT_THAT(out_, HasSubstr("iteration  ?"));
}

// Regression: a corrupt value was reported by the file check and again when its content was described.
TEST_F(CkptCommandTest, ReportsFlippedByteOnce) {
  for (const char* file : {".metadata", ".fsdpd_sums", "__0_0.distcp", "__1_0.distcp"}) {
    const std::string good = ReadFileOf(dir_.File(file));
    for (size_t at = 0; at < good.size(); at += 7) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      WriteFileOf(dir_.File(file), bad);
      EXPECT_EQ(Run({"ckpt", "verify", dir_.path()}), kExitDamaged) << file << ", byte " << at;
      const std::vector<std::string> lines = absl::StrSplit(err_, '\n', absl::SkipEmpty());
      const std::set<std::string> different(lines.begin(), lines.end());
      EXPECT_EQ(lines.size(), different.size()) << file << ", byte " << at << ":\n" << err_;
      const auto of_value = std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
        return line.find(": error: iteration: ") != std::string::npos;
      });
      EXPECT_LE(of_value, 1) << file << ", byte " << at << ":\n" << err_;  // Not in a different form either.
    }
    WriteFileOf(dir_.File(file), good);
  }
}

TEST_F(CkptCommandTest, RejectsDirectoryWithoutCheckpoint) {
  EXPECT_EQ(Run({"ckpt", "inspect", dir_.File("absent")}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("absent: no such directory"));
  std::filesystem::create_directory(dir_.File("empty"));
  EXPECT_EQ(Run({"ckpt", "verify", dir_.File("empty")}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("empty: not a checkpoint: it has neither .metadata, nor safetensors"));
  WriteFileOf(dir_.File("empty/adapter_model.bin"), "x");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"ckpt", "inspect", dir_.File("empty")},
        std::vector<std::string>{"ckpt", "merge", dir_.File("empty"), dir_.File("merged")}}) {
    EXPECT_EQ(Run(words), kExitUsage);
    EXPECT_THAT(err_, HasSubstr("empty: not a checkpoint: adapters are in adapter_model.bin; save them"));
  }
  WriteFileOf(dir_.File("file"), "x");
  EXPECT_EQ(Run({"ckpt", "verify", dir_.File("file")}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("file: is not a directory"));
  WriteFileOf(dir_.File(".metadata"), "\x80\x04]q.");
  EXPECT_EQ(Run({"ckpt", "verify", dir_.path()}), kExitDamaged);
  EXPECT_THAT(err_, HasSubstr("/.metadata: invalid pickle, byte "));
  EXPECT_EQ(Run({"ckpt"}), kExitUsage);
  EXPECT_EQ(Run({"ckpt", "verify"}), kExitUsage);
  EXPECT_EQ(Run({"ckpt", "repair", dir_.path()}), kExitUsage);
}

TEST_F(CkptCommandTest, RejectsEmptyPath) {
  EXPECT_EQ(Run({"ckpt", "verify", ""}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("DIR"));
}

// This is not corruption.
TEST_F(CkptCommandTest, ReportsTooManyOpenFiles) {
  for (const char* action : {"inspect", "verify"}) {
    rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    rlimit none = before;
    none.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &none);
    EXPECT_EQ(Run({"ckpt", action, dir_.path()}), kExitUsage);
    setrlimit(RLIMIT_NOFILE, &before);
    EXPECT_THAT(err_, HasSubstr("Too many open files"));
  }
}

// Pickle protocol 0, which torch.load accepts.
TEST_F(CkptCommandTest, AcceptsUnsupportedPickleProtocol) {
  TempDir dir;
  const DcpFile layout = LayOut("__0_0.distcp", {}, {{"step", TorchSaved("I7\n.")}});
  const auto writer = DcpWriter::Create(dir.path(), layout);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::StatusOr<DcpSum> sum = (*writer)->Finish();
  ASSERT_TRUE(sum.ok()) << sum.status();
  ASSERT_TRUE(CommitDcp(dir.path(), {&layout}, {*sum}).ok());
  EXPECT_EQ(Run({"ckpt", "inspect", dir.path()}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("step   not read"));
  EXPECT_EQ(Run({"ckpt", "verify", dir.path()}), kExitOk) << err_;
}

// Directory names may contain any bytes, but proto strings must be UTF-8.
TEST_F(CkptCommandTest, EscapesInvalidUtf8InJson) {
  const std::string directory = dir_.path() + "/\xff";
  std::filesystem::create_directory(directory);
  ASSERT_TRUE(CommitTestFiles(directory, WriteTestFiles(directory, SmallTensors(), 1)).ok());
  std::filesystem::remove(directory + "/__0_0.distcp");
  EXPECT_EQ(Run({"ckpt", "verify", directory, "-o", "json"}), kExitDamaged);
  EXPECT_THAT(out_, HasSubstr(R"(/\\xff")"));
  EXPECT_THAT(out_, HasSubstr(R"("error": "open: No such file or directory")"));
}

TEST_F(CkptCommandTest, InterruptCancelsVerify) {
  interrupt_.Fire();
  EXPECT_EQ(Run({"ckpt", "verify", dir_.path()}), kExitInterrupted);
}

// Names must not move the cursor.
TEST_F(CkptCommandTest, EscapesControlCharactersInNames) {
  TempDir dir;
  const std::vector<TestTensor> tensors = {MakeTestTensor("a\x1b[2Jb", "float32", {3})};
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), tensors, 1)).ok());
  EXPECT_EQ(Run({"ckpt", "inspect", dir.path()}), kExitOk);
  EXPECT_THAT(out_, HasSubstr("a\\x1b[2Jb"));
}

// A safetensors directory: model.w in one file, the rest in two others.
class HfCommandTest : public CkptCommandTest {
 protected:
  HfCommandTest() {
    std::filesystem::create_directory(hf_);
    std::vector<StoredTensor> stored;
    for (const TestTensor& tensor : tensors_) {
      stored.push_back({tensor.name, tensor.type, tensor.shape, static_cast<int64_t>(tensor.numbers.size())});
    }
    const auto writer = MakeHfWriter(hf_, stored, 170, "{}");
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_TRUE((*writer)->Write(i, tensors_[i].numbers.data()).ok());
    }
    EXPECT_TRUE((*writer)->Finish().ok());
  }

  const std::vector<TestTensor> tensors_ = SmallTensors();
  const std::string hf_ = dir_.File("of_hf");
};

TEST_F(HfCommandTest, InspectsAndVerifiesSafetensors) {
  EXPECT_EQ(Run({"ckpt", "inspect", hf_}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("model.c  int64     [2, 3, 4]  1       192 B\n"));
  EXPECT_EQ(err_, "");
  EXPECT_EQ(Run({"ckpt", "verify", hf_}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("5 tensors and 0 other entries, "));
  EXPECT_THAT(out_, HasSubstr(" in 3 files: intact\n"));
  EXPECT_THAT(err_, HasSubstr(hf_ + ": note: 5 records have no checksums"));
  EXPECT_EQ(Run({"ckpt", "verify", hf_, "-o", "json"}), kExitOk);
  EXPECT_THAT(out_, HasSubstr(R"("file": "model-00002-of-00003.safetensors")"));
  EXPECT_THAT(out_, HasSubstr(R"("verified": true)"));
}

TEST_F(HfCommandTest, PrintsOneLinePerSafetensorsDefect) {
  std::filesystem::remove(hf_ + "/model-00001-of-00003.safetensors");
  std::filesystem::resize_file(hf_ + "/model-00002-of-00003.safetensors", 100);
  for (const char* action : {"inspect", "verify"}) {
    EXPECT_EQ(Run({"ckpt", action, hf_}), kExitDamaged);
    EXPECT_THAT(err_, HasSubstr(hf_ + ": error: model-00001-of-00003.safetensors: "));
    EXPECT_THAT(err_, HasSubstr(hf_ + ": error: model-00002-of-00003.safetensors: header exceeds the file"));
  }
}

// The directory of a job: three committed checkpoints, the first of which is corrupt, and one uncommitted.
class DirectoryCommandTest : public CkptCommandTest {
 protected:
  DirectoryCommandTest() {
    for (const char* name : {"iter_0000100", "iter_0000200", "iter_0000300", "iter_0000400"}) {
      std::filesystem::create_directories(Path(name));
      const WrittenFiles written = WriteTestFiles(Path(name), SmallTensors(), 1);
      const bool commits = std::string(name) != "iter_0000400";
      EXPECT_TRUE(!commits || CommitTestFiles(Path(name), written).ok());
    }
  }

  std::string Path(const std::string& name) const { return runs_ + "/" + name; }

  void Damage(const std::string& name) {
    std::string bytes = ReadFileOf(Path(name) + "/__0_0.distcp");
    bytes[bytes.size() / 2] ^= 1;
    WriteFileOf(Path(name) + "/__0_0.distcp", bytes);
  }

  const std::string runs_ = dir_.File("runs");
};

TEST_F(DirectoryCommandTest, VerifyReportsAllNewestFirst) {
  EXPECT_EQ(Run({"ckpt", "verify", runs_ + "/"}), kExitOk) << err_;
  const std::vector<std::string> lines = absl::StrSplit(out_, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], AllOf(StartsWith(Path("iter_0000300") + ": 5 tensors"), EndsWith(": intact")));
  EXPECT_THAT(lines[2], StartsWith(Path("iter_0000100")));
  EXPECT_THAT(err_, HasSubstr(Path("iter_0000400") + ": note: skipped, because it was not committed"));
  Damage("iter_0000200");
  WriteFileOf(Path("iter_0000100") + "/.metadata", "\x80\x04]q.");
  EXPECT_EQ(Run({"ckpt", "verify", runs_}), kExitDamaged);
  EXPECT_THAT(out_, HasSubstr(Path("iter_0000100") + ": cannot be read\n"));
  EXPECT_THAT(out_, ContainsRegex("iter_0000200: 5 tensors.* in 1 file: [12] defect"));
  EXPECT_THAT(err_, HasSubstr(Path("iter_0000200") + ": error: __0_0.distcp: checksum does not match"));
  EXPECT_THAT(out_, HasSubstr(Path("iter_0000300") + ": 5 tensors"));
}

// Stream buffer that removes a directory on the first write.
class RemovingBuffer : public std::stringbuf {
 public:
  explicit RemovingBuffer(std::string directory) : directory_(std::move(directory)) {}

 private:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    std::filesystem::remove_all(directory_);
    return std::stringbuf::xsputn(text, count);
  }
  const std::string directory_;
};

// Like keep_last of a running job.
TEST_F(DirectoryCommandTest, IgnoresCheckpointRemovedDuringVerify) {
  RemovingBuffer buffer(Path("iter_0000200"));
  std::istringstream in;
  std::ostringstream err;
  std::ostream out(&buffer);
  Console console{in, out, err};
  EXPECT_EQ(RunFsdpctl({"ckpt", "verify", runs_}, &console), kExitOk) << err.str();
  EXPECT_THAT(buffer.str(),
              AllOf(HasSubstr("iter_0000300: 5 tensors"), HasSubstr("iter_0000100: 5 tensors")));
  EXPECT_THAT(err.str(), HasSubstr(Path("iter_0000200") + ": note: removed while it was read\n"));
}

TEST_F(DirectoryCommandTest, OtherCommandsUseNewestWithNote) {
  EXPECT_EQ(Run({"ckpt", "inspect", runs_}), kExitOk) << err_;
  EXPECT_THAT(out_, HasSubstr("5 tensors and 1 other entry"));
  EXPECT_EQ(err_,
            runs_ + ": note: directory of checkpoints; using the newest, " + Path("iter_0000300") + "\n");
  EXPECT_EQ(Run({"ckpt", "diff", runs_, dir_.path()}), kExitOk) << out_;
  EXPECT_THAT(err_, HasSubstr("directory of checkpoints; using the newest"));
}

TEST_F(CkptCommandTest, SuggestsDownloadForHubName) {
  for (const char* action : {"inspect", "verify"}) {
    EXPECT_EQ(Run({"ckpt", action, "meta-llama/Llama-3.1-8B"}), kExitUsage);
    EXPECT_THAT(err_, HasSubstr("`hf download meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B`"));
  }
  EXPECT_EQ(Run({"ckpt", "convert", "gpt2-org/gpt2", dir_.File("out"), "--to", "fsdp_dtensor"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("hf download"));
  EXPECT_EQ(Run({"ckpt", "inspect", "/gpt2"}), kExitUsage);
  EXPECT_THAT(err_, Not(HasSubstr("hf download")));
}

}  // namespace
}  // namespace fsdpd
