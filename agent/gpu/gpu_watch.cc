#include "agent/gpu/gpu_watch.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "agent/metrics/metrics.h"
#include "agent/metrics/rank_series.h"
#include "base/log.h"
#include "base/process/metric.h"

namespace fsdpd {
namespace {

using prometheus::MetricFamily;

// How far the last reading is extrapolated: a step is reported before the next reading.
constexpr absl::Duration kAhead = absl::Seconds(1);

// Links rarely fail, and reading them takes one NVML call per link.
constexpr absl::Duration kLinksPeriod = absl::Seconds(10);

// After a longer gap between samples, neither the interval nor the last reading is used.
constexpr absl::Duration kLongestGap = absl::Seconds(2);

}  // namespace

void GpuWatch::Start() {
  {
    MutexLock lock(&mutex_);
    serving_ = true;
  }
  std::thread([self = shared_from_this()] { self->Serve(); }).detach();
}

void GpuWatch::Stop() {
  const absl::Time until = absl::Now() + kLongestStop;
  MutexLock lock(&mutex_);
  ending_ = true;
  changed_.SignalAll();
  while (serving_ && absl::Now() < until) changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(kPeriod));
}

bool GpuWatch::IsEnding() const {
  MutexLock lock(&mutex_);
  return ending_;
}

absl::Status GpuWatch::Open() {
  absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open();
  if (!nvml.ok()) return nvml.status();
  const absl::StatusOr<std::vector<int>> gpus = VisibleGpus(**nvml, std::getenv("CUDA_VISIBLE_DEVICES"));
  if (!gpus.ok()) return gpus.status();
  nvml_ = *std::move(nvml);
  std::vector<Gpu> found(gpus->size());
  for (size_t i = 0; i < gpus->size(); ++i) {
    found[i].index = (*gpus)[i];
    const absl::StatusOr<GpuMemory> memory = nvml_->Memory(found[i].index);
    if (memory.ok()) found[i].memory_bytes = memory->total_bytes;
  }
  MutexLock lock(&mutex_);
  gpus_ = std::move(found);
  return absl::OkStatus();
}

// Training does not depend on NVML: without it, only the series are missing.
void GpuWatch::Serve() {
  const absl::Status opened = Open();
  if (!opened.ok()) LogWarning("cannot read GPUs; their metrics are not exported error=%s", opened.message());
  while (opened.ok() && !IsEnding()) {
    Sample();
    MutexLock lock(&mutex_);
    if (!ending_) changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(kPeriod));
  }
  nvml_.reset();  // Before `serving_` is cleared: after Stop() returns, the process may exit.
  MutexLock lock(&mutex_);
  serving_ = false;
  changed_.SignalAll();
}

void GpuWatch::Sample() {
  std::vector<int> indices;
  {
    MutexLock lock(&mutex_);
    for (const Gpu& gpu : gpus_) indices.push_back(gpu.index);
  }
  std::vector<std::pair<GpuReading, absl::Time>> readings;
  for (const int index : indices) {
    const GpuReading reading = nvml_->Read(index);
    readings.emplace_back(reading, clock_->Now());
  }
  const std::optional<std::vector<int64_t>> xids = nvml_->TakeXids();
  const bool links_too = clock_->Now() - links_read_ >= kLinksPeriod;
  std::vector<std::optional<int>> links(indices.size());
  for (size_t i = 0; i < indices.size() && links_too; ++i) links[i] = nvml_->NvLinksUp(indices[i]);
  if (links_too) links_read_ = clock_->Now();
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (links_too) gpus_[i].nvlinks_up = links[i];
    Take(readings[i].first, readings[i].second, &gpus_[i]);
    if (xids.has_value()) gpus_[i].xids = gpus_[i].xids.value_or(0) + (*xids)[indices[i]];
  }
}

void GpuWatch::Take(const GpuReading& reading, absl::Time now, Gpu* gpu) {
  // The energy counter of the GPU is updated less often than it is read. Add only changed values, so that
  // interpolation is between updates and not flat.
  if (reading.energy_joules.has_value() && reading.energy_joules != gpu->last.energy_joules)
    gpu->totals.joules.Add(now, *reading.energy_joules);
  const absl::Duration since = now - gpu->read_at;
  const double seconds = since <= kLongestGap ? absl::ToDoubleSeconds(since) : 0;
  if (since > kLongestGap) gpu->totals.cycles = {};
  if (reading.sm_clock_hertz.has_value()) {
    gpu->cycles += *reading.sm_clock_hertz * seconds;
    gpu->totals.cycles.Add(now, gpu->cycles);
  }
  for (int i = 0; i < kGpuSlowdowns && reading.slowdowns.has_value(); ++i) {
    gpu->slow_seconds[i] += (*reading.slowdowns)[i] ? seconds : 0;
    gpu->totals.slow_seconds[i].Add(now, gpu->slow_seconds[i]);
  }
  gpu->last = reading;
  gpu->read_at = now;
}

