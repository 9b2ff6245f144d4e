// Display of `watch` and `submit --follow`. State changes and checkpoints are lines. Steps are one line that
// is redrawn on a terminal, and plain lines otherwise, at most one per 10 steps or per second. With -o json
// or yaml, every update is printed as it arrives. A record file gets each StepReport as a JSON line, and gaps
// in it are reported on stderr.
//
// The cursor is hidden while a live line is drawn. Every exit path shows it again, including the destructor.
// Not thread-safe.
#pragma once

#include <absl/status/status.h>

#include <fstream>
#include <string>

#include "client/connect/job_follow.h"
#include "client/text/console.h"
#include "client/text/progress_line.h"

namespace fsdpd {

class FollowScreen : public JobObserver {
 public:
  // `output`: "table", "json" or "yaml". `console` must outlive the screen.
  FollowScreen(Console* console, std::string output) : console_(*console), output_(std::move(output)) {}
  ~FollowScreen() override { EndLiveLine(); }

  // Appends step reports to `path` from now on. Returns an error if it cannot be opened for writing.
  absl::Status Record(const std::string& path);

  void OnJob(const v1::Job& job) override;
  void OnStep(const v1::StepReport& report) override;
  void OnConnectionLost(const absl::Status& why) override;
  void OnConnectionBack() override;

  // True if a write to the record file failed, which was reported. A gap in the reports is not a failure.
  bool record_failed() const { return record_failed_; }

  void Leave() { EndLiveLine(); }  // Later output starts on a new line.

  // Prints the summary. Call after the job has ended.
  void Finish(const v1::Job& job);

 private:
  void PrintState(const v1::Job& job);
  void PrintCheckpoints(const v1::Job& before);
  void RecordStep(const v1::StepReport& report);
  void ReportGap(int64_t next_step);  // Between the last recorded step and this one.
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
