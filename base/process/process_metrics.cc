#include "base/process/process_metrics.h"

#include <dirent.h>
#include <errno.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace fsdpd {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter, kGauge = MetricKind::kGauge;

constexpr Metric kTable[] = {
    // Metrics of an agent or coordinator process, with the names of Prometheus client libraries.
    {"process_cpu_seconds_total", kCounter, "seconds", "", "User and system CPU time of the process."},
    {"process_open_fds", kGauge, "", "", "Open file descriptors of the process."},
    {"process_max_fds", kGauge, "", "", "Limit of open file descriptors (soft RLIMIT_NOFILE)."},
    {"process_resident_memory_bytes", kGauge, "bytes", "", "Resident memory of the process."},
    {"process_start_time_seconds", kGauge, "seconds", "", "Start time of the process, as Unix time."},
};

double MaxFds() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

std::optional<double> OpenFds() {
  DIR* const directory = opendir("/proc/self/fd");
  // EMFILE: every number below the limit is in use.
  if (directory == nullptr) return errno == EMFILE ? std::optional(MaxFds()) : std::nullopt;
  int entries = 0;
  while (readdir(directory) != nullptr) ++entries;
  closedir(directory);
  return entries - 3;  // Without ".", ".." and the descriptor of the directory.
}

std::optional<double> ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0;
  if (!(file >> size >> resident)) return std::nullopt;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::optional<double> BootSeconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  double seconds = 0;
  while (file >> word) {
    if (word == "btime" && file >> seconds) return seconds;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<double> StartSeconds() {
  std::ifstream file("/proc/self/stat");
  // The program name, field 2, may contain spaces; it ends at the last parenthesis.
  file.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  constexpr int kStartTime = 22;
  std::string field;
  for (int i = 3; i < kStartTime; ++i) file >> field;
  double ticks = 0;
  const std::optional<double> boot = BootSeconds();
  if (!(file >> ticks) || !boot.has_value()) return std::nullopt;
  return *boot + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

absl::Span<const Metric> ProcessMetrics() { return kTable; }

void AddProcessMetrics(std::vector<prometheus::MetricFamily>* families) {
  MetricSamples samples(kTable);
  samples.Add("process_cpu_seconds_total", CpuSeconds());
  samples.Add("process_open_fds", OpenFds());
  samples.Add("process_max_fds", MaxFds());
  samples.Add("process_resident_memory_bytes", ResidentBytes());
  samples.Add("process_start_time_seconds", StartSeconds());
  samples.MoveTo(families);
}

}  // namespace fsdpd
