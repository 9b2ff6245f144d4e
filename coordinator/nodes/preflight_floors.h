// Preflight limits: compares each measured number of a node with a minimum (floor). Floors come from the
// coordinator's flags, and otherwise from a table of cards with exact names: what healthy cards reach
// (docs/deploy.md), less the variation between them. Numbers of a device without a floor are not judged.
//
// Independent of its name, every GPU must have no uncorrected memory error since its driver was loaded, less
// than a tenth of its memory in use by other processes, and as many active NVLinks as the node's other cards.
//
// Pure.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <string>
#include <vector>

#include "proto/fsdpd/v1/preflight.pb.h"

namespace fsdpd {

struct PreflightFloor {
  std::string device;   // PreflightDevice.name, case-insensitive.
  std::string measure;  // "matmul_tflops", "memory_gb_per_s", "all_gather_gb_per_s", "pair_gb_per_s".
  double value = 0;     // In the measure's unit; 0: not judged.
};

// Parses "NVIDIA H200:matmul_tflops=540". INVALID_ARGUMENT describes the error.
absl::StatusOr<PreflightFloor> ParsePreflightFloor(absl::string_view text);

// Returns one sentence for each number below its floor, with the floor; a failed measurement comes first.
std::vector<std::string> MissedFloors(const v1::PreflightResult& result,
                                      const std::vector<PreflightFloor>& floors);

// Returns a warning if floors name devices that the node does not have, usually because of a misspelled name,
// so that they judge nothing; "" if each floor matches a measured device.
std::string UnmatchedFloors(const v1::PreflightResult& result, const std::vector<PreflightFloor>& floors);

}  // namespace fsdpd
