#include "fsdp/profile/profile_device.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "base/check.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kRendezvousTimeout = absl::Minutes(1);
constexpr int kCpuRanks = 2;
// Stages: start of ranks, compute measurements, and communication measurements.
constexpr int kStagesOfOneRank = 1 + 4, kStages = kStagesOfOneRank + 4;

// The usual compute and wire type of jobs on this device.
DType UsualType(DeviceKind device) { return device == DeviceKind::kCpu ? DType::kFp32 : DType::kBf16; }

absl::Status ConnectRank(const ProfileOptions& options, int rank, Store* store, RankBench* bench) {
  bench->runs = options.runs;
  FSDPD_RETURN_IF_ERROR(StartLanes(options.device, rank, bench));
  CommunicatorOptions group;
  group.device = options.device;
  group.rank = rank;
  group.size = options.ranks;
  group.device_index = rank;
  group.rendezvous_timeout = kRendezvousTimeout;
  FSDPD_ASSIGN_OR_RETURN(bench->mesh,
                         ConnectMesh(group, Mesh::DataParallel(1, options.ranks), /*exchanged=*/{}, store));
  return absl::OkStatus();
}

absl::Status MeasureRank(const ProfileOptions& options, int rank, RankBench* bench, DeviceProfile* profile) {
  if (options.device == DeviceKind::kCuda) FSDPD_RETURN_IF_ERROR(SetCudaDevice(rank));  // Per thread.
  const DType type = UsualType(options.device);
  FSDPD_RETURN_IF_ERROR(MeasureCompute(bench, options.compute, type, profile));
  if (options.ranks == 1) return absl::OkStatus();
  bench->Begin("latency of collectives");
  FSDPD_ASSIGN_OR_RETURN(profile->collective_latency_seconds, MeasureLatency(bench, options.links, type));
  // Both wires are verified; the usual one, which comes last, counts.
  for (const DType wire : {type == DType::kFp32 ? DType::kBf16 : DType::kFp32, type}) {
    bench->Begin(absl::StrCat("gathers and reductions in ", NameOf(wire)));
    FSDPD_ASSIGN_OR_RETURN(const LinkRates links,
                           MeasureLinks(bench, options.links, wire, profile->collective_latency_seconds,
                                        profile->memory_bytes_per_second));
    profile->node_gather_bytes_per_second = links.gather_bytes_per_second;
    profile->node_reduce_bytes_per_second = links.reduce_bytes_per_second;
  }
  bench->Begin("compute during communication");
  FSDPD_ASSIGN_OR_RETURN(const Slowdowns slowdowns,
                         MeasureSlowdowns(bench, options.compute, options.links, type));
  profile->compute_slowdown = slowdowns.compute;
  profile->communication_slowdown = slowdowns.communication;
  return absl::OkStatus();
}

// The first error, in rank order; errors that other ranks caused come last.
absl::Status OnEachRank(int ranks, const std::function<absl::Status(int rank)>& body) {
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsUnavailable(status)) return status;
  }
  for (const absl::Status& status : statuses) FSDPD_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

// `shipped`, with all rates that can be measured.
absl::StatusOr<DeviceProfile> MeasureRanks(const ProfileOptions& options, const DeviceProfile& shipped) {
  if (options.device == DeviceKind::kCuda && options.ranks > 1) {
    FSDPD_RETURN_IF_ERROR(CheckGpusMayShareProcess());
  }
  LocalStore store;
  std::vector<RankBench> benches(options.ranks);
  Stage stage{0, options.ranks > 1 ? kStages : kStagesOfOneRank, ""};
  benches[0].on_stage = [&](const std::string& what) {
    ++stage.number;
    stage.what = what;
    if (options.on_stage) options.on_stage(stage);
  };
  benches[0].Begin(options.ranks == 1 ? "one rank started" : absl::StrCat(options.ranks, " ranks started"));
  std::vector<DeviceProfile> profiles(options.ranks, shipped);
  FSDPD_RETURN_IF_ERROR(OnEachRank(
      options.ranks, [&](int rank) { return ConnectRank(options, rank, &store, &benches[rank]); }));
  FSDPD_RETURN_IF_ERROR(OnEachRank(options.ranks, [&](int rank) {
    const absl::Status status = MeasureRank(options, rank, &benches[rank], &profiles[rank]);
    // The other ranks wait for this one, and not all transports detect that it is gone.
    for (const RankBench& bench : benches) {
      if (!status.ok()) bench.mesh.Abort();
    }
    return status;
  }));
  return profiles[0];
}

