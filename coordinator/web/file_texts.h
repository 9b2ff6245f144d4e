// Static files of the web UI, which BUILD compiles into the program.
#pragma once

namespace fsdpd {

extern const char kChartJs[];
extern const char kStepsJs[];
extern const char kDomJs[];
extern const char kIconSvg[];
extern const char kJobJs[];
extern const char kJobsJs[];
extern const char kNodesJs[];
extern const char kNumbersJs[];
extern const char kPageCss[];
extern const char kPageHtml[];
extern const char kPageJs[];
extern const char kTimelineJs[];

}  // namespace fsdpd
