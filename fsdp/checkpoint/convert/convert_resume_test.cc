// Interrupted conversions: what they leave, and that resuming produces the same bytes.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <map>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/names/job_keys.h"
#include "fsdp/checkpoint/names/tensor_names.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/plan/spec/testing/small_models.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kJournal[] = "/.fsdpd_conversion";

using Files = std::map<std::string, std::string>;  // Bytes by name.

Files FilesOf(const std::string& directory) {
  Files files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    files[entry.path().filename().string()] = ReadFileOf(entry.path().string());
  return files;
}

class ConvertResumeTest : public ::testing::Test {
 protected:
  ConvertResumeTest() {
    std::vector<TestTensor> tensors;
    for (const NamedParam& param : ParamsOf(SmallGpt2(), Naming::kOurs)) {
      for (const std::string& name : {MainKey(param.ours), OptimizerKey(param.ours, "exp_avg"),
                                      OptimizerKey(param.ours, "exp_avg_sq")}) {
        tensors.push_back(MakeSmallNumbers(name, param.shape));
        reinterpret_cast<float*>(tensors.back().numbers.data())[0] = 1e6f;  // Infinite in float16.
      }
      const float steps = 7;
      tensors.push_back({OptimizerKey(param.ours, "step"),
                         FindTensorType("float32"),
                         {},
                         std::string(reinterpret_cast<const char*>(&steps), 4)});
    }
    fs::create_directory(native_);
    EXPECT_TRUE(CommitTestFiles(native_, WriteTestFiles(native_, tensors, 2)).ok());
  }

  static ConversionOptions ConversionOf(const std::string& source, const std::string& target,
                                        StoreFormat to) {
    ConversionOptions conversion;
    conversion.source = source;
    conversion.target = target;
    conversion.model = SmallGpt2();
    conversion.to = to;
    conversion.type = FindTensorType(to == StoreFormat::kHf ? "float16" : "float32");
    conversion.file_bytes = to == StoreFormat::kHf ? 1500 : 3000;
    conversion.config = "{}\n";
    conversion.adam = AdamSettings();
    conversion.resumes = true;
    return conversion;
  }

  // Single-threaded, so that the set of complete files is deterministic.
  static absl::StatusOr<ConversionResult> Run(
      const ConversionOptions& conversion, const std::function<bool()>& stopped = [] { return false; }) {
    ConversionProgress progress;
    auto done = Convert(conversion, 1, stopped, &progress);
    if (done.ok()) {
      EXPECT_EQ(progress.bytes, progress.of_bytes);
    }
    return done;
  }

