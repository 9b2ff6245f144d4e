// Command `trace`: requests step traces, collects the traces of all ranks, and merges them into one file with
// a process for each rank.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <map>
#include <set>
#include <utility>

#include "base/spec_text/located_violation.h"
#include "base/text.h"
#include "client/commands/commands.h"
#include "client/connect/outcome.h"
#include "client/spec/spec_print.h"
#include "client/text/message_output.h"
#include "client/text/output_file.h"
#include "fsdp/plan/predict/timeline.h"

namespace fsdpd {
namespace {

// Traces are held in memory, and twice while they are merged. The limit suffices for a thousand ranks of a
// large model.
constexpr size_t kMaxBytes = size_t{1} << 30;

class GatheredTraces {
 public:
  explicit GatheredTraces(Session* session) : session_(session) {}

  void Take(const v1::TraceJobResponse& update) {
    if (update.has_order()) return ReportOrder(update.order());
    if (update.has_line()) {
      const v1::TraceJobResponse::Line& line = update.line();
      bytes_ += line.line().size();
      if (bytes_ > kMaxBytes) return;
      absl::StrAppend(&files_[{line.step(), line.rank()}], line.line(), "\n");
      return;
    }
    const v1::TraceJobResponse::Trace& trace = update.trace();
    if (session_->line().memory) TakeMemory(trace);
    if (trace.trace().error().empty()) {
      traces_[{trace.trace().step(), trace.rank()}] = trace;
    } else {
      ++failed_;
      Err() << absl::StrFormat("fsdpctl: step %d of rank %d on %s was not traced: %s\n", trace.trace().step(),
                               trace.rank(), Escaped(trace.node()), Escaped(trace.trace().error()));
    }
  }

  int failed() const { return failed_; }
  // "step 12 of rank 3: node-1:/w/job/attempt-1/memory_step_12_rank_3.pickle, 2.00 MiB".
  const std::vector<std::string>& memory() const { return memory_; }
  bool empty() const { return files_.empty(); }

  absl::StatusOr<std::string> Joined() const {
    if (bytes_ > kMaxBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "traces are too large to merge (got ", HumanBytes(static_cast<int64_t>(bytes_)), ", at most ",
          HumanBytes(kMaxBytes), "); fetch those of one rank with --written --rank N"));
    }
    std::vector<std::string> files;
    for (const auto& [which, text] : files_) files.push_back(text);
    return JoinedTrace(files);
  }

  // "2 steps (12 to 13) of 4 ranks".
  std::string Summary() const {
    std::set<int64_t> steps;
    std::set<int32_t> ranks;
    for (const auto& [which, text] : files_) {
      steps.insert(which.first);
      ranks.insert(which.second);
    }
    std::string which = absl::StrCat(*steps.begin());
    if (steps.size() > 1) absl::StrAppend(&which, " to ", *steps.rbegin());
    return absl::StrFormat("%d %s (%s) of %d %s", steps.size(), steps.size() == 1 ? "step" : "steps", which,
                           ranks.size(), ranks.size() == 1 ? "rank" : "ranks");
  }

  // One message for each file: the report of its rank, or one that only identifies step and rank.
  std::vector<v1::TraceJobResponse::Trace> Traces() const {
    std::vector<v1::TraceJobResponse::Trace> traces;
    for (const auto& [which, text] : files_) {
      const auto reported = traces_.find(which);
      v1::TraceJobResponse::Trace trace =
          reported != traces_.end() ? reported->second : v1::TraceJobResponse::Trace();
      trace.set_rank(which.second);
      trace.mutable_trace()->set_step(which.first);
      trace.mutable_trace()->set_bytes(static_cast<int64_t>(text.size()));
      traces.push_back(std::move(trace));
    }
    return traces;
  }

 private:
  using Which = std::pair<int64_t, int32_t>;  // Step and rank.