// Empty if the energy is unknown.
std::optional<v1::StepPower> GpuWatch::PowerOf(const Gpu& gpu, absl::Time begin, absl::Time end) {
  const std::optional<double> joules = gpu.totals.joules.Between(begin, end, kAhead);
  const double seconds = absl::ToDoubleSeconds(end - begin);
  if (!joules.has_value() || seconds <= 0) return std::nullopt;
  v1::StepPower power;
  power.set_energy_joules(*joules);
  const std::optional<double> cycles = gpu.totals.cycles.Between(begin, end, kAhead);
  if (cycles.has_value()) power.set_sm_clock_hertz(*cycles / seconds);
  for (int i = 0; i < kGpuSlowdowns; ++i) {
    const double slow = gpu.totals.slow_seconds[i].Between(begin, end, kAhead).value_or(0);
    if (slow <= 0) continue;
    v1::StepPower::Slowdown* const slowdown = power.add_slowdowns();
    slowdown->set_reason(NameOf(static_cast<GpuSlowdown>(i)));
    slowdown->set_seconds(slow);
  }
  return power;
}

void GpuWatch::Launched(int device, const RankId& id) {
  MutexLock lock(&mutex_);
  if (device < 0 || device >= static_cast<int>(gpus_.size())) return;
  gpus_[device].rank = id;
  gpus_[device].memory.reset();
  gpus_[device].step.reset();
}

void GpuWatch::Stepped(int device, v1::StepReport* report) {
  const absl::Duration ago = clock_->Wall() - absl::FromUnixNanos(report->unix_nanos());
  const absl::Time end = clock_->Now() - ago - absl::Seconds(report->evaluation().seconds());
  MutexLock lock(&mutex_);
  if (device < 0 || device >= static_cast<int>(gpus_.size())) return;
  Gpu& gpu = gpus_[device];
  gpu.memory = report->memory();
  gpu.step = PowerOf(gpu, end - absl::Seconds(report->step_seconds()), end);
  if (gpu.step.has_value()) *report->mutable_power() = *gpu.step;
}

void GpuWatch::Describe(int device, v1::PreflightDevice* described) const {
  MutexLock lock(&mutex_);
  if (device < 0 || device >= static_cast<int>(gpus_.size())) return;
  const Gpu& gpu = gpus_[device];
  if (clock_->Now() - gpu.read_at > kLongestGap) return;
  if (gpu.memory_bytes.has_value()) described->set_memory_bytes(*gpu.memory_bytes);
  if (gpu.last.used_bytes.has_value()) described->set_used_bytes(*gpu.last.used_bytes);
  if (gpu.last.uncorrected_ecc_errors.has_value())
    described->set_uncorrected_ecc_errors(*gpu.last.uncorrected_ecc_errors);
  if (gpu.nvlinks_up.has_value()) described->set_nvlinks_up(*gpu.nvlinks_up);
}

void GpuWatch::Ran(int device, absl::Time begin, absl::Time end, v1::PreflightDevice* described) const {
  const absl::Duration past = clock_->Wall() - clock_->Now();
  MutexLock lock(&mutex_);
  if (device < 0 || device >= static_cast<int>(gpus_.size())) return;
  const std::optional<v1::StepPower> power = PowerOf(gpus_[device], begin - past, end - past);
  if (!power.has_value()) return;
  described->set_sm_clock_hertz(power->sm_clock_hertz());
  for (const v1::StepPower::Slowdown& slowdown : power->slowdowns()) {
    v1::PreflightDevice::Slowdown* const added = described->add_slowdowns();
    added->set_reason(slowdown.reason());
    added->set_seconds(slowdown.seconds());
  }
}

void GpuWatch::Ended(int device, const RankId& id) {
  MutexLock lock(&mutex_);
  if (device < 0 || device >= static_cast<int>(gpus_.size()) || !(gpus_[device].rank == id)) return;
  gpus_[device].rank.reset();
  gpus_[device].memory.reset();
  gpus_[device].step.reset();
}

std::optional<int64_t> GpuWatch::UsedBytes(int device, absl::Time since) const {
  MutexLock lock(&mutex_);
  if (device < 0 || device >= static_cast<int>(gpus_.size()) || gpus_[device].read_at <= since)
    return std::nullopt;
  return gpus_[device].last.used_bytes;
}

// Metric families in a fixed order; families without a series are left out.
class GpuTable {
 public:
  using Gpu = GpuWatch::Gpu;

  GpuTable(const std::string& node, const std::vector<Gpu>& gpus, absl::Time now)
      : node_(node), gpus_(gpus), now_(now) {}

  std::vector<MetricFamily> Collect() {
    Readings();
    Slowdowns();
    Errors();
    Memory();
    Steps();
    return std::move(families_);
  }

 private:
  using Value = std::optional<double> (*)(const Gpu&);

  void Add(MetricFamily* family, size_t device, std::optional<double> value, MetricLabels more = {}) const {
    if (!value.has_value() || now_ - gpus_[device].read_at > kLongestGap) return;
    MetricLabels labels = {{kNodeLabel, node_}, {"device", absl::StrCat("cuda:", device)}};
    labels.insert(labels.end(), more.begin(), more.end());
    AddSample(family, std::move(labels), *value);
  }

