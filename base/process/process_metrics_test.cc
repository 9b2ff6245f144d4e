#include "base/process/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>

#include <map>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace fsdpd {
namespace {

std::map<std::string, double> Values() {
  std::vector<prometheus::MetricFamily> families;
  AddProcessMetrics(&families);
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : families) {
    const prometheus::ClientMetric& metric = family.metric.at(0);
    values[family.name] =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  return values;
}

TEST(ProcessMetrics, ExportsTheWholeTable) {
  const std::map<std::string, double> values = Values();
  EXPECT_EQ(values.size(), ProcessMetrics().size());
  const auto now = static_cast<double>(time(nullptr));
  EXPECT_NEAR(values.at("process_start_time_seconds"), now, 600);
  EXPECT_GT(values.at("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(values.at("process_cpu_seconds_total"), 0);
}

TEST(ProcessMetrics, CountsDescriptorsAtTheLimit) {
  const double before = Values().at("process_open_fds");
  std::vector<UniqueFd> opened;
  opened.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(Values().at("process_open_fds"), before + 1);

  rlimit limit = {}, small = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  small = limit;
  small.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
  while (opened.back().valid()) opened.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::map<std::string, double> values = Values();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(values.at("process_open_fds"), 64);
  EXPECT_EQ(values.at("process_max_fds"), 64);
}

}  // namespace
}  // namespace fsdpd
