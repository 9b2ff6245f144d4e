#include "fsdp/profile/profile_command.h"

#include <ATen/Parallel.h>
#include <absl/strings/numbers.h>

#include <cstdlib>
#include <optional>

#include "fsdp/memory/host_caching_allocator.h"
#include "fsdp/plan/predict/device_profile.h"
#include "fsdp/profile/profile_device.h"

namespace fsdpd {
namespace {

constexpr char kFlag[] = "--profile-device";

std::optional<ProfileOptions> Parse(const std::vector<std::string>& arguments) {
  if (arguments.size() != 2 && arguments.size() != 4) return std::nullopt;
  if (arguments[1] != "cpu" && arguments[1] != "cuda") return std::nullopt;
  ProfileOptions options =
      DefaultProfileOptions(arguments[1] == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda);
  if (arguments.size() == 2) return options;
  if (arguments[2] != "--ranks" || !absl::SimpleAtoi(arguments[3], &options.ranks) || options.ranks < 1) {
    return std::nullopt;
  }
  return options;
}

// Same as in a rank (rank_main.cc), so that it measures what a rank would achieve.
void PrepareCpu() {
  InstallHostCachingAllocator();
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(1);
}

}  // namespace

bool IsProfileCommand(const std::vector<std::string>& arguments) {
  return !arguments.empty() && arguments[0] == kFlag;
}

int RunRankProfile(const std::vector<std::string>& arguments, std::ostream* out, std::ostream* err) {
  std::optional<ProfileOptions> options = Parse(arguments);
  if (!options.has_value()) {
    *err << "usage: fsdpd-rank --profile-device cpu|cuda [--ranks N]\n";
    return 2;
  }
  if (options->device == DeviceKind::kCpu) PrepareCpu();
  options->on_stage = [err](const Stage& stage) {
    *err << "measuring " << stage.number << "/" << stage.of << ": " << stage.what << "\n" << std::flush;
  };
  const absl::StatusOr<MeasuredProfile> measured = ProfileDevice(*options);
  if (!measured.ok()) {
    *err << "fsdpd-rank: cannot profile the device: " << measured.status().message() << "\n";
    return 1;
  }
  for (const std::string& note : measured->notes) *err << "note: " << note << "\n";
  *out << ToJson(measured->profile);
  return 0;
}

}  // namespace fsdpd
