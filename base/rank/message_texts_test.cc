#include "base/rank/message_texts.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/fsdpd/v1/agent.pb.h"

namespace fsdpd {
namespace {

// Regression: they were stored in the record of the job, which became too large to be listed.
TEST(MessageTexts, TruncatesEveryText) {
  const std::string large(1 << 20, 'x');
  v1::RankUpdate update;
  update.mutable_ready()->mutable_restored()->set_path(large);
  CutTexts(&update);
  EXPECT_EQ(update.ready().restored().path().size(), kMaxTextBytes);
  update.mutable_saved()->set_path(large);
  CutTexts(&update);
  EXPECT_EQ(update.saved().path().size(), kMaxTextBytes);
  update.mutable_position()->set_position(large);
  CutTexts(&update);
  EXPECT_EQ(update.position().position().size(), kMaxPositionBytes);
  update.mutable_no_progress()->add_lanes()->set_name(large);
  CutTexts(&update);
  EXPECT_EQ(update.no_progress().lanes(0).name().size(), kMaxTextBytes);
  v1::RankExit* exit = update.mutable_exit();
  exit->set_error(large);
  exit->set_position(large);
  CutTexts(&update);
  EXPECT_EQ(exit->error().size(), kMaxTextBytes);
  EXPECT_EQ(exit->position().size(), kMaxPositionBytes);
}

TEST(MessageTexts, KeepsTheEndOfALog) {
  v1::RankExit exit;
  for (int i = 0; i < 40; ++i) exit.add_log_tail(std::string(15 << 10, 'x'));
  exit.add_log_tail("RuntimeError: the cause");
  CutTexts(&exit);
  size_t bytes = 0;
  for (const std::string& line : exit.log_tail()) bytes += line.size();
  EXPECT_LE(bytes, kMaxTextListBytes);
  EXPECT_GT(exit.log_tail_size(), 10);
  EXPECT_EQ(exit.log_tail(exit.log_tail_size() - 1), "RuntimeError: the cause");
  EXPECT_EQ(exit.log_tail(0).size(), kMaxTextBytes);
}

TEST(MessageTexts, KeepsShortTexts) {
  v1::RankExit exit;
  for (int i = 0; i < 40; ++i) exit.add_log_tail(std::string(1000, 'x'));
  exit.set_error("why");
  const v1::RankExit before = exit;
  CutTexts(&exit);
  EXPECT_EQ(exit.SerializeAsString(), before.SerializeAsString());
}

TEST(MessageTexts, LimitsListsOfEmptyTexts) {
  v1::RankExit exit;
  for (int i = 0; i < 1 << 20; ++i) exit.add_log_tail("");
  CutTexts(&exit);
  EXPECT_LE(exit.log_tail_size(), 4096);
}

}  // namespace
}  // namespace fsdpd
