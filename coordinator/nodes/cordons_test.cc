#include "coordinator/nodes/cordons.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/temp_dir.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/testing/full_disk.h"

namespace fsdpd {
namespace {

class CordonsTest : public ::testing::Test {
 protected:
  CordonsTest() { Open(); }
  void Open() {
    cordons_.reset();
    store_.reset();
    auto opened = SqliteStore::Open(dir_.path());
    EXPECT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    cordons_ = std::make_unique<Cordons>(store_.get());
    EXPECT_TRUE(cordons_->Load().ok());
  }
  static v1::Cordon For(const std::string& reason) {
    v1::Cordon cordon;
    cordon.set_reason(reason);
    return cordon;
  }

  TempDir dir_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<Cordons> cordons_;
};

TEST_F(CordonsTest, CordonSurvivesRestartUntilItIsLifted) {
  ASSERT_TRUE(cordons_->Set("a", For("a fan")).ok());
  ASSERT_TRUE(cordons_->Set("b", For("")).ok());
  Open();
  EXPECT_EQ(cordons_->Find("a")->reason(), "a fan");
  EXPECT_EQ(cordons_->All().size(), 2u);
  ASSERT_TRUE(cordons_->Lift("a", absl::UnixEpoch()).ok());
  EXPECT_FALSE(cordons_->Find("a").has_value());
  Open();
  EXPECT_FALSE(cordons_->Find("a").has_value());
  EXPECT_TRUE(cordons_->Find("b").has_value());
}

TEST_F(CordonsTest, MarksSlotsOfCordonedNodesWithTheReason) {
  ASSERT_TRUE(cordons_->Set("b", For("a fan")).ok());
  std::vector<NodeSlots> slots(2);
  slots[0].name = "a";
  slots[1].name = "b";
  cordons_->MarkIn(&slots);
  EXPECT_FALSE(slots[0].cordon.has_value());
  EXPECT_EQ(slots[1].cordon, "a fan");
}

TEST_F(CordonsTest, OnAFullDiskRejectsUsersCordonAndStoresOwnLater) {
  // Output would fail while the disk is full.
  std::optional<FullDisk> full(std::in_place);
  const absl::Status refused = cordons_->Set("a", For("a fan"));
  const bool kept = cordons_->Find("a").has_value();
  cordons_->SetUnstored("b", For("two attempts"));
  cordons_->SaveRest();
  const bool holds = cordons_->Find("b").has_value();
  full.reset();
  EXPECT_FALSE(refused.ok()) << "the store's error";
  EXPECT_FALSE(kept);
  EXPECT_TRUE(holds);
  EXPECT_TRUE(store_->Cordons()->empty());
  cordons_->SaveRest();
  Open();
  EXPECT_EQ(cordons_->Find("b")->reason(), "two attempts");
  EXPECT_FALSE(cordons_->Find("a").has_value());
}

}  // namespace
}  // namespace fsdpd
