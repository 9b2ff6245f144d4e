#include "fsdp/telemetry/device_recorder.h"

#include <absl/time/clock.h>

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process/nvml.h"
#include "fsdp/telemetry/kernel_recorder.h"
#include "fsdp/telemetry/step_timeline.h"

namespace fsdpd {
namespace {

// Ten minutes, in case a trace is never written.
constexpr size_t kMostSamples = 60'000;

constexpr absl::Duration kLongestWait = absl::Seconds(2);

}  // namespace

DeviceRecorder::DeviceRecorder(int device_index, std::string bus_id)
    : device_index_(device_index), bus_id_(std::move(bus_id)) {}

DeviceRecorder::~DeviceRecorder() {
  Record(false);
  {
    MutexLock lock(&mutex_);
    ending_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void DeviceRecorder::Record(bool on) {
  if (on && !records_kernels_ && !refused_kernels_) {
    const absl::Status started = KernelRecorder::Process().Start();
    records_kernels_ = started.ok();
    refused_kernels_ = !started.ok();
    if (refused_kernels_) LogWarning("traces will have no kernels error=%s", started.message());
  }
  if (!on && std::exchange(records_kernels_, false)) KernelRecorder::Process().Stop();
  MutexLock lock(&mutex_);
  if (std::exchange(on_, on) == on) return;
  if (on && !thread_.joinable()) thread_ = std::thread([this] { Serve(); });
  changed_.SignalAll();
}

void DeviceRecorder::Serve() {
  absl::StatusOr<std::unique_ptr<Nvml>> nvml = Nvml::Open();
  const absl::StatusOr<int> gpu = nvml.ok() ? (*nvml)->FindByBusId(bus_id_) : nvml.status();
  if (!gpu.ok()) return LogWarning("traces will have no power error=%s", gpu.status().message());
  for (;;) {
    {
      MutexLock lock(&mutex_);
      while (!on_ && !ending_) changed_.Wait(&mutex_);
      if (ending_) return;
    }
    Sample sample;
    sample.power_watts = (*nvml)->InstantPowerWatts(*gpu);
    sample.sm_clock_hertz = (*nvml)->SmClockHertz(*gpu);
    sample.used_bytes = (*nvml)->UsedBytes(*gpu);
    sample.unix_nanos = absl::GetCurrentTimeNanos();
    MutexLock lock(&mutex_);
    samples_.push_back(sample);
    if (samples_.size() > kMostSamples) samples_.pop_front();
    if (!ending_) changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(kPeriod));
  }
}

void DeviceRecorder::AddTo(Timeline* timeline) {
  const auto [begin, end] = UnixNanosOf(*timeline);
  AddActivities(KernelRecorder::Process().Take(device_index_, begin, end, kLongestWait), timeline);
  std::vector<std::pair<int64_t, double>> power, clock, memory;
  {
    MutexLock lock(&mutex_);
    for (const Sample& sample : samples_) {
      const auto add = [&](auto* values, const auto& value, double unit) {
        if (value.has_value()) values->emplace_back(sample.unix_nanos, static_cast<double>(*value) * unit);
      };
      add(&power, sample.power_watts, 1);
      add(&clock, sample.sm_clock_hertz, 1e-6);
      add(&memory, sample.used_bytes, 1);
    }
  }
  AddCounter("power", "watts", power, timeline);
  AddCounter("SM clock", "megahertz", clock, timeline);
  AddCounter("device memory in use", "bytes", memory, timeline);
}

}  // namespace fsdpd
