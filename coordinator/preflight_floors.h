// What of a node is enough for a job: each number that was measured against its floor. Floors are those that
// the coordinator was started with, and else those of cards that are known by their exact names: what these
// reach when they are sound (docs/deploy.md has the numbers), less what sound ones differ by and what other
// versions of libraries cost. A number of a device that neither names is kept and not judged.
//
// Of every GPU it is asked, whatever its name: that no memory error is left uncorrected since its driver was
// loaded, that nobody else has a tenth of its memory, and that as many of its NVLinks are up as of the node's
// other cards.
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
  std::string device;   // PreflightDevice.name, without regard to case.
  std::string measure;  // "product_tflops", "memory_gb_per_s", "ring_gb_per_s", "pair_gb_per_s".
  double value = 0;     // In the measure's unit; 0: not judged.
};

// "NVIDIA H200:product_tflops=540". INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<PreflightFloor> ParsePreflightFloor(absl::string_view text);

// One sentence for each number that is not enough, with its floor; first that the measurement itself failed.
std::vector<std::string> MissedFloors(const v1::PreflightResult& result,
                                      const std::vector<PreflightFloor>& floors);

// What somebody has to hear who gave floors of devices that the node has not, by a wrong name as a rule, so
// that nothing is judged by them; "" where each is of a device that was measured.
std::string FloorsOfOthers(const v1::PreflightResult& result, const std::vector<PreflightFloor>& floors);

}  // namespace fsdpd
