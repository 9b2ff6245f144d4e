// A step as people look at it: lanes with their instructions, and memory over the same time. As a trace that
// Perfetto (ui.perfetto.dev) and chrome://tracing open, and as a picture for a page. Of a prediction here; of
// what was measured in fsdp/telemetry/step_timeline.h.
//
// Pure text; nothing here is needed to run a job.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

struct Timeline {
  // What else is known of a slice, by name.
  using Arguments = std::vector<std::pair<std::string, std::variant<int64_t, std::string>>>;
  struct Slice {
    int track = 0;
    std::string kind;  // "Forward": slices of a kind have one color.
    std::string name;  // "Forward layer.3 mb 0"
    double start = 0;  // Seconds.
    double seconds = 0;
    Arguments arguments = {};
  };
  // That a slice waited for another one: indices of both.
  struct Flow {
    int from = 0;
    int to = 0;
  };
  struct Sample {
    double start = 0;  // Holds until the next sample, or to the end.
    std::vector<int64_t> bytes;
  };
  // Something else that was measured from time to time.
  struct Counter {
    std::string name;                               // "power"
    std::string unit;                               // "watts"
    std::vector<std::pair<double, double>> values;  // Seconds, in order, and what it was then.
  };
  std::string title;
  std::vector<std::string> tracks;      // "compute", "gather", ...
  std::vector<Slice> slices;            // In time order within a track; those of no length are left out.
  std::vector<Flow> flows;              // A trace draws arrows for them.
  std::vector<std::string> components;  // Empty: nothing is known of memory.
  std::vector<Sample> samples;
  std::vector<Counter> counters;
  double seconds = 0;        // Of the whole step, from 0.
  int64_t peak_bytes = 0;    // The plan's, drawn as a line.
  int64_t budget_bytes = 0;  // 0: not known.
  int64_t step = 0;          // Which it is; 0: none in particular.
  // When 0 was, by the host's clock; 0: nobody knows. What was measured on several hosts is put together by
  // it.
  int64_t begin_unix_nanos = 0;
};

// REQUIRES: the plan has a prediction with its timeline.
Timeline TimelineOf(const v1::Plan& plan);

// Chrome's trace format: each timeline is a process, with one track per lane and one counter track per
// component and counter. Processes are numbered from `first_process`. One event is one line.
std::string TraceJson(const std::vector<Timeline>& timelines, int first_process = 0);

// Several files of TraceJson(), whole, as one: times that say when they were are put beside each other by
// that. DATA_LOSS: something is no such file.
absl::StatusOr<std::string> JoinedTrace(const std::vector<std::string>& files);

// Standalone SVG of about 1100 x 500: memory stacked by component above the lanes. What is narrower than a
// pixel is merged with its neighbours, so that the picture stays small.
std::string Picture(const Timeline& timeline);

}  // namespace fsdpd
