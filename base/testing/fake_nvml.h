// A libnvidia-ml.so.1 of two GPUs that do what a test says. It is loaded as the real one is, by its name,
// which the loader finds once the test has opened the file: FakeNvml::Load().
#pragma once

#include <atomic>
#include <cstdint>

namespace fsdpd {

struct FakeGpu {
  unsigned power_milliwatts = 100'000;
  uint64_t energy_millijoules = 1000;
  unsigned sm_clock_megahertz = 1980;
  uint64_t slowdown_bits = 0;
  unsigned celsius = 40;
  uint64_t used_bytes = uint64_t{3} << 30;
  uint64_t corrected_ecc_errors = 0;
  uint64_t uncorrected_ecc_errors = 0;
  int xids = 0;       // To be told of,
  uint64_t xid = 79;  // ... each of this number.
  unsigned nvlinks = 18;
  unsigned nvlinks_down = 0;  // Of them, the first ones.
  bool tells = true;          // False: only its memory.
};
constexpr int kFakeGpus = 2;
constexpr uint64_t kFakeGpuBytes = uint64_t{80} << 30;
constexpr uint64_t kFakeReservedBytes = uint64_t{1} << 30;

class FakeNvml {
 public:
  // Those of the library at `path`, which stays loaded. Null: there is none.
  static FakeGpu* Load(const char* path);
  // Of the same library, once it is loaded: how many calls for power wait, for as long as `hangs` is true.
  struct Driver {
    std::atomic<bool> hangs{false};
    std::atomic<int> waiting{0};
  };
  static Driver* LoadDriver(const char* path);
};

}  // namespace fsdpd
