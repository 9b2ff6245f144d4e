// Tests of ranks that survive SIGKILL, such as one blocked on a file server that is gone. A test cannot
// create such a process, so its RankBody ignores signals.
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "agent/testing/supervisor_case.h"

namespace fsdpd {
namespace {

struct StuckRank {
  bool ended = false;
  int kills = 0;
};

class StuckBody : public RankBody {
 public:
  explicit StuckBody(StuckRank* rank) : rank_(rank), pidfd_(eventfd(0, EFD_CLOEXEC)) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    ours_ = UniqueFd(pair[0]);
    theirs_ = UniqueFd(pair[1]);
  }
  pid_t pid() const override { return 0; }
  int pidfd() const override {
    if (rank_->ended) eventfd_write(pidfd_.get(), 1);
    return pidfd_.get();
  }
  UniqueFd TakeSocket() override { return std::move(ours_); }
  std::optional<ProcessEnd> Exited() const override {
    return rank_->ended ? std::optional<ProcessEnd>({0, SIGKILL}) : std::nullopt;
  }
  char state() const override { return 'D'; }
  bool Stopped() const override { return false; }
  void SignalTree(int signal) override { rank_->kills += signal == SIGKILL ? 1 : 0; }
  bool TreeGone() override { return rank_->ended; }
  Evidence WriteEvidence(const std::string&, const std::string&) override { return nullptr; }

 private:
  StuckRank* const rank_;
  UniqueFd pidfd_, ours_, theirs_;
};

class RankSupervisorStuckTest : public SupervisorCase {
 protected:
  void SetUp() override {
    SupervisorCase::SetUp();
    options_.own_thread = false;
    options_.spawn = [this](const RankCommand&) { return std::make_unique<StuckBody>(&rank_); };
    Start();
  }
  // Returns the number of iterations of the loop that this takes.
  int PassInTurns(absl::Duration time) {
    int turns = 0;
    for (const absl::Time end = clock_.Now() + time; clock_.Now() < end; ++turns)
      clock_.Advance(supervisor_->Turn());
    return turns;
  }

  StuckRank rank_;
};

// Regression: every iteration, 20 ms apart, scanned /proc twice.
TEST_F(RankSupervisorStuckTest, ChecksAnUnkillableRankOncePerSecond) {
  supervisor_->Launch(Launch("stay", 1, {0}));
  supervisor_->Stop(Stop(1, 1000));
  PassInTurns(absl::Seconds(3));
  EXPECT_GE(rank_.kills, 10) << "at first it is killed again soon: it may fork";
  rank_.kills = 0;
  EXPECT_LE(PassInTurns(absl::Seconds(60)), 62);
  EXPECT_GE(rank_.kills, 58);
  EXPECT_LE(rank_.kills, 62);
  rank_.ended = true;
  PassInTurns(absl::Seconds(2));
  EXPECT_TRUE(events_.Has("exit 0"));
  EXPECT_TRUE(events_.Has("stopped"));
}

}  // namespace
}  // namespace fsdpd
