// Test fixture of a reconciler with job "j", which saves checkpoints in /runs/7 and is paused.
#pragma once

#include <string>

#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {

class PauseCase : public ReconcilerCase {
 protected:
  PauseCase() {
    plan_ = [this](const v1::JobSpec& spec, int64_t) {
      Plan plan;
      plan.resolved = WithDefaults(spec, nullptr);
      plan.resolved.mutable_train()->set_steps(100);
      plan.resolved.mutable_checkpoint()->set_dir(saves_ ? "/runs/7" : "");
      return plan;
    };
  }
  void Stepped(const std::string& node, int64_t step, int attempt = 1) {
    v1::RankUpdate update = Update("j", 0, attempt);
    update.mutable_step()->set_step(step);
    Tell(node, update);
  }
  void Saved(const std::string& node, int64_t step, int attempt = 1, const std::string& error = "") {
    v1::RankUpdate update = Update("j", 0, attempt);
    update.mutable_saved()->set_step(step);
    update.mutable_saved()->set_error(error);
    update.mutable_saved()->set_path("/runs/7/iter_" + std::to_string(step));
    Tell(node, update);
  }
  void Tell(const std::string& node, const v1::RankUpdate& update) {
    reconciler_->OnReport(node, update, 0);
    reconciler_->RunOnce();
  }
  // Exit of a rank that was asked to leave.
  static v1::RankExit LeftWith(const std::string& word) {
    v1::RankExit exit;
    exit.set_exit_code(143);
    exit.set_cancelled(true);
    exit.set_error(word);
    return exit;
  }
  void Left(const std::string& node, int rank, const std::string& word, int attempt = 1) {
    ExitWith(node, "j", rank, LeftWith(word), attempt);
    Stopped(node, "j", attempt);
  }
  // Pauses after step 9, with two ranks on two nodes; `of_b`: the GPU memory that the second node reports.
  // The first has two GPUs.
  void PauseWith(const v1::FreedMemory& of_b) {
    RunOn({"a", "b"});
    Stepped("a", 9);
    Saved("a", 9);
    ASSERT_TRUE(Pause("j").ok());
    const v1::RankExit left = LeftWith("left after step 9, which is saved");
    ExitWith("a", "j", 0, left);
    ExitWith("b", "j", 1, left);
    Stopped("b", "j", 1, of_b);
    Stopped("b", "j", 1);  // Repeated by an agent that no longer knows.
    v1::FreedMemory two;
    two.set_gpus(2);
    Stopped("a", "j", 1, two);
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_PAUSED);
  }
  bool Launched(const std::string& node) { return !LaunchesSent(node).empty(); }

  bool saves_ = true;
};

}  // namespace fsdpd
