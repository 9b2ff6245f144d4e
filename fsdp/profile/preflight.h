// What a node's devices are worth, before a job meets them: each is measured by a rank of its own, all at
// once and the same, as in training. What is enough is not said here (coordinator/preflight_floors.h).
//
//   products  after running hot for a while: a card that is throttled shows it only then
//   memory    a copy and a sum
//   ring      an all-gather of all devices
//   pairs     an all-gather of each two devices, in rounds in which every device has one partner: a link that
//             is slow or down is in one pair, where the ring would show it on all
//
// Unlike a device profile (profile_device.h), numbers are each device's own: a mean would hide the one that
// is slow. Results are verified, as there.
#pragma once

#include <absl/status/statusor.h>
#include <absl/time/time.h>

#include <string>

#include "fsdp/comm/communicator.h"
#include "fsdp/profile/compute_rates.h"
#include "proto/fsdpd/v1/preflight.pb.h"

namespace fsdpd {

struct PreflightOptions {
  CommunicatorOptions world;  // Names of groups are made here.
  ComputeSizes compute;
  int64_t part_elements = 0;  // That each rank brings to a gather.
  absl::Duration hot;         // For how long products run before they are timed.
  int runs = 0;               // Of which the median counts.
};

// Sizes that take some ten seconds on eight GPUs, and tenths of one on CPU.
PreflightOptions DefaultPreflightOptions(DeviceKind device);

// Blocks until all ranks have measured. An error is one of this rank, or that another one is lost.
absl::StatusOr<v1::PreflightDevice> MeasureDevice(const PreflightOptions& options, Store* store);

// With whom a rank is in a round, of PairRounds(ranks): each two ranks meet once. -1: with nobody.
int PairRounds(int ranks);
int PartnerOf(int rank, int ranks, int round);

}  // namespace fsdpd
