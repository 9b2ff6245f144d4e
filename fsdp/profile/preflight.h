// Preflight: measures a node's devices before a job runs on them. Each device is measured by its own rank,
// all at the same time, as in training. Thresholds are not defined here
// (coordinator/nodes/preflight_floors.h).
//
//   products  after a warm-up: throttling shows only on a hot GPU
//   memory    a copy and a sum
//   ring      an all-gather over all devices
//   pairs     an all-gather between each two devices, in rounds in which every device has one partner: a
//             slow or broken link shows in one pair, while the ring would show it on all devices
//
// Unlike a device profile (profile_device.h), results are per device: a mean would hide a slow one. Results
// are verified in the same way.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include "fsdp/comm/communicator.h"
#include "fsdp/profile/compute_rates.h"
#include "proto/fsdpd/v1/preflight.pb.h"

namespace fsdpd {

struct PreflightOptions {
  CommunicatorOptions world;  // Names of groups are derived from it.
  ComputeSizes compute;
  int64_t part_elements = 0;  // Each rank's part of an all-gather.
  absl::Duration hot;         // Duration of the warm-up.
  int runs = 0;               // The median counts.
};

// Sizes that take about ten seconds on eight GPUs, and tenths of a second on a CPU.
PreflightOptions DefaultPreflightOptions(DeviceKind device);

// Blocks until all ranks have measured. Errors: this rank's own, or that another rank was lost.
absl::StatusOr<v1::PreflightDevice> MeasureDevice(const PreflightOptions& options, Store* store);

// Schedule of pairs: in PairRounds(ranks) rounds every two ranks meet once. PartnerOf is -1 for a rank
// without a partner.
int PairRounds(int ranks);
int PartnerOf(int rank, int ranks, int round);

}  // namespace fsdpd
