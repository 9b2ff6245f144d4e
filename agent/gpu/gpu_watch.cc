#include "agent/gpu/gpu_watch.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <cstdlib>
#include <thread>

#include "agent/metrics/agent_metrics.h"
#include "agent/metrics/rank_series.h"
#include "base/check.h"
#include "base/log.h"

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
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<Nvml> nvml, Nvml::Open());
  FSDPD_ASSIGN_OR_RETURN(const std::vector<int> gpus,
                         VisibleGpus(*nvml, std::getenv("CUDA_VISIBLE_DEVICES")));
  nvml_ = std::move(nvml);
  std::vector<Gpu> found(gpus.size());
  for (size_t i = 0; i < gpus.size(); ++i) {
    found[i].index = gpus[i];
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
  if (!Has(device)) return;
  gpus_[device].rank = id;
  gpus_[device].memory.reset();
  gpus_[device].step.reset();
}

void GpuWatch::Stepped(int device, v1::StepReport* report) {
  const absl::Duration ago = clock_->Wall() - absl::FromUnixNanos(report->unix_nanos());
  const absl::Time end = clock_->Now() - ago - absl::Seconds(report->evaluation().seconds());
  MutexLock lock(&mutex_);
  if (!Has(device)) return;
  Gpu& gpu = gpus_[device];
  gpu.memory = report->memory();
  gpu.step = PowerOf(gpu, end - absl::Seconds(report->step_seconds()), end);
  if (gpu.step.has_value()) *report->mutable_power() = *gpu.step;
}

void GpuWatch::Describe(int device, v1::PreflightDevice* described) const {
  MutexLock lock(&mutex_);
  if (!Has(device)) return;
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
  if (!Has(device)) return;
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
  if (!Has(device) || !(gpus_[device].rank == id)) return;
  gpus_[device].rank.reset();
  gpus_[device].memory.reset();
  gpus_[device].step.reset();
}

std::optional<int64_t> GpuWatch::UsedBytes(int device, absl::Time since) const {
  MutexLock lock(&mutex_);
  if (!Has(device) || gpus_[device].read_at <= since) return std::nullopt;
  return gpus_[device].last.used_bytes;
}

void GpuWatch::AddSamples(const Gpu& gpu, const LabeledSamples& add) {
  add("fsdpd_gpu_energy_joules_total", gpu.last.energy_joules);
  add("fsdpd_gpu_temperature_celsius", gpu.last.temperature_celsius);
  for (int reason = 0; reason < kGpuSlowdowns && gpu.last.slowdowns.has_value(); ++reason)
    add("fsdpd_gpu_slowdown_seconds_total", gpu.slow_seconds[reason],
        {{"reason", NameOf(static_cast<GpuSlowdown>(reason))}});
  add("fsdpd_gpu_ecc_errors_total", gpu.last.corrected_ecc_errors, {{"kind", "corrected"}});
  add("fsdpd_gpu_ecc_errors_total", gpu.last.uncorrected_ecc_errors, {{"kind", "uncorrected"}});
  add("fsdpd_gpu_xid_errors_total", gpu.xids);
  const std::string job = gpu.rank.has_value() ? gpu.rank->of.job_id : "";
  const std::string rank = gpu.rank.has_value() ? absl::StrCat(gpu.rank->rank) : "";
  const auto add_of_rank = [&](const char* name, const auto& value) {
    add(name, value, {{kJobLabel, job}, {"rank", rank}});
  };
  add_of_rank("fsdpd_gpu_power_watts", gpu.last.power_watts);
  add_of_rank("fsdpd_gpu_sm_clock_hertz", gpu.last.sm_clock_hertz);
  add_of_rank("fsdpd_gpu_memory_bytes", gpu.memory_bytes);
  add_of_rank("fsdpd_gpu_memory_used_bytes", gpu.last.used_bytes);
  if (gpu.memory.has_value()) {
    if (gpu.last.used_bytes.has_value())
      add_of_rank("fsdpd_gpu_memory_outside_bytes", *gpu.last.used_bytes - gpu.memory->reserved_bytes());
    add_of_rank("fsdpd_gpu_allocator_retries_total", gpu.memory->allocator_retries());
    add_of_rank("fsdpd_gpu_out_of_memory_total", gpu.memory->out_of_memory());
  }
  if (!gpu.step.has_value()) return;
  add_of_rank("fsdpd_gpu_step_energy_joules", gpu.step->energy_joules());
  if (gpu.step->sm_clock_hertz() > 0)
    add_of_rank("fsdpd_gpu_step_sm_clock_hertz", gpu.step->sm_clock_hertz());
}

std::vector<MetricFamily> GpuWatch::Collect() const {
  MetricSamples samples(AgentMetrics());
  std::vector<MetricFamily> families;
  MutexLock lock(&mutex_);
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (clock_->Now() - gpus_[i].read_at > kLongestGap) continue;
    AddSamples(gpus_[i],
               LabeledSamples(&samples, {{kNodeLabel, node_}, {"device", absl::StrCat("cuda:", i)}}));
  }
  samples.MoveTo(&families);
  return families;
}

}  // namespace fsdpd
