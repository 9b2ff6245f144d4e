// tests/parity covers Megatron-Core's own readers if the package is installed.
#include "fsdp/checkpoint/convert/megatron_files.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

TEST(MegatronFiles, ContainFormatAndStep) {
  const TempDir dir;
  MegatronCommon common;
  common.iteration = 42;
  ASSERT_TRUE(WriteMegatronFiles(dir.path(), common, std::nullopt).ok());
  const auto metadata = ParseJson(ReadFileOf(dir.File(kMegatronMetadataName)));
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  ASSERT_NE(metadata->Find("sharded_backend"), nullptr);
  EXPECT_EQ(metadata->Find("sharded_backend")->text, "torch_dist");
  const std::string bytes = ReadFileOf(dir.File(kMegatronCommonName));
  const auto pickle = ReadSavedValue(static_cast<int64_t>(bytes.size()), ReadAtOf(bytes));
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const PickleValue& root = pickle->root();
  ASSERT_EQ(root.kind, PickleKind::kDict);
  EXPECT_EQ(root.items[0]->text, "iteration");
  EXPECT_EQ(root.items[1]->integer, 42);
  EXPECT_EQ(root.Find("optimizer"), nullptr);
  EXPECT_EQ(root.Find("content_metadata")->Find("distrib_optim_sharding_type"), nullptr);
}

TEST(MegatronFiles, RoundTrip) {
  const TempDir dir;
  const MegatronCommon common = {
      42, 336, 40, {{"fsdpd.job", {std::string("7")}}, {"fsdpd.seed", {int64_t{3}}}}};
  const AdamSettings adam = {1e-3, 1e-4, 0.9, 0.95, 1e-8, 0.1, "cosine", 80, 8000};
  ASSERT_TRUE(WriteMegatronFiles(dir.path(), common, adam).ok());
  const auto read = ReadMegatronCommon(dir.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->iteration, 42);
  EXPECT_EQ(read->samples, 336);
  EXPECT_EQ(read->steps, 40);
  EXPECT_EQ(PortableText(read->kept, "fsdpd.job"), "7");
  EXPECT_EQ(PortableCount(read->kept, "fsdpd.seed"), 3);
}

TEST(MegatronFiles, MissingIsEmptyAndDamagedIsAnError) {
  const TempDir dir;
  const auto none = ReadMegatronCommon(dir.path());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->iteration || none->samples || none->steps);
  WriteFileOf(dir.File(kMegatronCommonName), "no archive");
  EXPECT_TRUE(absl::IsDataLoss(ReadMegatronCommon(dir.path()).status()));
}

std::string CommonWith(const std::function<void(PickleWriter*)>& optimizer) {
  PickleWriter writer;
  writer.BeginDict();
  writer.Text("iteration");
  writer.Float(12.5);  // Not a step number.
  writer.Text("optimizer");
  optimizer(&writer);
  writer.SetItems();
  return TorchSaved(writer.Take());
}

// Groups of one optimizer: torch counts in floats; the count is valid only if all groups agree.
TEST(MegatronFiles, StepsMustAgreeInAllGroups) {
  const TempDir dir;
  const auto steps_of = [&](double first, double second) {
    const auto write = [&](PickleWriter* writer) {
      writer->BeginDict();
      writer->Text("param_groups");
      writer->BeginList();
      for (const double steps : {first, second}) {
        writer->BeginDict();
        writer->Text("step");
        writer->Float(steps);
        writer->SetItems();
      }
      writer->Appends();
      writer->SetItems();
    };
    WriteFileOf(dir.File(kMegatronCommonName), CommonWith(write));
    const auto read = ReadMegatronCommon(dir.path());
    EXPECT_TRUE(read.ok()) << read.status();
    EXPECT_FALSE(read->iteration.has_value());
    return read->steps;
  };
  EXPECT_EQ(steps_of(3, 3), 3);
  EXPECT_EQ(steps_of(3, 4), std::nullopt);
  EXPECT_EQ(steps_of(2.5, 2.5), std::nullopt);
  EXPECT_EQ(steps_of(-1, -1), std::nullopt);
}

}  // namespace
}  // namespace fsdpd
