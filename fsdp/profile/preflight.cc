#include "fsdp/profile/preflight.h"

#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/comm/make_communicator.h"
#include "fsdp/profile/link_rates.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

// Products submitted together during warm-up: keeps the queue filled, but drains it quickly at the end.
constexpr int kHotRuns = 8;

class Measurement {
 public:
  Measurement(const PreflightOptions& options, Store* store) : options_(options), store_(store) {}

  absl::StatusOr<v1::PreflightDevice> Run() {
    FSDPD_RETURN_IF_ERROR(Prepare());
    FSDPD_RETURN_IF_ERROR(TimeProducts());
    FSDPD_RETURN_IF_ERROR(TimeMemory());
    if (ranks() == 1) return std::move(device_);
    FSDPD_ASSIGN_OR_RETURN(const double ring, GatherRate(world_.get()));
    device_.set_all_gather_bytes_per_second(ring);
    for (int round = 0; round < PairRounds(ranks()); ++round) FSDPD_RETURN_IF_ERROR(TimePair(round));
    // A rank that exits first would close connections the others still use.
    FSDPD_RETURN_IF_ERROR(Meet());
    return std::move(device_);
  }

 private:
  int rank() const { return options_.world.rank; }
  int ranks() const { return options_.world.size; }
  bool cuda() const { return options_.world.device == DeviceKind::kCuda; }
  // The usual compute and wire type of jobs on this device.
  DType type() const { return cuda() ? DType::kBf16 : DType::kFp32; }

  absl::Status Prepare() {
    const int index = options_.world.device_index;
    device_.set_device(index);
    device_.set_name("cpu");
    if (cuda()) {
      FSDPD_ASSIGN_OR_RETURN(const CudaDeviceFacts facts, DescribeCudaDevice(index));
      device_.set_name(facts.name);
    }
    FSDPD_RETURN_IF_ERROR(StartLanes(options_.world.device, index, &bench_));
    if (ranks() == 1) return absl::OkStatus();
    CommunicatorOptions group = options_.world;
    group.name = "preflight/ring";
    FSDPD_ASSIGN_OR_RETURN(world_, MakeCommunicator(group, store_));
    return absl::OkStatus();
  }

  // Barrier over all ranks.
  absl::Status Meet() {
    if (world_ == nullptr) return absl::OkStatus();
    return RunOn(bench_.communication.get(), [this] { return world_->Barrier(); });
  }

  absl::StatusOr<double> MedianSecondsOf(Lane* lane, const Work& work) const {
    return OwnMedianSeconds(lane, work, options_.runs);
  }

  absl::Status TimeProducts() {
    FSDPD_ASSIGN_OR_RETURN(const Work product, MakeProduct(&bench_, options_.compute, type()));
    FSDPD_RETURN_IF_ERROR(Meet());
    Lane* const lane = bench_.compute.get();
    const absl::Time begin = absl::Now();
    while (absl::Now() - begin < options_.hot) {
      for (int i = 0; i < kHotRuns; ++i) lane->Submit(product);
      FSDPD_RETURN_IF_ERROR(lane->Synchronize());
    }
    device_.set_begin_unix_nanos(absl::ToUnixNanos(begin));
    device_.set_warmup_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
    FSDPD_ASSIGN_OR_RETURN(const double seconds, MedianSecondsOf(lane, product));
    device_.set_matmul_flops(ProductFlops(options_.compute) / seconds);
    device_.set_end_unix_nanos(absl::ToUnixNanos(absl::Now()));
    return absl::OkStatus();
  }

  absl::Status TimeMemory() {
    FSDPD_ASSIGN_OR_RETURN(const Work traffic, MakeTraffic(&bench_, options_.compute.elements));
    FSDPD_RETURN_IF_ERROR(Meet());
    FSDPD_ASSIGN_OR_RETURN(const double seconds, MedianSecondsOf(bench_.compute.get(), traffic));
    device_.set_memory_bytes_per_second(TrafficBytes(options_.compute.elements) / seconds);
    return absl::OkStatus();
  }

  // Bytes per second that this rank receives in an all-gather over `group`.
  absl::StatusOr<double> GatherRate(Communicator* group) {
    FSDPD_ASSIGN_OR_RETURN(const Work gather, MakeGather(&bench_, group, options_.part_elements, type()));
    FSDPD_RETURN_IF_ERROR(Meet());
    FSDPD_ASSIGN_OR_RETURN(const double seconds, MedianSecondsOf(bench_.communication.get(), gather));
    const double part = static_cast<double>(options_.part_elements * BytesOf(type()));
    return (group->size() - 1) * part / seconds;
  }

  absl::Status TimePair(int round) {
    const int partner = PartnerOf(rank(), ranks(), round);
    if (partner < 0) return Meet();  // Participates in the barriers of the pairs.
    const int low = std::min(rank(), partner), high = std::max(rank(), partner);
    CommunicatorOptions group = options_.world;
    group.name = absl::StrCat("preflight/pair/", low, "-", high);
    group.rank = rank() == low ? 0 : 1;
    group.size = 2;
    FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> pair, MakeCommunicator(group, store_));
    FSDPD_ASSIGN_OR_RETURN(const double rate, GatherRate(pair.get()));
    v1::PreflightDevice::Pair* const told = device_.add_pairs();
    // Ranks correspond to devices, in order.
    told->set_device(options_.world.device_index + partner - rank());
    told->set_bytes_per_second(rate);
    return absl::OkStatus();
  }

  const PreflightOptions options_;
  Store* const store_;
  RankBench bench_;
  std::unique_ptr<Communicator> world_;  // Null for a single rank.
  v1::PreflightDevice device_;
};

}  // namespace

PreflightOptions DefaultPreflightOptions(DeviceKind device) {
  PreflightOptions options;
  options.world.device = device;
  if (device == DeviceKind::kCpu) {
    options.compute = {256, 256, 256, 0, 0, 0, /*elements=*/1 << 20};
    options.part_elements = 1 << 18;
    options.hot = absl::Milliseconds(20);
    options.runs = 7;
  } else {
    options.compute = {8192, 4096, 14336, 0, 0, 0, /*elements=*/256 << 20};
    options.part_elements = 32 << 20;
    options.hot = absl::Seconds(3);
    options.runs = 21;
  }
  return options;
}

absl::StatusOr<v1::PreflightDevice> MeasureDevice(const PreflightOptions& options, Store* store) {
  return Measurement(options, store).Run();
}

// The circle method of round-robin tournaments: one place is fixed, the others rotate. An odd number of ranks
// gets an empty place.
int PairRounds(int ranks) { return ranks < 2 ? 0 : ranks + ranks % 2 - 1; }

int PartnerOf(int rank, int ranks, int round) {
  const int places = ranks + ranks % 2, circle = places - 1;
  int partner = 0;
  if (rank == circle) {
    // The rank at the place that is its own mirror: 2 x place = round.
    partner = round % 2 == 0 ? round / 2 : (round + circle) / 2;
  } else {
    partner = (round - rank + circle) % circle;
    if (partner == rank) partner = circle;
  }
  return partner < ranks ? partner : -1;
}

}  // namespace fsdpd
