#include "base/process/metric.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

namespace fsdpd {
namespace {

constexpr Metric kTable[] = {
    {"fsdpd_things_total", MetricKind::kCounter, "", "kind", "Things."},
    {"fsdpd_wait_seconds", MetricKind::kHistogram, "seconds", "", "How long things waited."},
};
constexpr double kBounds[] = {0.1, 1};

std::string TextOf(const prometheus::MetricFamily& family) {
  return prometheus::TextSerializer().Serialize({family});
}

TEST(Metric, ExportsByItsTableRow) {
  prometheus::MetricFamily family = FamilyOf(kTable, "fsdpd_things_total");
  AddSample(&family, {{"kind", "small"}}, 3);
  EXPECT_EQ(TextOf(family),
            "# HELP fsdpd_things_total Things.\n# TYPE fsdpd_things_total counter\n"
            "fsdpd_things_total{kind=\"small\"} 3\n");
}

TEST(Metric, HistogramCountsBuckets) {
  Histogram histogram(kBounds);
  for (const double value : {0.05, 0.1, 0.5, 7.0}) histogram.Add(value);
  prometheus::MetricFamily family = FamilyOf(kTable, "fsdpd_wait_seconds");
  histogram.AddTo(&family, {});
  const std::string text = TextOf(family);
  EXPECT_NE(text.find("fsdpd_wait_seconds_bucket{le=\"0.1\"} 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_bucket{le=\"1\"} 3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_bucket{le=\"+Inf\"} 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_count 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_sum 7.65"), std::string::npos) << text;
}

TEST(MetricDeathTest, UnknownNameFailsACheck) { EXPECT_DEATH(FamilyOf(kTable, "fsdpd_none"), ""); }

}  // namespace
}  // namespace fsdpd
