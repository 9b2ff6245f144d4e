#include "agent/ranks/rank_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

namespace fsdpd {
namespace {

struct LinkedPair {
  LinkedPair() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    link = std::make_unique<RankLink>(UniqueFd(pair[0]));
    rank = UniqueFd(pair[1]);
  }
  std::unique_ptr<RankLink> link;
  UniqueFd rank;
};

TEST(RankLink, QueuesUnsentData) {
  LinkedPair pair;
  v1::AgentToRank message;
  message.mutable_store_value()->set_value(std::string(3 << 20, 'v'));
  ASSERT_TRUE(pair.link->Send(message).ok());
  EXPECT_TRUE(pair.link->wants_write());
  v1::AgentToRank got;
  std::thread reader([&] { EXPECT_TRUE(ReadFrame(pair.rank.get(), &got).ok()); });
  while (pair.link->wants_write()) ASSERT_TRUE(pair.link->Flush().ok());
  reader.join();
  EXPECT_EQ(got.store_value().value(), message.store_value().value());
}

TEST(RankLink, ReceivesMessagesAndOrderlyEnd) {
  LinkedPair pair;
  v1::RankToAgent message;
  message.mutable_step()->set_step(1);
  ASSERT_TRUE(WriteFrame(pair.rank.get(), message).ok());
  message.mutable_step()->set_step(2);
  ASSERT_TRUE(WriteFrame(pair.rank.get(), message).ok());
  std::vector<v1::RankToAgent> messages;
  bool drained = false;
  ASSERT_TRUE(pair.link->Receive(&messages, &drained).ok());
  EXPECT_TRUE(drained);
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1].step().step(), 2);
  pair.rank.Reset();
  EXPECT_EQ(pair.link->Receive(&messages, &drained).code(), absl::StatusCode::kOutOfRange);
}

TEST(RankLink, RejectsInvalidFramesAndMessages) {
  std::vector<v1::RankToAgent> messages;
  bool drained = false;
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff", 4), std::string("\x02\0\0\0\xff\xff", 6)}) {
    LinkedPair pair;
    ASSERT_EQ(write(pair.rank.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(pair.link->Receive(&messages, &drained).code(), absl::StatusCode::kDataLoss);
  }
}

TEST(RankLink, DistinguishesTornFramesFromGarbage) {
  std::vector<v1::RankToAgent> messages;
  bool drained = false;
  LinkedPair torn;
  ASSERT_EQ(write(torn.rank.get(), "\x09\0\0\0ab", 6), 6);
  torn.rank.Reset();
  EXPECT_EQ(torn.link->Receive(&messages, &drained).code(), absl::StatusCode::kAborted);
}

TEST(RankLink, ReceivesFinalMessagesOfADeadRank) {
  LinkedPair pair;
  v1::AgentToRank big;
  big.mutable_store_value()->set_value(std::string(512 << 10, 'v'));
  ASSERT_TRUE(pair.link->Send(big).ok());
  ASSERT_TRUE(pair.link->wants_write());
  v1::RankToAgent last;
  last.mutable_finished()->set_error("no device");
  ASSERT_TRUE(WriteFrame(pair.rank.get(), last).ok());
  pair.rank.Reset();
  EXPECT_TRUE(pair.link->Flush().ok());
  EXPECT_FALSE(pair.link->wants_write()) << "nobody is left to take it";
  EXPECT_TRUE(pair.link->Send(big).ok());
  std::vector<v1::RankToAgent> messages;
  bool drained = false;
  EXPECT_EQ(pair.link->Receive(&messages, &drained).code(), absl::StatusCode::kOutOfRange);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].finished().error(), "no device");
}

}  // namespace
}  // namespace fsdpd