  static MetricFamily Family(const char* name) { return FamilyOf(AgentMetrics(), name); }
  // Series of the GPU itself.
  void Each(const char* name, Value value) {
    MetricFamily family = Family(name);
    for (size_t i = 0; i < gpus_.size(); ++i) Add(&family, i, value(gpus_[i]));
    Keep(std::move(family));
  }
  // Series with the job and rank on the GPU.
  void EachRank(const char* name, Value value) {
    MetricFamily family = Family(name);
    for (size_t i = 0; i < gpus_.size(); ++i) {
      const std::optional<RankId>& rank = gpus_[i].rank;
      Add(&family, i, value(gpus_[i]),
          {{kJobLabel, rank ? rank->of.job_id : ""}, {"rank", rank ? absl::StrCat(rank->rank) : ""}});
    }
    Keep(std::move(family));
  }

  void Readings() {
    EachRank("fsdpd_gpu_power_watts", [](const Gpu& gpu) { return gpu.last.power_watts; });
    Each("fsdpd_gpu_energy_joules_total", [](const Gpu& gpu) { return gpu.last.energy_joules; });
    EachRank("fsdpd_gpu_sm_clock_hertz", [](const Gpu& gpu) { return gpu.last.sm_clock_hertz; });
    Each("fsdpd_gpu_temperature_celsius", [](const Gpu& gpu) { return gpu.last.temperature_celsius; });
  }

  void Slowdowns() {
    MetricFamily family = Family("fsdpd_gpu_slowdown_seconds_total");
    for (size_t i = 0; i < gpus_.size(); ++i) {
      for (int reason = 0; reason < kGpuSlowdowns && gpus_[i].last.slowdowns.has_value(); ++reason) {
        Add(&family, i, gpus_[i].slow_seconds[reason],
            {{"reason", NameOf(static_cast<GpuSlowdown>(reason))}});
      }
    }
    Keep(std::move(family));
  }

  void Errors() {
    MetricFamily family = Family("fsdpd_gpu_ecc_errors_total");
    for (size_t i = 0; i < gpus_.size(); ++i) {
      Add(&family, i, gpus_[i].last.corrected_ecc_errors, {{"kind", "corrected"}});
      Add(&family, i, gpus_[i].last.uncorrected_ecc_errors, {{"kind", "uncorrected"}});
    }
    Keep(std::move(family));
    Each("fsdpd_gpu_xid_errors_total", [](const Gpu& gpu) { return Double(gpu.xids); });
  }

  void Memory() {
    EachRank("fsdpd_gpu_memory_bytes", [](const Gpu& gpu) { return Double(gpu.memory_bytes); });
    EachRank("fsdpd_gpu_memory_used_bytes", [](const Gpu& gpu) { return Double(gpu.last.used_bytes); });
    EachRank("fsdpd_gpu_memory_outside_bytes", [](const Gpu& gpu) -> std::optional<double> {
      if (!gpu.last.used_bytes.has_value() || !gpu.memory.has_value()) return std::nullopt;
      return static_cast<double>(*gpu.last.used_bytes - gpu.memory->reserved_bytes());
    });
    EachRank("fsdpd_gpu_allocator_retries_total", [](const Gpu& gpu) -> std::optional<double> {
      if (!gpu.memory.has_value()) return std::nullopt;
      return static_cast<double>(gpu.memory->allocator_retries());
    });
    EachRank("fsdpd_gpu_out_of_memory_total", [](const Gpu& gpu) -> std::optional<double> {
      if (!gpu.memory.has_value()) return std::nullopt;
      return static_cast<double>(gpu.memory->out_of_memory());
    });
  }

  void Steps() {
    EachRank("fsdpd_gpu_step_energy_joules", [](const Gpu& gpu) -> std::optional<double> {
      if (!gpu.step.has_value()) return std::nullopt;
      return gpu.step->energy_joules();
    });
    EachRank("fsdpd_gpu_step_sm_clock_hertz", [](const Gpu& gpu) -> std::optional<double> {
      if (!gpu.step.has_value() || gpu.step->sm_clock_hertz() <= 0) return std::nullopt;
      return gpu.step->sm_clock_hertz();
    });
  }

  static std::optional<double> Double(const std::optional<int64_t>& value) {
    return value.has_value() ? std::optional(static_cast<double>(*value)) : std::nullopt;
  }

  void Keep(MetricFamily family) {
    if (!family.metric.empty()) families_.push_back(std::move(family));
  }

  const std::string& node_;
  const std::vector<Gpu>& gpus_;
  const absl::Time now_;
  std::vector<MetricFamily> families_;
};

std::vector<MetricFamily> GpuWatch::Collect() const {
  MutexLock lock(&mutex_);
  return GpuTable(node_, gpus_, clock_->Now()).Collect();
}

}  // namespace fsdpd
