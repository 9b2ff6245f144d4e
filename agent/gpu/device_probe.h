// Resources that this node offers. Device type and slots are decided once at startup from the flags and the
// machine. Memory is probed again at every registration, since cgroup limits can change. It is the total
// minus a reserve, not what is currently free: a leftover rank that still held memory when the agent started
// must not shrink the node permanently.
//
// A node that had GPUs is not offered without them, or with fewer: if the driver fails after a reboot, the
// node would otherwise accept CPU jobs unnoticed. So the number of offered GPUs is stored (WORK_DIR/gpus).
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

#include "base/process/nvml.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct DeviceOffer {
  v1::Device device = v1::DEVICE_CPU;
  int slots = 0;
  int64_t memory_bytes_per_slot = 0;
  int64_t host_memory_bytes = 0;  // GPU nodes only: total of all slots, minus a reserve. 0: unknown.
};

// Resources of the machine.
struct MachineFacts {
  int cores = 0;             // CPU affinity of this process.
  int64_t memory_bytes = 0;  // Total of the machine, or the cgroup limit if that is lower.
  absl::StatusOr<std::vector<GpuMemory>> gpus = absl::UnavailableError("not probed");
  int gpus_on_bus = 0;   // NVIDIA PCI devices, with or without a driver.
  int gpus_offered = 0;  // At the previous start. Not probed: read from the work directory.
};
MachineFacts ProbeMachine();

// Decides what to offer. Pure. `asked` is cpu, cuda or auto (cuda if there is a GPU); `slots` 0 means one per
// core or GPU. memory_bytes_per_slot on cuda is that of the smallest used GPU, minus what the driver
// reserves. The reserve of host memory is 10%, at most 4 GiB. INVALID_ARGUMENT for an invalid `asked` or more
// slots than GPUs. UNAVAILABLE for cuda without a GPU, or if GPUs of the previous start are missing and
// neither `asked` nor `slots` confirms it.
absl::StatusOr<DeviceOffer> DecideOffer(absl::string_view asked, int slots, const MachineFacts& machine);

// Path of the file with the number of offered GPUs, and its value (0 if missing or invalid).
std::string GpusOfferedPath(absl::string_view work_dir);
int ReadGpusOffered(absl::string_view work_dir);

// Counts the NVIDIA display and compute devices in `devices`, such as /sys/bus/pci/devices.
int CountGpusOnBus(const std::string& devices);

// MemTotal in the text of /proc/meminfo, in bytes; 0 if missing.
int64_t ParseMemTotal(absl::string_view meminfo);

}  // namespace fsdpd
