// Test fixture of a running attempt with ranks 0 and 1 on node-0, and 2 and 3 on node-1: the facts about it,
// the presence of its nodes, and the time.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "coordinator/attempt/attempt_failure.h"

namespace fsdpd {

class AttemptCase : public ::testing::Test {
 protected:
  AttemptCase() {
    job_.set_id("j");
    job_.set_attempt(1);
    job_.set_state(v1::JOB_STATE_RUNNING);
    job_.set_reason("all 4 ranks run");
    for (int node = 0; node < 2; ++node) {
      auto* placement = job_.add_placements();
      placement->set_node("node-" + std::to_string(node));
      placement->set_first_rank(2 * node);
      placement->set_ranks(2);
    }
    Reset(false);
  }
  void Reset(bool recovered) {
    facts_ = AttemptFacts(job_, recovered);
    for (NodePart& part : facts_.parts) part.launched = true;
  }
  PresenceOf Presences() {
    return [this](const std::string& node) { return presence_[node]; };
  }
  // `nanos`: the time of the exit; the agent's clock is not used.
  void ExitWith(int rank, const v1::RankExit& exit, int64_t nanos) {
    ASSERT_TRUE(facts_.TakeExit(rank < 2 ? "node-0" : "node-1", rank, exit, now_,
                                absl::Seconds(10) - absl::Nanoseconds(nanos)));
  }
  void Exit(int rank, int code, int64_t nanos, bool cancelled = false) {
    v1::RankExit exit;
    exit.set_exit_code(code);
    exit.set_cancelled(cancelled);
    if (code != 0) exit.set_error("error of rank " + std::to_string(rank));
    ExitWith(rank, exit, nanos);
  }
  // In the all-gather of step 7, or before it.
  void Still(int rank, int64_t instruction) {
    v1::RankNoProgress no_progress;
    no_progress.set_no_progress_ms(31000);
    no_progress.set_limit_ms(30000);
    v1::LanePosition* lane = no_progress.add_lanes();
    lane->set_lane("gather");
    lane->set_exchanges(true);
    lane->set_step(7);
    lane->set_instruction(instruction);
    lane->set_running(instruction > 0);
    lane->set_name("Gather layer.1");
    ASSERT_TRUE(facts_.TakeNoProgress(rank < 2 ? "node-0" : "node-1", rank, no_progress, now_));
  }

  v1::Job job_;
  AttemptFacts facts_;
  std::map<std::string, Presence> presence_;  // Absent: kConnected, the first value.
  absl::Time now_ = absl::FromUnixSeconds(100);
  VerdictOptions options_;
};

}  // namespace fsdpd
