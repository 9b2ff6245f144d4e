#include "fsdp/telemetry/timeline_report.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/rank/timeline_components.h"
#include "fsdp/telemetry/step_timeline.h"

namespace fsdpd {
namespace {

enum Component { kMain, kOptimizer, kGradients, kReplica, kGather, kReduce, kUnused, kRest };
static_assert(kTimelineComponents.size() == kRest + 1);
using Bytes = std::array<int64_t, kTimelineComponents.size()>;

struct Change {
  double at = 0;
  Component component = kRest;
  int64_t bytes = 0;  // Change in bytes.
};

struct Sample {
  double at = 0;
  Bytes bytes = {};
};

bool IsOwn(const Span& span) { return span.measured && !span.of_step_before; }

Component ComponentOf(BufferKind kind, bool full_gradients) {
  switch (kind) {
    case BufferKind::kGathered:
      return kGather;
    case BufferKind::kReplica:
      return kReplica;
    case BufferKind::kReduce:
    case BufferKind::kWire:
      return full_gradients ? kGradients : kReduce;
    case BufferKind::kState:
      return kOptimizer;  // Allocated all the time.
  }
  return kGather;
}

// End of the step's own spans.
double EndOf(const std::vector<Span>& spans) {
  double end = 0;
  for (const Span& span : spans) {
    if (span.measured && !IsBackgroundLane(span.lane)) end = std::max(end, span.end_seconds);
  }
  return end;
}

std::vector<Change> ChangesOfArena(const Program& program, const std::vector<Span>& spans,
                                   bool full_gradients) {
  const double end = EndOf(spans);
  std::vector<Change> changes;
  for (const Buffer& buffer : program.buffers) {
    const Component component = ComponentOf(buffer.kind, full_gradients);
    if (component == kOptimizer) continue;
    for (const Buffer::Interval& live : buffer.live) {
      const Span &born = spans[live.born], &dies = spans[live.dies];
      const double from = IsOwn(born) ? std::max(0.0, born.start_seconds) : 0;
      const double until = IsOwn(dies) ? std::max(from, dies.end_seconds) : std::max(from, end);
      for (const auto& [at, bytes] : {std::pair(from, buffer.bytes), std::pair(until, -buffer.bytes)}) {
        changes.push_back({at, component, bytes});
        changes.push_back({at, kUnused, -bytes});
      }
    }
  }
  return changes;
}

// While an instruction runs, its peak; afterwards what it left allocated.
void AddChangesOfRest(const std::vector<Span>& spans, const HeldBytes& held, std::vector<Change>* changes) {
  int64_t before = held.at_begin;
  const auto become = [&](double at, int64_t bytes) {
    changes->push_back({std::max(0.0, at), kRest, bytes - before});
    before = bytes;
  };
  const size_t known = std::min(held.by_instruction.size(), spans.size());
  for (size_t i = 0; i < known; ++i) {
    if (held.by_instruction[i].highest == 0 || !IsOwn(spans[i])) continue;
    become(spans[i].start_seconds, held.by_instruction[i].highest);
    become(spans[i].end_seconds, held.by_instruction[i].left);
  }
}

// The value at a time includes all changes at that time.
std::vector<Sample> SamplesOf(Bytes bytes, std::vector<Change> changes) {
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.at < b.at; });
  std::vector<Sample> samples = {{0, bytes}};
  for (const Change& change : changes) {
    bytes[change.component] += change.bytes;
    if (change.at > samples.back().at) samples.push_back({change.at, {}});
    samples.back().bytes = bytes;
  }
  return samples;
}

int64_t SumOf(const Sample& sample) {
  return std::accumulate(sample.bytes.begin(), sample.bytes.end(), int64_t{0});
}

// Merges samples to reach the limit; returns how many were merged into each.
int64_t Join(std::vector<Sample>* samples) {
  if (samples->size() <= kMaxTimelineSamples) return 0;
  const size_t together = (samples->size() + kMaxTimelineSamples - 1) / kMaxTimelineSamples;
  std::vector<Sample> joined;
  for (size_t begin = 0; begin < samples->size(); begin += together) {
    const auto first = samples->begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last =
        samples->begin() + static_cast<std::ptrdiff_t>(std::min(begin + together, samples->size()));
    const auto highest =
        std::max_element(first, last, [](const Sample& a, const Sample& b) { return SumOf(a) < SumOf(b); });
    joined.push_back({first->at, highest->bytes});
  }
  *samples = std::move(joined);
  return static_cast<int64_t>(together);
}

}  // namespace

TimelineReport::TimelineReport(const Program& program, const Layout& layout,
                               const PersistentBytes& persistent, bool full_gradients)
    : program_(&program), persistent_(persistent), full_gradients_(full_gradients) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    names_.push_back(NameOfInstruction(program, layout, static_cast<int>(i)));
}

v1::StepTimeline TimelineReport::Of(int64_t step, const std::vector<Span>& spans,
                                    const HeldBytes& held) const {
  FSDPD_CHECK(spans.size() == program_->instructions.size());
  v1::StepTimeline timeline;
  timeline.set_step(step);
  AddRuns(spans, &timeline);
  AddMemory(spans, held, &timeline);
  return timeline;
}

void TimelineReport::AddRuns(const std::vector<Span>& spans, v1::StepTimeline* timeline) const {
  std::vector<size_t> shown;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].measured && !IsPlaceholder(program_->instructions[i].op)) shown.push_back(i);
  }
  if (shown.size() > kMaxTimelineRuns) {
    timeline->set_runs_omitted(static_cast<int64_t>(shown.size() - kMaxTimelineRuns));
    const auto seconds = [&](size_t i) { return spans[i].end_seconds - spans[i].start_seconds; };
    std::nth_element(shown.begin(), shown.begin() + kMaxTimelineRuns, shown.end(),
                     [&](size_t a, size_t b) { return seconds(a) > seconds(b); });
    shown.resize(kMaxTimelineRuns);
    std::sort(shown.begin(), shown.end());
  }
  for (const size_t i : shown) {
    v1::StepTimeline::Run* const run = timeline->add_runs();
    run->set_lane(NameOf(spans[i].lane));
    run->set_instruction(names_[i]);
    run->set_start_seconds(spans[i].start_seconds);
    run->set_seconds(spans[i].end_seconds - spans[i].start_seconds);
  }
}

void TimelineReport::AddMemory(const std::vector<Span>& spans, const HeldBytes& held,
                               v1::StepTimeline* timeline) const {
  if (held.at_begin == 0) return;
  std::vector<Change> changes = ChangesOfArena(*program_, spans, full_gradients_);
  AddChangesOfRest(spans, held, &changes);
  Bytes bytes = {persistent_.main_params, persistent_.optimizer + program_->state_bytes,
                 persistent_.gradients};
  bytes[kUnused] = persistent_.arena - program_->state_bytes;
  bytes[kRest] = held.at_begin - persistent_.main_params - persistent_.optimizer - persistent_.gradients -
                 persistent_.arena;
  std::vector<Sample> samples = SamplesOf(bytes, std::move(changes));
  timeline->set_samples_merged(Join(&samples));
  for (const char* name : kTimelineComponents) timeline->add_components(name);
  for (const Sample& sample : samples) {
    v1::StepTimeline::MemorySample* const to = timeline->add_memory();
    to->set_start_seconds(sample.at);
    for (const int64_t each : sample.bytes) to->add_bytes(std::max<int64_t>(0, each));
  }
}

}  // namespace fsdpd