absl::StatusOr<CudaDeviceFacts> DescribeDevice(const ProfileOptions& options) {
  if (options.device == DeviceKind::kCuda) return DescribeCudaDevice(0);
  const double memory = 1.0 * sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  return CudaDeviceFacts{"cpu", std::floor(memory / options.ranks)};
}

// The shipped profile with the device's name; otherwise the default of its kind.
const DeviceProfile& NearestProfile(DeviceKind device, const std::string& name) {
  for (const std::string& shipped : ProfileNames()) {
    if (absl::StrContains(absl::AsciiStrToLower(name), shipped)) return *FindProfile(shipped);
  }
  return DefaultProfile(device);
}

// Measurements are not accurate beyond four digits.
void RoundRates(DeviceProfile* profile) {
  for (const ProfileField& field : ProfileFields()) {
    double& value = profile->*field.value;
    if (field.value != &DeviceProfile::memory_bytes)
      value = std::strtod(absl::StrFormat("%.4g", value).c_str(), nullptr);
  }
}

}  // namespace

ProfileOptions DefaultProfileOptions(DeviceKind device) {
  ProfileOptions options;
  options.device = device;
  if (device == DeviceKind::kCpu) {
    options.ranks = kCpuRanks;
    options.compute = {512, 512, 1408, /*sequence=*/512, /*heads=*/8, /*head_size=*/64, /*elements=*/8 << 20};
    options.links = {/*large_elements=*/2 << 20, /*small_elements=*/256};
    options.runs = 9;
  } else {
    options.ranks = CudaDeviceCount();
    options.compute = {8192,
                       4096,
                       14336,
                       /*sequence=*/8192,
                       /*heads=*/32,
                       /*head_size=*/128,
                       /*elements=*/256 << 20};
    options.links = {/*large_elements=*/32 << 20, /*small_elements=*/256};
    options.runs = 21;
  }
  return options;
}

absl::StatusOr<MeasuredProfile> ProfileDevice(const ProfileOptions& options) {
  if (options.device == DeviceKind::kCuda && options.ranks > CudaDeviceCount()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "--ranks: %d exceeds the number of CUDA devices (%d)", options.ranks, CudaDeviceCount()));
  }
  if (options.ranks < 1) return absl::FailedPreconditionError("no CUDA device found");
  FSDPD_ASSIGN_OR_RETURN(const CudaDeviceFacts facts, DescribeDevice(options));
  const DeviceProfile& shipped = NearestProfile(options.device, facts.name);
  MeasuredProfile measured;
  DeviceProfile& profile = measured.profile;
  FSDPD_ASSIGN_OR_RETURN(profile, MeasureRanks(options, shipped));
  profile.name = absl::StrCat("measured ", facts.name, " x", options.ranks);
  profile.memory_bytes = facts.memory_bytes;
  profile.fp32_peak_flops = std::max(profile.fp32_peak_flops, profile.fp32_matmul_flops);
  profile.half_peak_flops = std::max(profile.half_peak_flops, profile.half_matmul_flops);
  RoundRates(&profile);
  measured.notes = {
      absl::StrCat("peaks and links between nodes (*_peak_flops, network_*, outer_*) are those of profile ",
                   shipped.name)};
  if (options.ranks == 1) {
    measured.notes.push_back(absl::StrCat(
        "one rank: links within the node and slowdowns are those of profile ", shipped.name, " too"));
  }
  return measured;
}

}  // namespace fsdpd
