// Step timeline: lanes with their instructions, and memory over the same time. Exported as a Chrome trace
// (Perfetto, chrome://tracing) or as an SVG picture. Built here from a prediction; from measurements in
// fsdp/telemetry/step_timeline.h.
//
// Pure; not needed to run a job.
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
  // Extra attributes of a slice, by name.
  using Arguments = std::vector<std::pair<std::string, std::variant<int64_t, std::string>>>;
  struct Slice {
    int track = 0;
    std::string kind;  // "Forward"; determines the color.
    std::string name;  // "Forward layer.3 mb 0"
    double start = 0;  // Seconds.
    double seconds = 0;
    Arguments arguments = {};
  };
  // A dependency between slices: indices of both.
  struct Flow {
    int from = 0;
    int to = 0;
  };
  struct Sample {
    double start = 0;  // Holds until the next sample, or to the end.
    std::vector<int64_t> bytes;
  };
  // Another sampled quantity.
  struct Counter {
    std::string name;                               // "power"
    std::string unit;                               // "watts"
    std::vector<std::pair<double, double>> values;  // (seconds, value), in order.
  };
  std::string title;
  std::vector<std::string> tracks;      // "compute", "gather", ...
  std::vector<Slice> slices;            // In time order within a track; empty ones are omitted.
  std::vector<Flow> flows;              // Drawn as arrows in a trace.
  std::vector<std::string> components;  // Empty: no memory data.
  std::vector<Sample> samples;
  std::vector<Counter> counters;
  double seconds = 0;        // Duration of the step, which starts at 0.
  int64_t peak_bytes = 0;    // Peak of the plan, drawn as a line.
  int64_t budget_bytes = 0;  // 0: not known.
  int64_t step = 0;          // Step number; 0: unspecified.
  // Host clock at time 0; 0: unknown. Used to align timelines from several hosts.
  int64_t begin_unix_nanos = 0;
};

// REQUIRES: the plan has a prediction with its timeline.
Timeline TimelineOf(const v1::Plan& plan);

// Chrome's trace format: each timeline is a process, with one track per lane and one counter track per
// component and counter. Processes are numbered from `first_process`. One event is one line.
std::string TraceJson(const std::vector<Timeline>& timelines, int first_process = 0);

// Merges complete TraceJson() files into one, aligned by their start times if they have them. DATA_LOSS: an
// input is not such a file.
absl::StatusOr<std::string> JoinedTrace(const std::vector<std::string>& files);

// Standalone SVG of about 1100 x 500: memory stacked by component above the lanes. Slices narrower than a
// pixel are merged to keep the file small.
std::string Picture(const Timeline& timeline);

}  // namespace fsdpd