  // Runs it in a child process that is killed. False: it finished before.
  static bool KilledAfter(int tensors, const ConversionOptions& conversion) {
    const pid_t child = fork();
    if (child == 0) {
      int asked = 0;
      const auto kill_there = [&] {
        if (++asked > tensors) kill(getpid(), SIGKILL);
        return false;
      };
      _exit(Run(conversion, kill_there).ok() ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
  }

  TempDir dir_;
  const std::string native_ = dir_.File("native"), out_ = dir_.File("out"), part_ = out_ + ".part";
};

TEST_F(ConvertResumeTest, ResumesWithSameBytesAfterKill) {
  for (const StoreFormat to : {StoreFormat::kHf, StoreFormat::kDcp, StoreFormat::kTorchDist}) {
    const std::string whole = dir_.File(absl::StrCat("whole", static_cast<int>(to)));
    const auto uninterrupted = Run(ConversionOf(native_, whole, to));
    ASSERT_TRUE(uninterrupted.ok()) << uninterrupted.status();
    ASSERT_TRUE(uninterrupted->violations.empty()) << uninterrupted->violations[0].what;
    ASSERT_GT(uninterrupted->files, 2);
    const ConversionOptions conversion = ConversionOf(native_, out_, to);
    int64_t most_found = 0;
    bool was_killed = true;
    for (int tensors = 0; was_killed; tensors += to == StoreFormat::kHf ? 5 : 17) {
      was_killed = KilledAfter(tensors, conversion);
      if (!was_killed) break;
      EXPECT_FALSE(fs::exists(out_));
      EXPECT_FALSE(OpenStore(part_).ok()) << "it looks like a checkpoint";
      const auto done = Run(conversion);
      ASSERT_TRUE(done.ok()) << done.status();
      EXPECT_EQ(FilesOf(out_), FilesOf(whole)) << tensors;
      EXPECT_EQ(done->overflowed, uninterrupted->overflowed);
      EXPECT_EQ(done->files, uninterrupted->files);
      EXPECT_GE(done->files_found, most_found) << "more was whole";
      most_found = done->files_found;
      fs::remove_all(out_);
    }
    fs::remove_all(out_);
    EXPECT_GE(most_found, uninterrupted->files / 2);
  }
}

TEST_F(ConvertResumeTest, InterruptLeavesOnlyCompleteFiles) {
  for (const StoreFormat to : {StoreFormat::kHf, StoreFormat::kDcp}) {
    const ConversionOptions conversion = ConversionOf(native_, out_, to);
    int asked = 0;
    EXPECT_TRUE(absl::IsCancelled(Run(conversion, [&] { return ++asked > 1; }).status()));
    EXPECT_FALSE(fs::exists(part_)) << "no file was whole";
    asked = 0;
    EXPECT_TRUE(absl::IsCancelled(Run(conversion, [&] { return ++asked > 20; }).status()));
    EXPECT_FALSE(fs::exists(out_));
    EXPECT_FALSE(OpenStore(part_).ok()) << "it looks like a checkpoint";
    for (const auto& [name, bytes] : FilesOf(part_))
      EXPECT_EQ(name.find(".part"), std::string::npos) << name << " holds room on the disk";
    const auto done = Run(conversion);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_GT(done->files_found, 0);
    EXPECT_GT(done->bytes_found, 0);
    fs::remove_all(out_);
  }
}

TEST_F(ConvertResumeTest, FullDiskLosesOnlyUnfinishedFile) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  for (const StoreFormat to : {StoreFormat::kHf, StoreFormat::kDcp}) {
    const std::string whole = dir_.File(absl::StrCat("whole", static_cast<int>(to)));
    ASSERT_TRUE(Run(ConversionOf(native_, whole, to)).ok());
    const ConversionOptions conversion = ConversionOf(native_, out_, to);
    int asked = 0;
    const auto fill_there = [&] {
      rlimit small = before;
      small.rlim_cur = 100;
      if (++asked > 20) setrlimit(RLIMIT_FSIZE, &small);
      return false;
    };
    const auto full = Run(conversion, fill_there);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_TRUE(absl::IsUnavailable(full.status())) << full.status();
    EXPECT_FALSE(fs::exists(out_));
    const auto done = Run(conversion);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_GT(done->files_found, 0);
    EXPECT_EQ(FilesOf(out_), FilesOf(whole));
    fs::remove_all(out_);
  }
}

// A crash or power failure between the last file and the rename of the directory.
TEST_F(ConvertResumeTest, RewritesFilesMissingFromJournal) {
  const std::string whole = dir_.File("whole");
  ASSERT_TRUE(Run(ConversionOf(native_, whole, StoreFormat::kTorchDist)).ok());
  const ConversionOptions conversion = ConversionOf(native_, out_, StoreFormat::kTorchDist);
  int asked = 0;
  std::string early;
  const auto stop_there = [&] {
    ++asked;
    if (asked == 30) early = ReadFileOf(part_ + kJournal);
    return asked > 60;
  };
  ASSERT_TRUE(absl::IsCancelled(Run(conversion, stop_there).status()));
  for (const auto& [name, bytes] : FilesOf(whole)) WriteFileOf(part_ + "/" + name, bytes);
  WriteFileOf(part_ + "/__0_4.distcp", "as far as it was on the disk");
  WriteFileOf(part_ + kJournal, early);
  const auto done = Run(conversion);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_GT(done->files_found, 0);
  EXPECT_EQ(FilesOf(out_), FilesOf(whole));
}

TEST_F(ConvertResumeTest, OtherConversionDoesNotResume) {
  const ConversionOptions begun = ConversionOf(native_, out_, StoreFormat::kDcp);
  int asked = 0;
  ASSERT_TRUE(absl::IsCancelled(Run(begun, [&] { return ++asked > 20; }).status()));
  const Files left = FilesOf(part_);
  ConversionOptions other = begun;
  const auto refused = [&](const char* why) {
    const auto done = Run(other);
    EXPECT_TRUE(absl::IsFailedPrecondition(done.status())) << done.status();
    EXPECT_THAT(std::string(done.status().message()), HasSubstr(why));
    EXPECT_EQ(FilesOf(part_), left);
    other = begun;
  };
  other.to = StoreFormat::kTorchDist;
  refused("--to was fsdp_dtensor, now is torch_dist");
  other.file_bytes = 4000;
  refused("--shard-bytes was 3000, now is 4000");
  other.optimizer = false;
  refused("--no-optimizer was not given, now is given");
  other.spec = "{\"name\": \"y\"}";
  refused("output was ");
  fs::copy(native_, dir_.File("copy"));
  other.source = dir_.File("copy");
  refused("SOURCE was ");
  const std::string file = native_ + "/__0_0.distcp";
  const fs::file_time_type time = fs::last_write_time(file);
  fs::last_write_time(file, time + std::chrono::seconds(1));
  refused("files of SOURCE was ");
  other.anew = true;
  const auto done = Run(other);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->files_found, 0);
}

}  // namespace
}  // namespace fsdpd