  void TakeMemory(const v1::TraceJobResponse::Trace& trace) {
    // All ranks write snapshots; --rank only selects which ones are shown.
    if (session_->line().rank.value_or(trace.rank()) != trace.rank()) return;
    const v1::StepTraceResult::WrittenFile& file = trace.trace().memory_snapshot();
    const std::string which = absl::StrFormat("step %d of rank %d", trace.trace().step(), trace.rank());
    if (!file.path().empty() && file.error().empty()) {
      memory_.push_back(absl::StrFormat("%s: %s:%s, %s", which, Escaped(trace.node()), Escaped(file.path()),
                                        HumanBytes(file.bytes())));
      return;
    }
    // The rank's trace error has been reported already.
    if (!trace.trace().error().empty() && file.error().empty()) return;
    ++failed_;
    Err() << absl::StrFormat("fsdpctl: the memory snapshot of %s on %s was not written: %s\n", which,
                             Escaped(trace.node()),
                             file.error().empty() ? "its node runs an older release without memory snapshots"
                                                  : Escaped(file.error()));
  }

  std::ostream& Err() { return session_->console().err; }

  void ReportOrder(const v1::TraceJobResponse::Order& order) {
    const int64_t last = order.first_step() + order.steps() - 1;
    Err() << (order.steps() == 1 ? absl::StrCat("tracing step ", last)
                                 : absl::StrCat("tracing steps ", order.first_step(), " to ", last))
          << " on " << order.ranks() << (order.ranks() == 1 ? " rank\n" : " ranks\n") << std::flush;
  }

  Session* const session_;
  std::map<Which, std::string> files_;
  std::map<Which, v1::TraceJobResponse::Trace> traces_;
  std::vector<std::string> memory_;
  int failed_ = 0;
  size_t bytes_ = 0;
};

void Print(const GatheredTraces& traces, const std::string& path, size_t bytes, Session* session) {
  std::ostream& out = session->console().out;
  const std::string& output = session->line().output;
  if (output == "table") {
    out << absl::StrFormat("%s  %s, %s\n", path, traces.Summary(), HumanBytes(static_cast<int64_t>(bytes)));
    if (!traces.memory().empty()) out << "memory, for https://pytorch.org/memory_viz:\n";
    for (const std::string& file : traces.memory()) out << "  " << file << "\n";
    return;
  }
  for (const v1::TraceJobResponse::Trace& trace : traces.Traces()) out << RenderedItem(trace, output);
}

}  // namespace

int RunTrace(Session* session) {
  const CommandLine& line = session->line();
  v1::TraceJobRequest request;
  request.set_id(line.job);
  if (!line.written) request.set_steps(line.steps);
  request.set_memory_snapshot(line.memory);
  if (line.attempt.has_value()) request.set_attempt(*line.attempt);
  if (line.rank.has_value()) request.set_rank(*line.rank);
  const std::string path = line.out.empty() ? absl::StrCat(line.job, ".trace.json") : line.out;
  if (const absl::Status output = CheckOutput("--out", path); !output.ok()) {
    session->console().err << "fsdpctl: " << output.message() << " [FILE_ERROR]\n";
    return kExitUsage;
  }
  GatheredTraces traces(session);
  const absl::Status status =
      session->client().TraceJob(request, session->console().interrupt,
                                 [&](const v1::TraceJobResponse& update) { traces.Take(update); });
  // An incomplete set of traces is still written, except after an interrupt, which may have cut a file off.
  if (absl::IsCancelled(status) || traces.empty()) {
    if (!status.ok() && (traces.failed() == 0 || !absl::IsNotFound(status))) return session->Fail(status);
    return kExitFailed;
  }
  const absl::StatusOr<std::string> joined = traces.Joined();
  if (!joined.ok()) return session->Fail(status.ok() ? joined.status() : status);
  if (const absl::Status written = WriteOutput("--out", path, *joined); !written.ok()) {
    session->console().err << "fsdpctl: " << written.message() << "; fetch the traces with fsdpctl trace "
                           << line.job << " --written [FILE_ERROR]\n";
    return kExitUsage;
  }
  Print(traces, path, joined->size(), session);
  if (!status.ok()) return session->Fail(status);
  return traces.failed() == 0 ? kExitOk : kExitFailed;
}

}  // namespace fsdpd
