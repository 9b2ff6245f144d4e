// That Megatron-Core's own readers take them is for tests/parity to say where the package is.
#include "fsdp/checkpoint/megatron_files.h"

#include <gtest/gtest.h>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/json.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"
#include "fsdp/checkpoint/torch_save.h"

namespace fsdpd {
namespace {

TEST(MegatronFiles, SayTheFormatAndTheStep) {
  const TempDir dir;
  ASSERT_TRUE(WriteMegatronFiles(dir.path(), 42).ok());
  const auto metadata = ParseJson(ReadFileOf(dir.File(kMegatronMetadataName)));
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  ASSERT_NE(metadata->Find("sharded_backend"), nullptr);
  EXPECT_EQ(metadata->Find("sharded_backend")->text, "torch_dist");
  const std::string common = ReadFileOf(dir.File(kMegatronCommonName));
  const auto pickle = ReadSavedValue(static_cast<int64_t>(common.size()), ReadAtOf(common));
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const PickleValue& root = pickle->root();
  ASSERT_EQ(root.kind, PickleKind::kDict);
  EXPECT_EQ(root.items[0]->text, "iteration");
  EXPECT_EQ(root.items[1]->integer, 42);
}

}  // namespace
}  // namespace fsdpd
