// Fake libnvidia-ml.so.1 with two GPUs whose readings the test sets. It is loaded by its name like the real
// one, which the loader finds after the test has opened the file with FakeNvml::Load().
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
  int xids = 0;       // Number of XID events to report,
  uint64_t xid = 79;  // each with this code.
  unsigned nvlinks = 18;
  unsigned nvlinks_down = 0;  // The first ones of them.
  bool tells = true;          // False: supports memory queries only.
};
constexpr int kFakeGpus = 2;
constexpr uint64_t kFakeGpuBytes = uint64_t{80} << 30;
constexpr uint64_t kFakeReservedBytes = uint64_t{1} << 30;

class FakeNvml {
 public:
  // GPUs of the library at `path`, which stays loaded. Null if absent.
  static FakeGpu* Load(const char* path);
  // State of the same library, once it is loaded: power queries block while `hangs` is true, `waiting` is
  // their number.
  struct Driver {
    std::atomic<bool> hangs{false};
    std::atomic<int> waiting{0};
  };
  static Driver* LoadDriver(const char* path);
};

}  // namespace fsdpd
