// A step as people look at it: lanes with their instructions, and memory over the same time. As a trace that
// Perfetto (ui.perfetto.dev) and chrome://tracing open, and as a picture for a page. Of a prediction here; of
// what was measured in fsdp/telemetry/step_timeline.h.
//
// Pure text; nothing here is needed to run a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/plan.pb.h"

namespace fsdpd {

struct Timeline {
  struct Slice {
    int track = 0;
    std::string kind;  // "Forward": slices of a kind have one color.
    std::string name;  // "Forward layer.3 mb 0"
    double start = 0;  // Seconds.
    double seconds = 0;
  };
  struct Sample {
    double start = 0;  // Holds until the next sample, or to the end.
    std::vector<int64_t> bytes;
  };
  std::string title;
  std::vector<std::string> tracks;      // "compute", "gather", ...
  std::vector<Slice> slices;            // In time order within a track; those of no length are left out.
  std::vector<std::string> components;  // Empty: nothing is known of memory.
  std::vector<Sample> samples;
  double seconds = 0;        // Of the whole step, from 0.
  int64_t peak_bytes = 0;    // The plan's, drawn as a line.
  int64_t budget_bytes = 0;  // 0: not known.
};

// REQUIRES: the plan has a prediction with its timeline.
Timeline TimelineOf(const v1::Plan& plan);

// Chrome's trace format: each timeline is a process, with one track per lane and one counter track per
// component.
std::string TraceJson(const std::vector<Timeline>& timelines);

// Standalone SVG of about 1100 x 500: memory stacked by component above the lanes. What is narrower than a
// pixel is merged with its neighbours, so that the picture stays small.
std::string Picture(const Timeline& timeline);

}  // namespace fsdpd
