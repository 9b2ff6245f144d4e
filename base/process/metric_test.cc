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

std::string TextOf(MetricSamples* samples) {
  std::vector<prometheus::MetricFamily> families;
  samples->MoveTo(&families);
  return prometheus::TextSerializer().Serialize(families);
}

TEST(Metric, ExportsByItsTableRow) {
  MetricSamples samples(kTable);
  samples.Add("fsdpd_things_total", 3, {{"kind", "small"}});
  EXPECT_EQ(TextOf(&samples),
            "# HELP fsdpd_things_total Things.\n# TYPE fsdpd_things_total counter\n"
            "fsdpd_things_total{kind=\"small\"} 3\n");
}

TEST(Metric, SamplesHaveTheOrderOfTheTableWithoutEmptyFamilies) {
  constexpr Metric kThree[] = {{"a", MetricKind::kGauge, "", "", "A."},
                               {"b", MetricKind::kGauge, "", "", "B."},
                               {"c", MetricKind::kCounter, "", "kind", "C."}};
  MetricSamples samples(kThree);
  samples.Add("c", 2, {{"kind", "small"}});
  samples.Add("a", true);
  samples.Add("c", int64_t{3}, {{"kind", "large"}});
  EXPECT_EQ(TextOf(&samples),
            "# HELP a A.\n# TYPE a gauge\na 1\n"
            "# HELP c C.\n# TYPE c counter\nc{kind=\"small\"} 2\nc{kind=\"large\"} 3\n");
}

TEST(Metric, HistogramCountsBuckets) {
  Histogram histogram(kBounds);
  for (const double value : {0.05, 0.1, 0.5, 7.0}) histogram.Add(value);
  MetricSamples samples(kTable);
  samples.Add("fsdpd_wait_seconds", histogram);
  const std::string text = TextOf(&samples);
  EXPECT_NE(text.find("fsdpd_wait_seconds_bucket{le=\"0.1\"} 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_bucket{le=\"1\"} 3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_bucket{le=\"+Inf\"} 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_count 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fsdpd_wait_seconds_sum 7.65"), std::string::npos) << text;
}

TEST(MetricDeathTest, UnknownNameFailsACheck) {
  EXPECT_DEATH(MetricSamples(kTable).Add("fsdpd_none", 1), "");
}

TEST(MetricDeathTest, NumberOfHistogramFailsACheck) {
  EXPECT_DEATH(MetricSamples(kTable).Add("fsdpd_wait_seconds", 1), "");
}

}  // namespace
}  // namespace fsdpd
