#include "fsdp/checkpoint/convert/convert_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ConversionJournalTest : public ::testing::Test {
 protected:
  struct Opened {
    std::unique_ptr<PartDirectory> directory;
    std::unique_ptr<ConversionJournal> journal;
    absl::Status status;
  };

  Opened Open(const ConversionArguments& arguments, bool anew = false) {
    Opened opened;
    auto directory = PartDirectory::Create(target_);
    EXPECT_TRUE(directory.ok()) << directory.status();
    opened.directory = *std::move(directory);
    auto journal = ConversionJournal::Open(opened.directory.get(), arguments, anew, 2, [] { return false; });
    opened.status = journal.status();
    if (journal.ok()) opened.journal = *std::move(journal);
    return opened;
  }

  JournaledFile WriteWhole(const std::string& name, const std::string& bytes) {
    WriteFileOf(part_ + "/" + name, bytes);
    const auto size = static_cast<int64_t>(bytes.size());
    return {{name, size, Crc32(bytes.data(), size)}, 2};
  }

  static std::vector<std::string> NamesOf(const Opened& opened) {
    std::vector<std::string> names;
    for (const JournaledFile& found : opened.journal->found()) names.push_back(found.file.name);
    return names;
  }

  // An interrupted conversion with three complete files and an incomplete one.
  void Interrupt() {
    const Opened opened = Open(kArguments);
    ASSERT_TRUE(opened.status.ok()) << opened.status;
    for (const char* name : {"__0_0.distcp", "__0_2.distcp", "__0_3.distcp"})
      ASSERT_TRUE(opened.journal->Add(WriteWhole(name, std::string(name) + " numbers")).ok());
    WriteFileOf(part_ + "/__0_1.distcp.x.part", "half");
  }

  const ConversionArguments kArguments = {{"SOURCE", "/a"}, {"--to", "hf"}};
  TempDir dir_;
  const std::string target_ = dir_.File("out"), part_ = target_ + ".part";
};

TEST_F(ConversionJournalTest, FindsOnlyCompleteFiles) {
  Interrupt();
  EXPECT_FALSE(fs::exists(part_ + "/__0_1.distcp.x.part"));
  const Opened opened = Open(kArguments);
  ASSERT_TRUE(opened.status.ok()) << opened.status;
  EXPECT_THAT(NamesOf(opened), ElementsAre("__0_0.distcp", "__0_2.distcp", "__0_3.distcp"));
  EXPECT_EQ(opened.journal->found()[0].overflowed, 2);
}

// Added files survive a second interruption.
TEST_F(ConversionJournalTest, KeepsFilesOfBothInterruptions) {
  Interrupt();
  {
    const Opened opened = Open(kArguments);
    ASSERT_TRUE(opened.journal->Add(WriteWhole("__0_1.distcp", "more")).ok());
  }
  EXPECT_EQ(NamesOf(Open(kArguments)).size(), 4u);
}

TEST_F(ConversionJournalTest, RemovesModifiedFile) {
  Interrupt();
  WriteFileOf(part_ + "/__0_0.distcp", "__0_0.distcp numberz");
  WriteFileOf(part_ + "/__0_2.distcp", "short");
  WriteFileOf(part_ + "/__0_9.distcp", "nobody's");
  WriteFileOf(part_ + "/.metadata", "of a commit that was cut off");
  const Opened opened = Open(kArguments);
  ASSERT_TRUE(opened.status.ok()) << opened.status;
  EXPECT_THAT(NamesOf(opened), ElementsAre("__0_3.distcp"));
  for (const char* name : {"__0_0.distcp", "__0_2.distcp", "__0_9.distcp", ".metadata"})
    EXPECT_FALSE(fs::exists(part_ + "/" + name)) << name;
}

TEST_F(ConversionJournalTest, RejectsOtherConversionWithoutRemovingFiles) {
  Interrupt();
  {
    const Opened other = Open({{"SOURCE", "/b"}, {"--to", "hf"}, {"--dtype", "float32"}});
    EXPECT_TRUE(absl::IsFailedPrecondition(other.status)) << other.status;
    EXPECT_THAT(other.status.message(), HasSubstr("SOURCE was /a, now is /b; --dtype was , now is float32"));
    EXPECT_THAT(other.status.message(), HasSubstr("--overwrite"));
  }
  EXPECT_EQ(NamesOf(Open(kArguments)).size(), 3u);
  EXPECT_EQ(NamesOf(Open({{"SOURCE", "/b"}}, /*anew=*/true)).size(), 0u);
  EXPECT_FALSE(fs::exists(part_)) << "there was nothing to keep";
}

TEST_F(ConversionJournalTest, IgnoresDamagedJournal) {
  for (const char* text : {"", "{", "[]", R"({"version": 2, "begun": {}, "files": []})",
                           R"({"version": 1, "begun": {}, "files": [{"name": "../x", "bytes": 1}]})"}) {
    Interrupt();
    WriteFileOf(part_ + "/" + kJournalName, text);
    const Opened opened = Open(kArguments);
    ASSERT_TRUE(opened.status.ok()) << opened.status;
    EXPECT_THAT(NamesOf(opened), ElementsAre()) << text;
  }
}

TEST_F(ConversionJournalTest, ReplacedFileChangesSource) {
  fs::create_directory(dir_.File("source"));
  const std::string file = dir_.File("source") + "/model.safetensors";
  WriteFileOf(file, "numbers");
  const auto before = FilesText(dir_.File("source"));
  ASSERT_TRUE(before.ok());
  WriteFileOf(dir_.File("source") + "/README.md", "not read");
  EXPECT_EQ(*FilesText(dir_.File("source")), *before);
  const fs::file_time_type time = fs::last_write_time(file);
  fs::last_write_time(file, time + std::chrono::seconds(1));
  EXPECT_NE(*FilesText(dir_.File("source")), *before);
  WriteFileOf(file, "NUMBERS");
  fs::last_write_time(file, time);
  EXPECT_NE(*FilesText(dir_.File("source")), *before) << "of one length, and of one date";
}

}  // namespace
}  // namespace fsdpd
