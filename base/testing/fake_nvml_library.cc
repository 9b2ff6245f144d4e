// Functions of the library of fake_nvml.h, with the signatures of nvml.h.
#include <cstring>
#include <thread>

#include "base/testing/fake_nvml.h"

namespace {

using fsdpd::FakeGpu;

constexpr int kOk = 0, kNotSupported = 3, kNotFound = 6, kTimeout = 10;

FakeGpu gpus[fsdpd::kFakeGpus];
fsdpd::FakeNvml::Driver driver;

FakeGpu* GpuOf(void* device) { return static_cast<FakeGpu*>(device); }

template <typename Value>
int Tell(void* device, Value (*read)(const FakeGpu&), Value* value) {
  if (!GpuOf(device)->tells) return kNotSupported;
  *value = read(*GpuOf(device));
  return kOk;
}

struct Memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

}  // namespace

extern "C" {

FakeGpu* FakeNvmlGpus() { return gpus; }
fsdpd::FakeNvml::Driver* FakeNvmlDriver() { return &driver; }

int nvmlInit_v2() { return kOk; }
int nvmlShutdown() { return kOk; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = fsdpd::kFakeGpus;
  return kOk;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &gpus[index];
  return kOk;
}

int nvmlDeviceGetMemoryInfo_v2(void* device, Memory* memory) {
  memory->total = fsdpd::kFakeGpuBytes;
  memory->reserved = fsdpd::kFakeReservedBytes;
  memory->used = GpuOf(device)->used_bytes;
  memory->free = memory->total - memory->reserved - memory->used;
  return kOk;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  ++driver.waiting;
  while (driver.hangs) std::this_thread::yield();
  --driver.waiting;
  return Tell<unsigned>(
      device, [](const FakeGpu& gpu) { return gpu.power_milliwatts; }, milliwatts);
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  return Tell<unsigned long long>(
      device, [](const FakeGpu& gpu) -> unsigned long long { return gpu.energy_millijoules; }, millijoules);
}

int nvmlDeviceGetClockInfo(void* device, int /*type*/, unsigned* megahertz) {
  return Tell<unsigned>(
      device, [](const FakeGpu& gpu) { return gpu.sm_clock_megahertz; }, megahertz);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* bits) {
  return Tell<unsigned long long>(
      device, [](const FakeGpu& gpu) -> unsigned long long { return gpu.slowdown_bits; }, bits);
}

int nvmlDeviceGetTemperature(void* device, int /*sensor*/, unsigned* celsius) {
  return Tell<unsigned>(
      device, [](const FakeGpu& gpu) { return gpu.celsius; }, celsius);
}

int nvmlDeviceGetTotalEccErrors(void* device, int type, int /*counter*/, unsigned long long* errors) {
  if (!GpuOf(device)->tells) return kNotSupported;
  *errors = type == 0 ? GpuOf(device)->corrected_ecc_errors : GpuOf(device)->uncorrected_ecc_errors;
  return kOk;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  if (!GpuOf(device)->tells || link >= GpuOf(device)->nvlinks) return kNotSupported;
  *active = link < GpuOf(device)->nvlinks_down ? 0 : 1;
  return kOk;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strcmp(uuid, "GPU-second") != 0) return kNotFound;
  *device = &gpus[1];
  return kOk;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (std::strcmp(bus_id, "0000:3b:00.0") != 0) return kNotFound;
  *device = &gpus[1];
  return kOk;
}

int nvmlEventSetCreate(void** events) {
  *events = gpus;
  return kOk;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long /*types*/, void*) { return kOk; }
int nvmlEventSetFree(void*) { return kOk; }

int nvmlEventSetWait_v2(void*, Event* event, unsigned /*timeout_ms*/) {
  for (FakeGpu& gpu : gpus) {
    if (gpu.xids == 0) continue;
    --gpu.xids;
    event->device = &gpu;
    event->data = gpu.xid;
    return kOk;
  }
  return kTimeout;
}
}
