// What this node can offer: kind of device, slots (ranks that may run at once), memory per slot, and beside
// GPUs the machine's own. Device and slots are decided once, at the agent's start, from what was asked for
// and what is there; memory is probed again whenever the agent registers, as limits can be set anew. It is
// what the machine has less a reserve, not what happens to be free: a rank of yesterday that was still there
// when the agent started must not make the node small for ever.
//
// A node that had GPUs is not offered without them, or with fewer, because nobody said how many there are to
// be: after a boot at which the driver failed it would take jobs for CPUs, and nobody would know. So how many
// were offered stays in the work dir (WORK_DIR/gpus) for the next start.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <string>

#include "base/nvml.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

struct DeviceOffer {
  v1::Device device = v1::DEVICE_CPU;
  int slots = 0;
  int64_t memory_bytes_per_slot = 0;
  int64_t host_memory_bytes = 0;  // Beside GPUs, for all slots: the machine's less a reserve. 0: not known.
};

// What the machine has.
struct MachineFacts {
  int cores = 0;             // That this process may run on.
  int64_t memory_bytes = 0;  // Of the machine, or what the control groups of this process leave of it.
  absl::StatusOr<std::vector<GpuMemory>> gpus = absl::UnavailableError("not probed");
  int gpus_on_bus = 0;   // NVIDIA's, as the kernel lists them, with a driver or without.
  int gpus_offered = 0;  // When the agent started last. Not probed: its work dir knows.
};
MachineFacts ProbeMachine();

// Pure. `asked` is cpu, cuda or auto (cuda when there is a GPU); `slots` 0 takes all: a slot per core or per
// GPU. The reserve on cuda is the driver's own share, of the GPU in use that leaves the least; that of the
// machine's memory is a tenth, 4 GiB at most, for the system, the agent and what ranks have beside their
// plan. INVALID_ARGUMENT for a bad `asked` or more slots than GPUs; UNAVAILABLE for cuda without a GPU, and
// where GPUs that were offered are missing and neither `asked` nor `slots` says that this is meant.
absl::StatusOr<DeviceOffer> DecideOffer(absl::string_view asked, int slots, const MachineFacts& machine);

// The file of how many GPUs were offered, and what it says; 0 where it is not there or says nothing.
std::string GpusOfferedPath(absl::string_view work_dir);
int ReadGpusOffered(absl::string_view work_dir);

// In a directory such as /sys/bus/pci/devices: display and compute cards of NVIDIA's.
int CountGpusOnBus(const std::string& devices);

// MemTotal of /proc/meminfo's text, in bytes; 0 when it is not there.
int64_t ParseMemTotal(absl::string_view meminfo);

}  // namespace fsdpd
