// What `watch` and `submit --follow` show while a job runs: state changes and checkpoints as lines, steps as
// one line that is drawn over itself on a terminal, or as plain lines elsewhere (at most one per 10 steps or
// per second). As -o json or yaml: every update as it came. With a record, each StepReport as a JSON line;
// steps that it lacks are told on stderr.
//
// The cursor is hidden while a live line is drawn and shown again by every exit path, destruction included.
#pragma once

#include <absl/status/status.h>

#include <fstream>
#include <string>

#include "client/console.h"
#include "client/job_follow.h"
#include "client/progress_line.h"

namespace fsdpd {

class FollowScreen : public JobObserver {
 public:
  // `output`: "table", "json" or "yaml". `console` must outlive the screen.
  FollowScreen(Console* console, std::string output) : console_(*console), output_(std::move(output)) {}
  ~FollowScreen() override { EndLiveLine(); }

  // Appends to `path` from now on. An error says why it cannot be written.
  absl::Status Record(const std::string& path);

  void OnJob(const v1::Job& job) override;
  void OnStep(const v1::StepReport& report) override;
  void OnConnectionLost(const absl::Status& why) override;
  void OnConnectionBack() override;

  // What it was told to record is not all in its file, which was told; a hole in it is none of the file's.
  bool record_failed() const { return record_failed_; }

  void Leave() { EndLiveLine(); }  // What is printed next starts on a line of its own.

  // The summary, after the job has ended.
  void Finish(const v1::Job& job);

 private:
  void PrintState(const v1::Job& job);
  void PrintCheckpoints(const v1::Job& before);
  void RecordStep(const v1::StepReport& report);
  void TellHole(int64_t next_step);  // Between the record's last step and this one.
  void DrawLive(const std::string& line);
  void EndLiveLine();
  void PrintUpdate(const google::protobuf::Message& message);

  Console& console_;
  const std::string output_;
  std::string record_path_;
  std::ofstream record_;
  bool record_failed_ = false;
  int64_t recorded_step_ = 0;
  v1::Job job_;
  std::string last_state_text_;
  StepHistory history_;
  int64_t printed_step_ = 0;
  absl::Time printed_at_ = absl::InfinitePast();
  bool live_ = false;  // A live line is on the screen.
  int live_columns_ = 0;
};

}  // namespace fsdpd
